"""The results of reading a log back: batches, damage, and where the log continues."""

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from millrace.wire.append_run import AppendRun

from .batch import FileHeader
from .log_end import Ending


@dataclass(frozen=True, slots=True)
class LogOwner:
    """Whose log it is; stored in each file."""

    container_id: int
    # Identity of the data folder.
    server_id: uuid.UUID

    def __str__(self) -> str:
        return f"container {self.container_id} of server {self.server_id}"


class AcceptedLoss(NamedTuple):
    """What of a log an operator has given up, and what came before: nothing of that is told as damage any more."""

    sequence: int = 0
    # Of the newest file that batches may have been written to by then.
    file_number: int = 0


NOTHING_ACCEPTED: Final = AcceptedLoss()


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
    # Whether all that was lost lay in these bytes; otherwise files are missing, and at most a whole log is lost.
    is_bounded: bool = True
    # Whether it is the end of the log that is lost: any number of batches may have followed.
    is_end: bool = False
    reason: str = ""

    def __str__(self) -> str:
        return (
            f"{self.place} offset={self.offset} size={self.size} "
            f"sequences={self.first_sequence}-{self.last_sequence} runs={len(self.runs)}"
            f"{'' if self.is_complete else '+unknown'}: {self.reason}"
        )


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What reading the log back has come to so far."""

    # CORRUPT if there is any damage, else how the log ends.
    ending: Ending = Ending.END
    # Bytes of the incomplete batch at the end; they were never acknowledged, and are cut.
    torn_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    # 0 where the log holds no batch.
    first_sequence: int = 0
    last_sequence: int = 0
    batch_count: int = 0
    size_bytes: int = 0
    # Names of the files.
    places: tuple[str, ...] = ()
    # Where the log ends in its last file, 0 where there is none.
    end_offset: int = 0
    # The highest number of a file that batches were written to, or may have been, also of one that is missing.
    used_file_number: int = 0
    # Of a log in an object store: for each earlier epoch, the first sequence that is not in it any more.
    epoch_ends: dict[int, int] = field(default_factory=dict)


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
