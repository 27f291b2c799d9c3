"""The log head: a small file that names the newest log file, so that missing log files are detected.

A log whose last files are missing looks like a shorter log, and would assign sequences again that it has acknowledged.
So each log file is named here, durably, before the first batch is written to it, and recovery checks the files against
that name. The layout, and the possible states after a crash, are in `millrace.wire.schema.newest`.

Not detected: a log file, or all of them and this one, replaced by an older image of the same use.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from millrace.model.checksum import crc32c
from millrace.server.host.files import File, FileSystem
from millrace.wire.codec import Codec
from millrace.wire.errors import CodecError
from millrace.wire.schema.newest import NEWEST_CHECKSUM_END, NEWEST_SLOT_SIZE_BYTES, NewestSlot

from .logfile import PREPARING_SUFFIX

NEWEST_NAME: Final = "newest"

_SLOT: Final = Codec(NewestSlot, name="NewestSlot")


class FileUse(NamedTuple):
    """One use of a log file: its number, and its salt in this use."""

    number: int
    salt: int


@dataclass(frozen=True, slots=True)
class LogHead:
    """The content of the log head."""

    # The file named by each slot, None if the slot is unreadable or was never written; empty if the head is missing.
    slots: tuple[FileUse | None, ...]

    @property
    def named(self) -> FileUse | None:
        """The newest log file, None if none is named."""
        return max(filter(None, self.slots), default=None)


class LogHeadFile:
    """The log head file, open as long as its log is. Blocking; for one thread at a time."""

    def __init__(self, file: File) -> None:
        """Take the file, and sync its content, which may have been read from the page cache only."""
        self._file = file
        self._newest = _read(file)
        if self._newest.named is not None:
            self._write(self._newest.named, slot=self._newest.slots.index(self._newest.named))

    def name(self, use: FileUse) -> None:
        """Name a log file durably, unless it or a newer one is named already.

        Raises:
            OSError: it is unknown which file is named. Nothing may be written to the log file.
        """
        named = self._newest.named
        if named is not None and named.number >= use.number:
            return
        self._write(use, slot=1 - self._newest.slots.index(named))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, use: FileUse, *, slot: int) -> None:
        self._file.pwritev([encode_slot(use)], slot * NEWEST_SLOT_SIZE_BYTES)
        self._file.datasync()
        self._newest = _read(self._file)


def open_log_head(files: FileSystem, directory: Path, use: FileUse) -> LogHeadFile:
    """Open or create the log head in a folder, and name a log file in it. Blocks.

    Raises:
        NoSpaceError, OSError: the file could not be written.
    """
    path = directory / NEWEST_NAME
    if not files.exists(path):
        temporary = path.with_name(path.name + PREPARING_SUFFIX)
        with closing(files.open(temporary, create=True)) as file:
            file.pwritev([encode_slot(use), bytes(NEWEST_SLOT_SIZE_BYTES)], 0)
            file.datasync()
        files.rename(temporary, path)
        files.sync_directory(directory)
    file = files.open(path)
    try:
        newest = LogHeadFile(file)
        newest.name(use)
    except BaseException:
        file.close()
        raise
    return newest


def read_log_head(files: FileSystem, directory: Path) -> LogHead:
    """Read the log head in a folder. Blocks."""
    path = directory / NEWEST_NAME
    if not files.exists(path):
        return LogHead(())
    with closing(files.open(path, read_only=True)) as file:
        return _read(file)


def encode_slot(use: FileUse) -> bytes:
    """Return the whole slot that names a log file."""
    checksum = crc32c(_SLOT.pack(*use, 0)[:NEWEST_CHECKSUM_END])
    return _SLOT.pack(*use, checksum).ljust(NEWEST_SLOT_SIZE_BYTES, b"\0")


def decode_slot(slot: bytes) -> FileUse | None:
    """Return the file that a slot names, or None if the slot is not valid."""
    try:
        number, salt, checksum = _SLOT.unpack(slot)
    except CodecError:
        return None
    return FileUse(number, salt) if crc32c(slot[:NEWEST_CHECKSUM_END]) == checksum else None


def log_head_of(data: bytes) -> LogHead:
    """Decode the content of the log head."""
    return LogHead((decode_slot(data[:NEWEST_SLOT_SIZE_BYTES]), decode_slot(data[NEWEST_SLOT_SIZE_BYTES:])))


def _read(file: File) -> LogHead:
    return log_head_of(file.pread(2 * NEWEST_SLOT_SIZE_BYTES, 0))
