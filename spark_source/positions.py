"""Places in a stream as Spark keeps them: the offset of a checkpoint, and the partition that one task reads.

An offset in a checkpoint, as JSON::

    {"cut": "shop/orders@12:4096.0,13:8192.17", "events": {"12": 130, "13": 217}, "lost": 0}

`cut` may be given to any reader, and to this source as `startCut` or `endCut`. `events` counts the events of each
segment before the cut; `lost` counts those which the query has skipped because they were truncated away, as far as
they could be counted. After a stream was scaled, offsets name other segments. This is version 1, which is not
written; an offset of another version would say so in `version`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from millrace.client.read.ranges import SegmentRange
from millrace.model.cut import StreamCut
from millrace.model.errors import CutInvalidError
from millrace.model.position import Mark

from .errors import CheckpointError
from .snapshot import Marks, cut_of

OFFSET_VERSION: Final = 1
RANGE_COST_BYTES: Final = 1 << 20
"""What opening a range costs, as if it held so many bytes more; keeps thousands of small ranges out of one task."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a streaming query has come. Equal offsets have equal JSON.

    Attributes:
        lost: events that were truncated away before the query read them, since its start.
    """

    stream: str
    marks: Marks
    lost: int = 0

    @property
    def cut(self) -> StreamCut:
        """The cut alone."""
        return cut_of(self.stream, self.marks)

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes to the checkpoint."""
        events = {str(segment_id): self.marks[segment_id].events for segment_id in sorted(self.marks)}
        return {"cut": str(self.cut), "events": events, "lost": self.lost}

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
            cut = StreamCut.parse(content["cut"])
            events = {int(segment_id): int(count) for segment_id, count in content["events"].items()}
            marks = {segment_id: Mark(*place, events[segment_id]) for segment_id, place in cut.positions}
            return cls(cut.stream, marks, int(content.get("lost", 0)))
        except (CutInvalidError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{str(content)[:200]} is no offset of this source: {error}") from None


class RangePartition(InputPartition):
    """What one task reads: ranges, one after the other."""

    def __init__(self, ranges: Sequence[SegmentRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"RangePartition({self.ranges!r})"


def pack(ranges: Sequence[SegmentRange], *, partition_bytes: int) -> list[RangePartition]:
    """Return partitions of neighbouring ranges, in their order, each of about `partition_bytes` or one larger range."""
    partitions: list[RangePartition] = []
    gathered: list[SegmentRange] = []
    gathered_bytes = 0
    for part in ranges:
        cost = part.size_bytes + RANGE_COST_BYTES
        if gathered and gathered_bytes + cost > partition_bytes:
            partitions.append(RangePartition(gathered))
            gathered, gathered_bytes = [], 0
        gathered.append(part)
        gathered_bytes += cost
    if gathered:
        partitions.append(RangePartition(gathered))
    return partitions
