"""One preallocated file of the log, and its name."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.server.host.files import Buffer, Closable, File

from .batch import aligned

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"wal-(\d{16})\.log")

PREPARING_SUFFIX: Final = ".preparing"
"""Suffix of a file that is not yet, or no longer, part of the log."""
DAMAGED_SUFFIX: Final = ".damaged"
"""Suffix of a damaged file that the log no longer needs, and that is kept as evidence."""


def log_file_name(number: int) -> str:
    """Return the name of the file with that number."""
    return f"wal-{number:016d}.log"


def log_file_number(name: str) -> int | None:
    """Return the number in the name of a log file, or None if it is not one."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def close_file(file: Closable, path: Path) -> None:
    """Close a file of the log. An error is only logged: unsynced bytes were never reported as stored."""
    try:
        file.close()
    except OSError as error:
        logger.warning("log file not closed cleanly path=%s error=%s", path, error)


@dataclass(slots=True, kw_only=True)
class LogFile:
    """A file that is written from front to back, by one thread at a time."""

    number: int
    path: Path
    salt: int
    file: File
    size_bytes: int
    # Offset of the next batch.
    end: int
    # Sequence of the last batch in the file, 0 if it has none.
    last_sequence: int = 0
    # Recovery found damage: the file is never recycled or removed.
    is_damaged: bool = False

    @property
    def room_bytes(self) -> int:
        """Free space for batches, in bytes."""
        return self.size_bytes - self.end

    def append(self, pieces: Sequence[Buffer], *, size: int, sequence: int) -> None:
        """Write one batch after the last, and return when it is durable.

        After an error the file must not be written again: its content is unknown until it is recovered.
        """
        assert size <= self.room_bytes, "a batch never spans files"
        self.file.pwritev(pieces, self.end)
        self.file.datasync()
        self.end = aligned(self.end + size)
        self.last_sequence = sequence
