"""The file in which the readings of the clocks outlive the server.

The file is never needed: without it, or with one that cannot be read, old events count as younger, and are kept longer.
But it must not be outdated: with a jump of the wall clock that is not in it, young events may count as old. So a jump
is stored before anything is deleted for its age, and where that fails, the file is removed.
"""

import logging
from pathlib import Path
from typing import Final

from millrace.server.errors import NoSpaceError
from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem

from .clock_history import ClockHistory, clock_history_of_text

logger = logging.getLogger(__name__)

NAME: Final = "clocks.json"
SIZE_BYTES_MAX: Final = 1 << 20


class ClockHistoryFile:
    """The file of one container. Its methods block."""

    def __init__(self, files: FileSystem, folder: Path, *, boot: str, clock: Clock) -> None:
        self._files = files
        self._path = folder / NAME
        self._boot = boot
        self._clock = clock

    def load(self) -> ClockHistory:
        """Return the clock_history that continues what was kept."""
        text = ""
        try:
            if self._files.exists(self._path):
                file = self._files.open(self._path, read_only=True)
                try:
                    text = file.pread(min(file.size(), SIZE_BYTES_MAX), 0).decode()
                finally:
                    file.close()
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("readings of the clocks cannot be read path=%s error=%s", self._path, error)
        return clock_history_of_text(
            text, boot=self._boot, monotonic_s=self._clock.monotonic_s(), unix_us=self._clock.unix_us()
        )

    def keep(self, text: str) -> bool:
        """Put what `ClockHistory.to_text` returned in place of what was kept, durably; if that fails, keep nothing.

        Returns:
            False if what was kept before is still there.
        """
        fresh = self._path.with_suffix(".new")
        data = text.encode()
        try:
            file = self._files.open(fresh, create=True)
            try:
                file.pwritev([data], 0)
                file.truncate(len(data))
                file.datasync()
            finally:
                file.close()
            self._files.rename(fresh, self._path)
            self._files.sync_directory(self._path.parent)
        except (OSError, NoSpaceError) as error:
            logger.warning("readings of the clocks cannot be kept path=%s error=%s", self._path, error)
            return self._remove()
        return True

    def _remove(self) -> bool:
        try:
            for path in (self._path, self._path.with_suffix(".new")):
                if self._files.exists(path):
                    self._files.remove(path)
            self._files.sync_directory(self._path.parent)
        except OSError as error:
            logger.warning("readings of the clocks cannot be removed path=%s error=%s", self._path, error)
            return False
        return True

    def text_of(self, clock_history: ClockHistory) -> str:
        """Return what is to be kept of a clock_history now."""
        return clock_history.to_text(boot=self._boot, monotonic_s=self._clock.monotonic_s())


def boot_id() -> str:
    """Return the name of the present start of the machine, empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
