"""Places in streams as Spark keeps them: the offset of a checkpoint, and the partition that one task reads.

An offset in a checkpoint, as JSON::

    {"cut": "shop/orders@12:4096.0,13:8192.17", "events": {"12": 130, "13": 217}, "lost": 0, "cursor": "spark-3f9c"}

`cut` may be given to any reader, and to this source as `startCut` or `endCut`; of several streams it is the cuts of
all, with semicolons between. `events` counts the events of each segment before the cut; `lost` counts those which the
query has skipped because they were truncated away, as far as they could be counted. `cursor` is the name under which
the server keeps the place of the query; before there were such names it is not there. After a stream was scaled,
offsets name other segments. This is version 1, which is not written; an offset of another version would say so in
`version`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from millrace.client.read.ranges import SegmentRange
from millrace.model.cut import StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.position import Mark

from .cut_lists import cuts_text, parse_cuts
from .errors import CheckpointError
from .snapshot import Marks, cut_of

OFFSET_VERSION: Final = 1
RANGE_COST_BYTES: Final = 1 << 20
"""What opening a range costs, as if it held so many bytes more; keeps thousands of small ranges out of one task."""

Places = Mapping[str, Marks]
"""A cut of each of some streams, by the name."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a streaming query has come. Equal offsets have equal JSON.

    Attributes:
        lost: events that were truncated away before the query read them, since its start.
        cursor: the name of the query on the server; empty where it has none yet.
    """

    places: Places
    lost: int = 0
    cursor: str = ""

    @property
    def cuts(self) -> dict[str, StreamCut]:
        """The cut of each stream alone."""
        return {stream: cut_of(stream, self.places[stream]) for stream in sorted(self.places)}

    @property
    def marks(self) -> dict[int, Mark]:
        """The places in the segments of all streams; no two streams share a segment."""
        return {segment_id: mark for marks in self.places.values() for segment_id, mark in marks.items()}

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes to the checkpoint."""
        events = {str(segment_id): mark.events for segment_id, mark in sorted(self.marks.items())}
        content = {"cut": cuts_text(self.cuts.values()), "events": events, "lost": self.lost}
        return {**content, "cursor": self.cursor} if self.cursor else content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "StreamOffset":
        """Return the offset that `to_json` made this of.

        Raises:
            CheckpointError: it made no such thing.
        """
        version = content.get("version", OFFSET_VERSION)
        if version != OFFSET_VERSION:
            raise CheckpointError(
                f"the checkpoint has offsets of version {version!r}, and this Millrace knows version {OFFSET_VERSION}"
            )
        try:
            events = {int(segment_id): int(count) for segment_id, count in content["events"].items()}
            places = {
                cut.stream: {segment_id: Mark(*place, events[segment_id]) for segment_id, place in cut.positions}
                for cut in parse_cuts(content["cut"])
            }
            return cls(places, int(content.get("lost", 0)), str(content.get("cursor", "")))
        except (InvalidArgumentError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{str(content)[:200]} is no offset of this source: {error}") from None


class RangePartition(InputPartition):
    """What one task reads: ranges, one after the other.

    Args:
        streams: the name of the stream of each segment.
    """

    def __init__(self, ranges: Sequence[SegmentRange], streams: Mapping[int, str]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.streams = {part.segment_id: streams[part.segment_id] for part in ranges}

    def __repr__(self) -> str:
        return f"RangePartition({self.ranges!r})"


def pack(
    ranges: Sequence[SegmentRange], *, size_bytes: int | None, apart: Collection[int] = ()
) -> list[list[SegmentRange]]:
    """Return the ranges of each partition: neighbours, in their order, about `size_bytes` in all or one larger range.

    Args:
        size_bytes: None: one range in each.
        apart: segments whose ranges are partitions of their own.
    """
    partitions: list[list[SegmentRange]] = []
    room_bytes = 0
    for part in ranges:
        cost = part.size_bytes + RANGE_COST_BYTES
        is_apart = size_bytes is None or part.segment_id in apart
        if is_apart or cost > room_bytes:
            partitions.append([])
            room_bytes = size_bytes or 0
        partitions[-1].append(part)
        room_bytes = 0 if is_apart else room_bytes - cost
    return partitions
