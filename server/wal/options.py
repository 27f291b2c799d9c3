"""What can be set about the write-ahead log."""

from dataclasses import dataclass
from typing import Final

from millrace.server.errors import ConfigurationError
from millrace.wire.limits import KIB, MIB, RECORD_SIZE_BYTES_MAX
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES

from .batch import BATCH_OVERHEAD_BYTES

FILES_COUNT_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WalOptions:
    """Sizes and bounds of the log of one container.

    Raises:
        ConfigurationError: the values contradict one another.
    """

    # Each file is preallocated to this size; a batch never spans two.
    file_size_bytes: int = 64 * MIB
    # The bound of the log: appends are refused when so many files hold data that is still needed.
    files_max: int = 16
    # Files that are made ready ahead, so that the log never waits for one.
    spare_files: int = 2
    # Recycled files beyond `spare_files` that are kept for bursts, rather than removed and zero-filled again later.
    spare_files_max: int = 16
    # How much is taken from the queue for one write and sync, unless the first run alone is larger.
    batch_size_bytes_max: int = 8 * MIB
    # The largest run, its frames with their headers.
    run_size_bytes_max: int = 17 * MIB
    # A batch up to this size that is alone is written and synced in the event loop, see `lone`. 0: none is.
    lone_size_bytes_max: int = 128 * KIB
    # Kept free for control records: truncates, deletes and commits must work when appends no longer do. Enough for the
    # largest of them, a commit of many thousands of parts, and for many small ones after it.
    headroom_bytes: int = RECORD_SIZE_BYTES_MAX + 1 * MIB
    # How long to wait until a file that the disk had no room for is tried again.
    retry_interval_s: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values under which an append that is allowed might never fit."""
        if self.files_max < FILES_COUNT_MIN:
            raise ConfigurationError(f"files_max is {self.files_max}; the log needs at least {FILES_COUNT_MIN} files")
        if not 1 <= self.spare_files < self.files_max:
            raise ConfigurationError(f"spare_files is {self.spare_files}; it must be from 1 to files_max - 1")
        if self.spare_files_max < self.spare_files:
            raise ConfigurationError(f"spare_files_max is {self.spare_files_max}, below spare_files")
        if self.batch_size_bytes_max < 1 or self.run_size_bytes_max < 1 or self.retry_interval_s <= 0:
            raise ConfigurationError("batch_size_bytes_max, run_size_bytes_max and retry_interval_s must be positive")
        if self.headroom_bytes < 4 * KIB:
            raise ConfigurationError(f"headroom_bytes is {self.headroom_bytes}; a few control records need 4 KiB")
        needed = LOG_FILE_HEADER_BLOCK_BYTES + BATCH_OVERHEAD_BYTES + self.run_size_bytes_max + self.headroom_bytes
        if self.file_size_bytes < needed or self.file_size_bytes % LOG_FILE_HEADER_BLOCK_BYTES:
            raise ConfigurationError(
                f"file_size_bytes is {self.file_size_bytes}; it must be a multiple of {LOG_FILE_HEADER_BLOCK_BYTES} "
                f"and hold the largest run and the headroom, {needed} bytes"
            )

    @property
    def file_room_bytes(self) -> int:
        """How many bytes of batches one file holds."""
        return self.file_size_bytes - LOG_FILE_HEADER_BLOCK_BYTES
