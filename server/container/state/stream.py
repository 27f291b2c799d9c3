"""The state of one stream in memory: its segments over all epochs, and the cuts kept for it.

At any time the open segments of a stream partition the key space. Scaling replaces some of them by *successors* that
cover the same keys: the replaced ones are sealed, and a new *epoch* begins. A segment knows the epoch it came with and
the epoch that replaced it; who precedes and who succeeds whom follows from that and from the overlap of key ranges.
"""

from collections.abc import Iterable
from typing import NamedTuple

from millrace.wire import messages as m


class StreamPart(NamedTuple):
    """A segment of a stream: the keys from `low` to `last` inclusive, from one epoch until another."""

    segment_id: int
    low: int
    last: int
    epoch: int
    sealed_epoch: int  # which replaced it; 0 while none did

    def overlaps(self, low: int, last: int) -> bool:
        """Return whether any key of [low, last] falls into this part."""
        return self.low <= last and low <= self.last

    def precedes(self, other: "StreamPart") -> bool:
        """Return whether events of some key were written here before they were written to `other`."""
        return 0 < self.sealed_epoch <= other.epoch and self.overlaps(other.low, other.last)


class Stream:
    """A stream; `parts` holds every segment that still has something to read, in the order of creation."""

    __slots__ = (
        "__weakref__", "admitted_epoch", "closing", "configuration", "created_us", "cuts", "epoch", "epochs",
        "name", "parts", "sealed", "stream_id",
    )  # fmt: skip

    def __init__(self, *, stream_id: int, name: str, configuration: str, created_us: int) -> None:
        self.stream_id = stream_id
        self.name = name
        self.configuration = configuration
        self.created_us = created_us
        self.parts: list[StreamPart] = []
        self.epoch = 0
        self.epochs: list[m.EpochRecord] = []
        # By kind and name.
        self.cuts: dict[tuple[int, str], m.SavedCut] = {}
        self.sealed = False
        # Admitted: a seal or a delete is queued; the epoch that a queued scale begins.
        self.closing = False
        self.admitted_epoch = 0

    @property
    def segment_ids(self) -> list[int]:
        """The ids of all parts."""
        return [part.segment_id for part in self.parts]

    @property
    def open_parts(self) -> list[StreamPart]:
        """The parts of the current epoch, in the order of their keys."""
        return sorted((part for part in self.parts if not part.sealed_epoch), key=lambda part: part.low)

    def part(self, segment_id: int) -> StreamPart | None:
        """Return the part of a segment, None if it has none (any more)."""
        return next((part for part in self.parts if part.segment_id == segment_id), None)

    def begin_epoch(self, record: m.EpochRecord) -> None:
        """Replace parts by their successors."""
        sealed = set(record.sealed_ids)
        self.parts = [
            part._replace(sealed_epoch=record.number) if part.segment_id in sealed else part for part in self.parts
        ]
        self.parts += [StreamPart(segment_id, low, last, record.number, 0) for segment_id, low, last in record.created]
        self.epoch = record.number
        self.admitted_epoch = max(self.admitted_epoch, self.epoch)
        self.epochs.append(record)


def covers_key_space_once(ranges: Iterable[tuple[int, int]]) -> bool:
    """Return whether inclusive ranges cover all keys, and each of them once."""
    expected = 0
    for low, last in sorted(ranges):
        if low != expected or last < low:
            return False
        expected = last + 1
    return expected == 1 << 64
