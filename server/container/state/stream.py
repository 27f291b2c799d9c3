"""The state of one stream in memory: its segments over all epochs, and the cuts kept for it.

At any time the open segments of a stream partition the key space. Scaling replaces some of them by successors, which is
a new epoch; which segment precedes which is told by `millrace.model.lineage`.
"""

from dataclasses import replace

from millrace.model.key_range import KeyRange
from millrace.model.lineage import Epoch, StreamPart, parts_of_history
from millrace.wire import messages as m


class Stream:
    """A stream; `parts` holds every segment that still has something to read, in the order of creation."""

    __slots__ = (
        "admitted_epoch", "closing", "configuration", "created_us", "cuts", "epoch", "epochs",
        "name", "parts", "sealed", "stream_id",
    )  # fmt: skip

    def __init__(
        self, *, stream_id: int, name: str, configuration: str, created_us: int, epoch: int = 0, sealed: bool = False
    ) -> None:
        self.stream_id = stream_id
        self.name = name
        self.configuration = configuration
        self.created_us = created_us
        self.parts: list[StreamPart] = []
        self.epoch = epoch
        self.epochs: list[m.EpochRecord] = []
        # By kind and name.
        self.cuts: dict[tuple[int, str], m.SavedCut] = {}
        self.sealed = sealed
        # Admitted: a seal or a delete is queued; the epoch that a queued scale begins.
        self.closing = False
        self.admitted_epoch = epoch

    @property
    def segment_ids(self) -> list[int]:
        """The ids of all parts."""
        return [part.segment_id for part in self.parts]

    @property
    def open_parts(self) -> list[StreamPart]:
        """The parts of the current epoch, in the order of their keys."""
        return sorted((part for part in self.parts if not part.sealed_epoch), key=lambda part: part.key_range)

    def part(self, segment_id: int) -> StreamPart | None:
        """Return the part of a segment, None if it has none (any more)."""
        return next((part for part in self.parts if part.segment_id == segment_id), None)

    def history(self) -> list[StreamPart]:
        """Return every segment that the stream ever had."""
        return parts_of_history(
            Epoch(
                number=epoch.number,
                started_us=epoch.started_us,
                cause=epoch.cause,
                sealed_ids=tuple(epoch.sealed_ids),
                created=tuple((segment_id, KeyRange.inclusive(low, last)) for segment_id, low, last in epoch.created),
            )
            for epoch in self.epochs
        )

    def begin_epoch(self, record: m.EpochRecord) -> None:
        """Replace parts by their successors."""
        sealed = set(record.sealed_ids)
        self.parts = [
            replace(part, sealed_epoch=record.number) if part.segment_id in sealed else part for part in self.parts
        ]
        self.parts += [
            StreamPart(segment_id=segment_id, key_range=KeyRange.inclusive(low, last), epoch=record.number)
            for segment_id, low, last in record.created
        ]
        self.epoch = record.number
        self.admitted_epoch = max(self.admitted_epoch, self.epoch)
        self.epochs.append(record)
