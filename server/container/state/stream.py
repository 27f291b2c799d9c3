"""The state of one stream in memory: its segments over all epochs, and the cuts kept for it.

At any time the open segments of a stream partition the key space. Scaling replaces some of them by successors, which is
a new epoch; which segment precedes which is told by `millrace.model.lineage`.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from millrace.model.key_range import KeyRange
from millrace.model.lineage import StreamPart, parts_of_history
from millrace.wire import messages as m

STREAM_SIZE_BYTES: Final = 1500
PART_SIZE_BYTES: Final = 300
EPOCH_SIZE_BYTES: Final = 450
EPOCH_SEGMENT_SIZE_BYTES: Final = 150
CUT_SIZE_BYTES: Final = 500
CUT_POSITION_SIZE_BYTES: Final = 200
"""Memory of a stream, and of one of what it has many of (measured, rounded up)."""


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """A stream; `parts` holds every segment that still has something to read, in the order of creation.

    The list of its parts is replaced when they change, and never changed itself.
    """

    stream_id: int
    name: str
    configuration: str
    created_us: int
    parts: list[StreamPart] = field(default_factory=list)
    epoch: int = 0
    epochs: list[m.EpochRecord] = field(default_factory=list)
    # By kind and name.
    cuts: dict[tuple[int, str], m.SavedCut] = field(default_factory=dict)
    sealed: bool = False
    # Admitted: the epoch after the commits that are queued.
    admitted_epoch: int = field(init=False)
    # Those of `_parts_seen` that are open: every commit asks for them several times.
    _open_parts: tuple[StreamPart, ...] = field(default=(), init=False, repr=False)
    _parts_seen: list[StreamPart] | None = field(default=None, init=False, repr=False)
    # The same in the form in which transactions have them; None until one begins.
    _routes: m.TransactionStream | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin with the admitted view of the durable one."""
        self.admit_as_durable()

    def admit_as_durable(self) -> None:
        """Let the admitted view be the durable one: nothing is queued."""
        self.admitted_epoch = self.epoch

    @property
    def memory_bytes(self) -> int:
        """About how much memory this takes, without its segments."""
        return (
            STREAM_SIZE_BYTES
            + len(self.configuration)
            + PART_SIZE_BYTES * len(self.parts)
            + EPOCH_SIZE_BYTES * len(self.epochs)
            + EPOCH_SEGMENT_SIZE_BYTES * sum(len(epoch.sealed_ids) + len(epoch.created) for epoch in self.epochs)
            + CUT_SIZE_BYTES * len(self.cuts)
            + CUT_POSITION_SIZE_BYTES * sum(len(cut.positions) for cut in self.cuts.values())
        )

    @property
    def segment_ids(self) -> list[int]:
        """The ids of all parts."""
        return [part.segment_id for part in self.parts]

    @property
    def open_parts(self) -> tuple[StreamPart, ...]:
        """The parts of the current epoch, in the order of their keys."""
        if self._parts_seen is not self.parts:
            self._parts_seen, self._routes = self.parts, None
            self._open_parts = tuple(
                sorted((part for part in self.parts if not part.sealed_epoch), key=lambda part: part.key_range.low)
            )
        return self._open_parts

    @property
    def routes(self) -> m.TransactionStream:
        """The parts of the current epoch, by which all route who write to a transaction that begins now."""
        parts = self.open_parts
        if self._routes is None or self._routes.epoch != self.epoch:
            ranges = [m.SegmentRangeRecord(part.segment_id, part.key_range.low, part.key_range.last) for part in parts]
            self._routes = m.TransactionStream(self.stream_id, self.epoch, ranges)
        return self._routes

    def part(self, segment_id: int) -> StreamPart | None:
        """Return the part of a segment, None if it has none (any more)."""
        return next((part for part in self.parts if part.segment_id == segment_id), None)

    def history(self) -> list[StreamPart]:
        """Return every segment that the stream ever had."""
        return parts_of_history(epoch.epoch() for epoch in self.epochs)

    def begin_epoch(self, record: m.EpochRecord) -> None:
        """Replace parts by their successors."""
        sealed = set(record.sealed_ids)
        kept = [replace(part, sealed_epoch=record.number) if part.segment_id in sealed else part for part in self.parts]
        created = [
            StreamPart(segment_id=segment_id, key_range=KeyRange.inclusive(low, last), epoch=record.number)
            for segment_id, low, last in record.created
        ]
        self.parts = kept + created
        self.epoch = record.number
        self.admitted_epoch = max(self.admitted_epoch, record.number)
        self.epochs.append(record)
