"""Streams as a caller configures and sees them."""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from millrace.client.cuts import StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.lineage import Epoch, Lineage, StreamPart
from millrace.wire import messages as m

SCALING_FACTOR_MAX: Final = 16
FLOAT_ERROR: Final = 1 << 12
"""How far a float near 1 may be from the border that it stands for, out of 2^64: two of its steps."""
_SCALING_KINDS: Final = ("fixed", "bytes", "events")
_RETENTION_KINDS: Final = ("size", "time", "consumption")

Border = int | float | Fraction


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How many segments a stream has, and when that changes.

    Attributes:
        kind: `fixed`, `bytes` or `events`.
        segment_count: with which the stream starts, and fewer than which it never has.
        target_per_s: bytes or events per second that one segment is meant to take; 0 where the number is fixed.
        factor: into how many a segment is split that takes more.
    """

    kind: str
    segment_count: int
    target_per_s: int = 0
    factor: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.segment_count <= SEGMENTS_PER_STREAM_MAX:
            raise InvalidArgumentError(
                f"a stream has 1 to {SEGMENTS_PER_STREAM_MAX} segments, not {self.segment_count}"
            )
        if self.kind not in _SCALING_KINDS:
            raise InvalidArgumentError(f"the kind of a scaling policy is one of {_SCALING_KINDS}, not {self.kind!r}")
        if (self.target_per_s > 0) == (self.kind == "fixed"):
            raise InvalidArgumentError(f"target_per_s={self.target_per_s} makes no sense with kind {self.kind!r}")
        if not 2 <= self.factor <= SCALING_FACTOR_MAX:
            raise InvalidArgumentError(f"factor={self.factor} must be 2 to {SCALING_FACTOR_MAX}")

    @classmethod
    def fixed(cls, segment_count: int) -> "ScalingPolicy":
        """Return the policy of a stream whose number of segments does not change by itself."""
        return cls("fixed", segment_count)

    @classmethod
    def by_bytes_per_s(cls, target: int, *, factor: int = 2, min_segments: int = 1) -> "ScalingPolicy":
        """Return the policy that splits segments which take more bytes per second, and merges those that take less."""
        return cls("bytes", min_segments, target, factor)

    @classmethod
    def by_events_per_s(cls, target: int, *, factor: int = 2, min_segments: int = 1) -> "ScalingPolicy":
        """Return the policy that splits segments which take more events per second, and merges those that take few."""
        return cls("events", min_segments, target, factor)

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as it stands in the JSON of a configuration."""
        if self.kind == "fixed":
            return {"kind": self.kind, "segment_count": self.segment_count}
        return {
            "kind": self.kind,
            "target_per_s": self.target_per_s,
            "factor": self.factor,
            "min_segments": self.segment_count,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "ScalingPolicy":
        """Return the policy that `to_dict` wrote."""
        kind = str(content["kind"])
        if kind == "fixed":
            return cls.fixed(int(content["segment_count"]))
        return cls(
            kind, int(content.get("min_segments", 1)), int(content["target_per_s"]), int(content.get("factor", 2))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What of a stream is dropped by itself. Made by `by_size`, `by_time` or `by_consumption`.

    Attributes:
        kind: `size`, `time` or `consumption`.
        min_bytes, max_bytes: never less than the one is left, never more than the other.
        min_age_s, max_age_s: what is younger than the one stays, what is older than the other goes.
    """

    kind: str
    min_bytes: int | None = None
    max_bytes: int | None = None
    min_age_s: float | None = None
    max_age_s: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in _RETENTION_KINDS:
            raise InvalidArgumentError(
                f"the kind of a retention policy is one of {_RETENTION_KINDS}, not {self.kind!r}"
            )
        for least, most, name in (
            (self.min_bytes, self.max_bytes, "bytes"),
            (self.min_age_s, self.max_age_s, "age_s"),
        ):
            if min(least or 0, most or 0) < 0 or (least is not None and most is not None and least > most):
                raise InvalidArgumentError(f"0 <= min_{name} <= max_{name} must hold, not {least} and {most}")
        needed = {"size": self.max_bytes, "time": self.max_age_s}
        if self.kind in needed and needed[self.kind] is None:
            raise InvalidArgumentError(f"retention by {self.kind} needs a maximum")

    @classmethod
    def by_size(cls, *, max_bytes: int, min_bytes: int | None = None) -> "RetentionPolicy":
        """Return the policy that keeps at most so many bytes, and never drops so many that fewer are left."""
        return cls(kind="size", min_bytes=min_bytes, max_bytes=max_bytes)

    @classmethod
    def by_time(
        cls, *, max_age_s: float, min_bytes: int | None = None, max_bytes: int | None = None
    ) -> "RetentionPolicy":
        """Return the policy that drops what was written longer ago, inside bounds of size if there are some."""
        return cls(kind="time", max_age_s=max_age_s, min_bytes=min_bytes, max_bytes=max_bytes)

    @classmethod
    def by_consumption(
        cls,
        *,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        min_age_s: float | None = None,
        max_age_s: float | None = None,
    ) -> "RetentionPolicy":
        """Return the policy that drops what every registered cursor has passed.

        What is above a maximum goes even if a cursor has not passed it; what is below a minimum stays.
        """
        return cls(
            kind="consumption", min_bytes=min_bytes, max_bytes=max_bytes, min_age_s=min_age_s, max_age_s=max_age_s
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as it stands in the JSON of a configuration."""
        return {
            "kind": self.kind,
            "min_bytes": self.min_bytes,
            "max_bytes": self.max_bytes,
            "min_age_s": self.min_age_s,
            "max_age_s": self.max_age_s,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "RetentionPolicy":
        """Return the policy that `to_dict` wrote."""

        def number(name: str, kind: type[int] | type[float]) -> Any:
            return None if content.get(name) is None else kind(content[name])

        return cls(
            kind=str(content["kind"]),
            min_bytes=number("min_bytes", int),
            max_bytes=number("max_bytes", int),
            min_age_s=number("min_age_s", float),
            max_age_s=number("max_age_s", float),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Configuration of a stream.

    Attributes:
        retention: None: everything is kept until it is truncated.
        tags: by which streams are found in a listing.
    """

    scaling: ScalingPolicy = field(default_factory=lambda: ScalingPolicy.fixed(1))
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.tags, str) or not all(
            isinstance(tag, str) and tag.isprintable() and tag for tag in self.tags
        ):
            raise InvalidArgumentError(f"tags are texts of printable characters, not {self.tags!r}")
        object.__setattr__(self, "tags", tuple(sorted(set(self.tags))))

    def to_json(self) -> str:
        """Return the text that is kept with the stream."""
        content: dict[str, Any] = {
            "scaling": self.scaling.to_dict(),
            "retention": None if self.retention is None else self.retention.to_dict(),
        }
        if self.tags:
            content["tags"] = list(self.tags)
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "StreamConfig":
        """Return the configuration in a text that `to_json` made. What a newer version added is left out.

        Raises:
            InvalidArgumentError: another text.
        """
        try:
            content: dict[str, Any] = json.loads(text)
            retention = content.get("retention")
            return cls(
                scaling=ScalingPolicy.from_dict(content["scaling"]),
                retention=None if retention is None else RetentionPolicy.from_dict(retention),
                tags=tuple(content.get("tags") or ()),
            )
        except InvalidArgumentError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"{text[:100]!r} is no stream configuration: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSegment(StreamPart):
    """A segment of a stream as it was when the server answered.

    Attributes:
        event_count: events appended since it was created, those truncated included.
    """

    start_offset: int = 0
    length: int = 0
    event_count: int = 0
    sealed: bool = False

    @property
    def low(self) -> float:
        """Where its part of the key space begins, out of 1."""
        return self.key_range.fractions[0]

    @property
    def high(self) -> float:
        """Where its part of the key space ends, out of 1; the end belongs to the next one."""
        return self.key_range.fractions[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream as it was when the server answered.

    Attributes:
        epoch: how often it was scaled.
        segments: all that hold something still, those replaced by others too, in the order in which they came to be.
    """

    name: str
    stream_id: int
    created_us: int
    epoch: int
    sealed: bool
    configuration: StreamConfig
    segments: tuple[StreamSegment, ...]

    @property
    def open_segments(self) -> tuple[StreamSegment, ...]:
        """The segments that nothing has replaced, in the order of their keys."""
        return tuple(self.lineage().tail())

    def lineage(self) -> Lineage[StreamSegment]:
        """Return who precedes whom."""
        return Lineage(self.segments)

    def head(self) -> StreamCut:
        """Return where the stream started then."""
        return StreamCut.of(
            self.name, {segment.segment_id: (segment.start_offset, 0) for segment in self.lineage().head()}
        )

    def tail(self) -> StreamCut:
        """Return where the stream ended then."""
        return StreamCut.of(self.name, {segment.segment_id: (segment.length, 0) for segment in self.lineage().tail()})

    def progress(self, cut: StreamCut) -> dict[int, tuple[int, int]]:
        """Return how far each segment lies before a cut: its end, nothing of it, or the place in the cut."""
        return self.lineage().progress(cut.places, start=(0, 0), end_of=lambda segment: (segment.length, 0))

    @property
    def size_bytes(self) -> int:
        """Bytes that can be read."""
        return sum(segment.length - segment.start_offset for segment in self.segments)


def stream_info(message: m.StreamInfo) -> StreamInfo:
    """Return what a message says of a stream."""
    configuration = StreamConfig.from_json(message.configuration) if message.configuration else StreamConfig()
    return StreamInfo(
        name=message.name,
        stream_id=message.stream_id,
        created_us=message.created_us,
        epoch=message.epoch,
        sealed=bool(message.sealed),
        configuration=configuration,
        segments=tuple(
            StreamSegment(
                segment_id=segment.segment_id,
                key_range=KeyRange.inclusive(segment.low, segment.last),
                epoch=segment.epoch,
                sealed_epoch=segment.sealed_epoch,
                start_offset=segment.start_offset,
                length=segment.length,
                event_count=segment.event_count,
                sealed=bool(segment.sealed),
            )
            for segment in message.segments
        ),
    )


def stream_history(message: m.StreamHistory) -> list[Epoch]:
    """Return what a message says of the epochs of a stream."""
    return [
        Epoch(
            number=epoch.number,
            started_us=epoch.started_us,
            cause=epoch.cause,
            sealed_ids=tuple(epoch.sealed_ids),
            created=tuple((segment_id, KeyRange.inclusive(low, last)) for segment_id, low, last in epoch.created),
        )
        for epoch in message.epochs
    ]


def scaled_ranges(ranges: Iterable[tuple[Border, Border]], *, segments: Iterable[StreamPart]) -> list[KeyRange]:
    """Return the exact ranges of keys that a caller means.

    A border is a number from 0 to 1, or an exact integer above 1 out of 2^64. A float so near to a border of one of
    `segments` that both are printed the same is that border: 1/3 of the key space is no float.

    Raises:
        InvalidArgumentError: a range is empty, or lies outside of the key space.
    """
    known = sorted({border for segment in segments for border in (segment.key_range.low, segment.key_range.high)})
    found = []
    for low, high in ranges:
        try:
            found.append(KeyRange(_border(low, known), _border(high, known)))
        except ValueError as error:
            raise InvalidArgumentError(f"({low}, {high}) is no range of keys: {error}") from None
    return found


def _border(value: Border, known: Sequence[int]) -> int:
    if isinstance(value, int) and value > 1:
        return value
    if not 0 <= value <= 1:
        raise InvalidArgumentError(f"a border of a range of keys is a number from 0 to 1, not {value}")
    exact = math.floor(Fraction(value) * KEY_SPACE)
    if isinstance(value, float):
        place = bisect_left(known, exact)
        near = [border for border in known[max(0, place - 1) : place + 1] if abs(border - exact) <= FLOAT_ERROR]
        return min(near, key=lambda border: abs(border - exact), default=exact)
    return exact
