"""The known loss of a log: after which batch, since when, and at most how much.

Of batches that cannot be read it is not known what they decided, and which offsets they gave out. As long as nobody has
accepted their loss, the container serves what is left and changes nothing: not even its files, so that those which are
missing can be put back. Accepting the loss is the business of `repair`.

    damage in the log                                  is missing
    of batches whose appends are all known by name     nothing: their ranges are damaged, no offset is given twice
    of batches that the checkpoint contains            nothing but bytes: the same
    of a record, or of batches of unknown content      what the damage may have held
    the log ends before what the checkpoint contains   what came after that, at most a whole log
    no log is there, beside a checkpoint               the same
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from millrace.server.errors import ContentLostError
from millrace.server.wal import AcceptedLoss, Damage, RecoveredBatch, RecoveryReport
from millrace.wire.limits import KIB

ACCEPTED_SOURCE: Final = "the part of the log whose loss was accepted"
"""Where damaged ranges are said to be that a segment has since then."""
REASONS_COUNT_MAX: Final = 5
BATCH_SIZE_BYTES_MIN: Final = 64
ID_SIZE_BYTES_MIN: Final = 16
"""No record gives more than one id for so many bytes."""
EPOCH_SIZE_BYTES_MIN: Final = 64
"""No record begins more than one epoch for so many bytes."""
EPOCHS_COUNT_MAX: Final = 1 << 24
"""Epochs have 32 bits: a loss takes at most this part of them, many more than can have begun in any log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLoss:
    """Content of a log that may have been acknowledged, and is missing.

    Attributes:
        first_sequence, last_sequence: of the batches that are missing, as far as they are known.
        since_us: when the last batch before them was written, Unix microseconds; 0 if there was none.
        size_bytes: how much of the log they can have filled at most.
        reasons: what was found, with the names of files or objects.
        store: URL of the object store that has the log; empty if that is in the folder.
    """

    first_sequence: int
    last_sequence: int
    since_us: int
    size_bytes: int
    reasons: tuple[str, ...]
    store: str = ""

    @property
    def batches_count_max(self) -> int:
        """How many batches can be missing at most."""
        return max(self.last_sequence - self.first_sequence, self.size_bytes // BATCH_SIZE_BYTES_MIN) + 1

    @property
    def ids_count_max(self) -> int:
        """How many ids the missing records can have given at most."""
        return self.size_bytes // ID_SIZE_BYTES_MIN + 1

    @property
    def epochs_count_max(self) -> int:
        """How many epochs of one writer, or one stream, the missing records can have begun at most."""
        return min(self.size_bytes // EPOCH_SIZE_BYTES_MIN + 1, EPOCHS_COUNT_MAX)

    @property
    def since(self) -> str:
        """When what is missing began, in UTC."""
        if not self.since_us:
            return "the beginning"
        return datetime.fromtimestamp(self.since_us / 1e6, UTC).isoformat(timespec="milliseconds")

    def __str__(self) -> str:
        return (
            f"the log has lost its content after batch {self.first_sequence - 1}, since {self.since}, at most "
            f"{-(-self.size_bytes // KIB)} KiB of it: {'; '.join(self.reasons)}"
        )

    def error(self) -> ContentLostError:
        """Return what requests are told that would change anything, or ask for what is not proven."""
        return ContentLostError(
            f"{self}. It may have been acknowledged, so the container is read-only until {self.remedy}"
        )

    @property
    def remedy(self) -> str:
        """The remedy for an operator, as a clause that continues "until"."""
        if self.store:
            return (
                "the objects are restored, from older versions if the bucket keeps those, and a server is started "
                f"again, or the loss is accepted with `millrace repair --store {self.store} --accept-loss`"
            )
        return (
            "the files are restored and the server is started again, or the loss is accepted with `millrace repair "
            "FOLDER --accept-loss`"
        )


class LossFinder:
    """Finds out what a log has lost, while it is read back.

    Args:
        checkpoint_sequence: of the last batch that the checkpoint contains, 0 without one.
        checkpoint_time_us: when that was written, Unix microseconds.
        accepted: what is accepted.
        has_log: whether the checkpoint was stored beside a log.
        store: as of `LogLoss`.
    """

    def __init__(
        self,
        *,
        checkpoint_sequence: int,
        checkpoint_time_us: int,
        accepted: AcceptedLoss,
        has_log: bool,
        store: str = "",
    ) -> None:
        self._checkpoint_sequence = checkpoint_sequence
        self._accepted = accepted
        self._has_log = has_log
        self._read_us = checkpoint_time_us
        self._since_us = 0
        self._damages: list[Damage] = []
        self._missing_checkpoint = ""
        self._store = store

    def miss_checkpoint(self, reason: str) -> None:
        """Note that there is no checkpoint, and that the log does not go back to its beginning."""
        self._missing_checkpoint = reason

    def read(self, item: RecoveredBatch | Damage) -> None:
        """Take into account what was read from the log, in its order."""
        if isinstance(item, RecoveredBatch):
            if item.sequence > self._checkpoint_sequence:
                self._read_us = item.wall_time_us
        elif _has_unknown_content(item) and (item.is_end or item.last_sequence > self._checkpoint_sequence):
            if not self._damages:
                self._since_us = self._read_us
            self._damages.append(item)

    def loss(self, report: RecoveryReport, *, capacity_bytes: int) -> LogLoss | None:
        """Return what is missing, None if nothing is known to be; when the log was read to its end.

        Args:
            report: what reading the log has come to.
            capacity_bytes: the most that the log can have held.
        """
        reasons = [f"{damage.place}: {damage.reason}" for damage in self._damages]
        size_bytes = sum(damage.size if damage.is_bounded else capacity_bytes for damage in self._damages)
        first = min((damage.first_sequence for damage in self._damages), default=report.last_sequence + 1)
        last = max((damage.last_sequence for damage in self._damages), default=0)
        if self._has_log and not report.places and not reasons:
            reasons.append("the log beside the checkpoint is missing")
            size_bytes, first = capacity_bytes, self._checkpoint_sequence + 1
        elif max(report.last_sequence, self._accepted.sequence) < self._checkpoint_sequence:
            reasons.append(
                f"it ends at batch {report.last_sequence}, the checkpoint contains batch {self._checkpoint_sequence}"
            )
            size_bytes, first = capacity_bytes, self._checkpoint_sequence + 1
        if self._missing_checkpoint:
            reasons.insert(0, self._missing_checkpoint)
            size_bytes, first = capacity_bytes, 1
        if not reasons:
            return None
        return LogLoss(
            first_sequence=max(first, self._checkpoint_sequence + 1),
            last_sequence=max(last, report.last_sequence, self._checkpoint_sequence) + 1,
            since_us=self._since_us if self._damages else self._read_us,
            size_bytes=min(size_bytes, capacity_bytes),
            reasons=tuple(reasons[:REASONS_COUNT_MAX]),
            store=self._store,
        )


def _has_unknown_content(damage: Damage) -> bool:
    """Return whether it is not known what was decided there, or which offsets were given out."""
    return not damage.is_complete or any(not segment_id for segment_id, _, _ in damage.runs)
