"""Streams as a caller configures and sees them."""

import json
from dataclasses import dataclass, field
from typing import Any

from millrace.wire.frames import StreamInfo as StreamInfoMessage
from millrace.wire.frames import StreamSegment as StreamSegmentMessage
from millrace.wire.limits import SEGMENTS_PER_STREAM_MAX
from millrace.wire.names import KEY_SPACE

from .cuts import StreamCut
from .errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How many segments a stream has, and when that changes."""

    kind: str
    segment_count: int

    def __post_init__(self) -> None:
        if not 1 <= self.segment_count <= SEGMENTS_PER_STREAM_MAX:
            raise InvalidArgumentError(
                f"a stream has 1 to {SEGMENTS_PER_STREAM_MAX} segments, not {self.segment_count}"
            )

    @classmethod
    def fixed(cls, segment_count: int) -> "ScalingPolicy":
        """Return the policy of a stream whose number of segments does not change by itself."""
        return cls("fixed", segment_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Configuration of a stream.

    Attributes:
        retention: None: everything is kept until it is truncated.
    """

    scaling: ScalingPolicy = field(default_factory=lambda: ScalingPolicy.fixed(1))
    retention: None = None

    def to_json(self) -> str:
        """Return the text that is kept with the stream."""
        scaling = {"kind": self.scaling.kind, "segment_count": self.scaling.segment_count}
        return json.dumps({"scaling": scaling, "retention": self.retention}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "StreamConfig":
        """Return the configuration in a text that `to_json` made. What a newer version added is left out.

        Raises:
            InvalidArgumentError: another text.
        """
        try:
            content: dict[str, Any] = json.loads(text)
            scaling = content["scaling"]
            return cls(scaling=ScalingPolicy(str(scaling["kind"]), int(scaling["segment_count"])))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"{text[:100]!r} is no stream configuration: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSegment:
    """A segment of a stream.

    Attributes:
        low, high: its part of the key space, [low, high) out of 1.
        event_count: events appended since it was created, those truncated included.
    """

    segment_id: int
    low: float
    high: float
    start_offset: int
    length: int
    event_count: int
    sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream as it was when the server answered."""

    name: str
    stream_id: int
    created_us: int
    sealed: bool
    configuration: StreamConfig
    segments: tuple[StreamSegment, ...]

    def head(self) -> StreamCut:
        """Return where the stream started then."""
        return StreamCut.of(self.name, {segment.segment_id: (segment.start_offset, 0) for segment in self.segments})

    def tail(self) -> StreamCut:
        """Return where the stream ended then."""
        return StreamCut.of(self.name, {segment.segment_id: (segment.length, 0) for segment in self.segments})

    @property
    def size_bytes(self) -> int:
        """Bytes that can be read."""
        return sum(segment.length - segment.start_offset for segment in self.segments)


def stream_info(message: StreamInfoMessage) -> StreamInfo:
    """Return what a message says of a stream."""
    configuration = StreamConfig.from_json(message.configuration) if message.configuration else StreamConfig()
    return StreamInfo(
        name=message.name,
        stream_id=message.stream_id,
        created_us=message.created_us,
        sealed=bool(message.sealed),
        configuration=configuration,
        segments=tuple(_segment(segment) for segment in message.segments),
    )


def _segment(message: StreamSegmentMessage) -> StreamSegment:
    return StreamSegment(
        segment_id=message.segment_id,
        low=message.low / KEY_SPACE,
        high=(message.last + 1) / KEY_SPACE,
        start_offset=message.start_offset,
        length=message.length,
        event_count=message.event_count,
        sealed=bool(message.sealed),
    )
