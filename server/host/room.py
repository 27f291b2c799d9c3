"""Disk space on the volume of a data folder, shared by the log, tier 2 and checkpoints.

Checkpoints free space: after a truncation, chunks are deleted and log files are recycled only when a copy of the
checkpoint is in tier 2. If a checkpoint found the disk full, it would stay full permanently. So log files and chunks
leave a reserve free, which only checkpoints and their copies use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final

from millrace.server.errors import NoSpaceError
from millrace.wire.limits import MIB

from .files import FileSystem

RESERVE_BYTES_MIN: Final = 4 * MIB
"""Space for the growth of a checkpoint since the last one, and for the journal of a small one."""
RESERVED_CHECKPOINTS_COUNT: Final = 4
"""The journal of a save, the copy in progress, its parts in tier 2, and one more while older copies are deleted."""


class DiskRoom:
    """Space for log files and chunks. May be used by several threads at once.

    Attributes:
        has_tier2: whether chunks are stored on the volume, too.
    """

    def __init__(self, files: FileSystem, *, has_tier2: bool = False) -> None:
        """Store the collaborators; the reserve is still empty."""
        self.has_tier2 = has_tier2
        self._files = files
        self._checkpoints: set[Path] = set()
        self._lock = Lock()
        # Claimed by files that are being written.
        self._claimed_bytes = 0

    def reserve_for(self, checkpoint: Path) -> None:
        """Reserve space for the checkpoint in that file, which may be missing."""
        with self._lock:
            self._checkpoints.add(checkpoint)

    @property
    def reserve_bytes(self) -> int:
        """Room that is left to checkpoints; grows with them."""
        return sum(RESERVE_BYTES_MIN + RESERVED_CHECKPOINTS_COUNT * self._size(path) for path in self._checkpoints)

    def free_bytes(self, path: Path) -> int:
        """Return how many bytes of log files and chunks still fit on the volume of `path`.

        Raises:
            OSError: the system call failed.
        """
        with self._lock:
            return self._free_bytes(path)

    def left_bytes(self, path: Path) -> int:
        """Return how many bytes still fit on the volume of `path`, including the reserve.

        Raises:
            OSError: the system call failed.
        """
        with self._lock:
            return self._files.free_bytes(path) - self._claimed_bytes

    @contextmanager
    def claimed(self, path: Path, size_bytes: int) -> Iterator[None]:
        """Claim room for a file that is written inside the context.

        Raises:
            NoSpaceError: the volume of `path` has less.
            OSError: the system does not answer.
        """
        with self._lock:
            free_bytes = self._free_bytes(path)
            if free_bytes < size_bytes:
                raise NoSpaceError(
                    f"no space for a file of {size_bytes / MIB:.1f} MiB: {free_bytes / MIB:.1f} MiB are free, not "
                    f"counting the reserve of {self.reserve_bytes / MIB:.1f} MiB for checkpoints",
                    subject=str(path),
                )
            self._claimed_bytes += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._claimed_bytes -= size_bytes

    def _free_bytes(self, path: Path) -> int:
        return max(0, self._files.free_bytes(path) - self.reserve_bytes - self._claimed_bytes)

    def _size(self, path: Path) -> int:
        try:
            return self._files.size(path)
        except FileNotFoundError:
            return 0
