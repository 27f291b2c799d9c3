"""Settings of the write-ahead log."""

import math
from dataclasses import dataclass
from typing import Final, Literal

from millrace.server.bounds import demand, demand_above_zero, demand_at_least, option_text
from millrace.wire.limits import KIB, MIB, RECORD_SIZE_BYTES_MAX
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES

from .batch import BATCH_OVERHEAD_BYTES

FILES_COUNT_MIN: Final = 2
HEADROOM_BYTES_MIN: Final = 4 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class WalOptions:
    """Sizes and bounds of the log of one container; checked when made.

    Attributes:
        place: where the log is: local: in the data folder; object: in the object store, so that what was acknowledged
            outlives the machine. It cannot change once there is history.
        file_size_bytes: size of a log file. Each file has this size from the start. On a small volume files are
            smaller: what holds run_size_bytes_max and headroom_bytes.
        zero_fill: fill a new log file with zeros before it is used. Without that, the file takes disk only as it is
            written. Then syncs are slower, and if the disk fills up, accepted appends may fail.
        files_max: how many files the log may have; when all of them are needed, appends are refused.
        spare_files: how many empty files are prepared ahead, so that the log never waits for one.
        spare_files_max: how many used files are kept for bursts, instead of being deleted and made again later.
        batch_size_bytes_max: the largest batch that is written and synced at once; a single append may be larger.
        run_size_bytes_max: how many bytes of appends to one segment are handled as one, with their headers.
        lone_size_bytes_max: a batch up to this size that arrives alone is synced without a change of threads, which is
            faster; 0 turns this off.
        headroom_bytes: room that is kept free in a full log for truncations, deletions and commits; the largest commit
            has 16 MiB.
        retry_interval_s: how long to wait before a full disk is tried again.
        puts_per_s_max: of a log in an object store, in the long run, as each is paid for; after a second without any,
            as many at once. 0 for as many as help: eight in each round trip to the store. Slow ones that are made twice
            come on top, one for 20.
    """

    place: Literal["local", "object"] = "local"
    file_size_bytes: int = 64 * MIB
    zero_fill: bool = True
    files_max: int = 16
    spare_files: int = 2
    spare_files_max: int = 16
    batch_size_bytes_max: int = 8 * MIB
    run_size_bytes_max: int = 17 * MIB
    lone_size_bytes_max: int = 128 * KIB
    # Enough for the largest record, a commit of many thousands of parts, and for many small ones after it.
    headroom_bytes: int = RECORD_SIZE_BYTES_MAX + 1 * MIB
    retry_interval_s: float = 1.0
    puts_per_s_max: float = 20.0

    def __post_init__(self) -> None:
        """Reject values under which a permitted append might never fit."""
        demand_at_least(self, FILES_COUNT_MIN, "files_max")
        demand(1 <= self.spare_files < self.files_max, self, "spare_files", "from 1 to files_max - 1")
        demand(self.spare_files_max >= self.spare_files, self, "spare_files_max", "at least spare_files")
        demand_above_zero(self, "batch_size_bytes_max", "run_size_bytes_max", "retry_interval_s")
        demand_at_least(self, 0, "lone_size_bytes_max")
        demand_at_least(self, 0.0, "puts_per_s_max")
        demand_at_least(self, HEADROOM_BYTES_MIN, "headroom_bytes")
        block, needed = LOG_FILE_HEADER_BLOCK_BYTES, self.file_size_bytes_min
        demand(
            self.file_size_bytes >= needed and self.file_size_bytes % block == 0,
            self,
            "file_size_bytes",
            f"a multiple of {option_text('file_size_bytes', block)} that holds run_size_bytes_max and headroom_bytes, "
            f"{option_text('file_size_bytes', needed)} or more",
        )

    @property
    def file_size_bytes_min(self) -> int:
        """The smallest log file that fits the largest run and the headroom."""
        return smallest_file_bytes(self.run_size_bytes_max, self.headroom_bytes)

    @property
    def file_room_bytes(self) -> int:
        """Space for batches in one file, in bytes."""
        return self.file_size_bytes - LOG_FILE_HEADER_BLOCK_BYTES


def smallest_file_bytes(run_size_bytes_max: int, headroom_bytes: int) -> int:
    """Return the size of the smallest log file for these options."""
    block = LOG_FILE_HEADER_BLOCK_BYTES
    return block * (1 + math.ceil((BATCH_OVERHEAD_BYTES + run_size_bytes_max + headroom_bytes) / block))
