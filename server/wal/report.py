"""The results of recovering a log: batches, damage, and where the log continues."""

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from millrace.wire.append_run import AppendRun

from .batch import FileHeader
from .log_end import Ending


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The owner of a log; stored in each file."""

    container_id: int
    # Identity of the data folder.
    server_id: uuid.UUID

    def __str__(self) -> str:
        return f"container {self.container_id} of server {self.server_id}"


class AcceptedLoss(NamedTuple):
    """A loss that an operator has accepted: damage in it, and in everything before it, is not reported."""

    sequence: int = 0
    # Of the newest file that batches may have been written to by then.
    file_number: int = 0


NOTHING_ACCEPTED: Final = AcceptedLoss()


@dataclass(slots=True)
class RecoveredBatch:
    """A recovered batch. Damaged runs are left out; the `Damage` before it names them."""

    sequence: int
    # Clock of the log when it was written, Unix microseconds.
    wall_time_us: int
    runs: list[AppendRun]
    # The name of the file in the folder of the log.
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
    # Whether `runs` names everything that was lost; otherwise any segment may have lost something here.
    is_complete: bool = False
    # Whether everything lost lay in these bytes; otherwise files are missing, and at most a whole log is lost.
    is_bounded: bool = True
    # Whether the end of the log is lost: any number of batches may have followed.
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
    """The result of recovering a log, so far."""

    # CORRUPT if there is any damage, else how the log ends.
    ending: Ending = Ending.END
    # Bytes of the incomplete batch at the end; they were never acknowledged, and are truncated.
    torn_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    # 0 if the log has no batch.
    first_sequence: int = 0
    last_sequence: int = 0
    batch_count: int = 0
    size_bytes: int = 0
    # Names of the files.
    places: tuple[str, ...] = ()
    # Where the log ends in its last file, 0 if there is none.
    end_offset: int = 0
    # The highest number of a file that batches were, or may have been, written to, including missing files.
    used_file_number: int = 0
    # For a log in an object store: for each earlier epoch, the first sequence that is not part of it.
    epoch_ends: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class FoundFile:
    """A log file as recovery met it."""

    number: int
    path: Path
    header: FileHeader | None = None
    salt: int | None = None
    size_bytes: int = 0
    # The highest sequence that is, or was, in the log; 0 if there is none.
    last_sequence: int = 0
    is_damaged: bool = False
