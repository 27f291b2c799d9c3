"""The results of reading a log back: batches, damage, and where the log continues."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.wire.append_run import AppendRun

from .batch import Batch, FileHeader
from .log_end import Ending, Tail

NO_SERVER_ID: Final = uuid.UUID(int=0)
"""The identity of a data folder that has none."""


@dataclass(frozen=True, slots=True)
class LogOwner:
    """Whose log it is; stored in each file."""

    container_id: int = 0
    # Identity of the data folder.
    server_id: uuid.UUID = NO_SERVER_ID

    def __str__(self) -> str:
        return f"container {self.container_id} of server {self.server_id}"


@dataclass(slots=True)
class RecoveredBatch:
    """A batch read back. Runs that were damaged are left out and named by the `Damage` before it."""

    sequence: int
    # Clock of the log when it was written, Unix microseconds.
    wall_time_us: int
    runs: list[AppendRun]
    # Where it is: the name of a file in the folder of the log.
    place: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A range of the log that was acknowledged and cannot be read."""

    # The name of a file in the folder of the log.
    place: str
    offset: int
    size: int
    # The batches concerned. With first > last no batch is lost: bytes are damaged that can be done without.
    first_sequence: int
    last_sequence: int
    # (segment id, offset in the segment, payload bytes) of each lost run, if `is_complete`.
    runs: tuple[tuple[int, int, int], ...] = ()
    # Whether `runs` names all that was lost; otherwise any segment may have lost something here.
    is_complete: bool = False
    reason: str = ""

    def __str__(self) -> str:
        return (
            f"{self.place} offset={self.offset} size={self.size} "
            f"sequences={self.first_sequence}-{self.last_sequence} runs={len(self.runs)}"
            f"{'' if self.is_complete else '+unknown'}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What reading the log back came to."""

    # CORRUPT if there is any damage, else how the log ends.
    ending: Ending
    # Bytes of the incomplete batch at the end; they were never acknowledged, and are cut.
    torn_bytes: int
    damages: tuple[Damage, ...]
    # 0 where the log holds no batch.
    first_sequence: int
    last_sequence: int
    batch_count: int
    size_bytes: int
    places: tuple[str, ...]
    # Where the log ends, empty where there is nothing.
    end_place: str
    end_offset: int


@dataclass(slots=True, kw_only=True)
class FoundFile:
    """A log file as recovery met it."""

    number: int
    path: Path
    header: FileHeader | None = None
    salt: int | None = None
    size_bytes: int = 0
    # The highest sequence that is, or was, in it; 0 where there is none.
    last_sequence: int = 0
    is_damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Where the log continues, and which batch the next one follows."""

    file: FoundFile
    tail: Tail
    previous_checksum: int
    # The last valid batch and its file, which may be the one before; None where the log holds no batch.
    last_file: FoundFile | None
    last_batch: Batch | None
