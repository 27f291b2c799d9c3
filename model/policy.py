"""The configuration of a stream: scaling, retention, and tags.

It is JSON, made by a client and stored by the server unchanged:

    {"scaling":   {"kind": "fixed" | "bytes" | "events",
                   "segment_count": N,        of a fixed number of segments
                   "target_per_s": N,         per segment; of "bytes" and "events"
                   "factor": 2,               the most parts into which a segment is split
                   "min_segments": 1},        merging leaves at least this many
     "retention": {"kind": "size" | "time" | "consumption",
                   "min_bytes", "max_bytes", "min_age_s", "max_age_s": N or null} or null,
     "tags":      ["winter", ...]}

Everything may be left out; an empty text is an empty object; unknown names are ignored. A wrong value is rejected, by
the client when the policy is made, by the server when the stream is created or updated.
"""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeVar

from .errors import InvalidArgumentError
from .event_times import EventTimeBounds
from .limits import SEGMENTS_PER_STREAM_MAX
from .shown import ShortRepr

TAGS_COUNT_MAX: Final = 64
TAG_SIZE_BYTES_MAX: Final = 100
FACTOR_MAX: Final = 16

KindT = TypeVar("KindT", bound=StrEnum)


class ScalingKind(StrEnum):
    """The unit of a scaling target."""

    FIXED = "fixed"  # none: the segments change only on request, or when another number is configured
    BYTES = "bytes"
    EVENTS = "events"


class RetentionKind(StrEnum):
    """What allows old events to be deleted, within the bounds of the policy."""

    SIZE = "size"
    TIME = "time"
    CONSUMPTION = "consumption"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """The number of segments of a stream, and when it changes. Made by `fixed`, `by_bytes_per_s` or `by_events_per_s`.

    Attributes:
        kind: a `ScalingKind`, or its text.
        segment_count: the stream starts with this many segments; merging leaves at least as many.
        target_per_s: target rate of one segment, in bytes or events per second; 0 if the number is fixed.
        factor: a segment above its target is split into 2 to this many.
    """

    kind: str = ScalingKind.FIXED
    segment_count: int = 1
    target_per_s: float = 0
    factor: int = 2

    def __post_init__(self) -> None:
        kind = _kind(ScalingKind, self.kind, "scaling.kind")
        object.__setattr__(self, "kind", kind)
        count = self.segment_count
        if not isinstance(count, int) or not 1 <= count <= SEGMENTS_PER_STREAM_MAX:
            raise InvalidArgumentError(f"a stream has 1 to {SEGMENTS_PER_STREAM_MAX} segments, not {count!r:.120}")
        if kind is not ScalingKind.FIXED and not _number(self.target_per_s, "scaling.target_per_s"):
            raise InvalidArgumentError("scaling.target_per_s must be above 0")
        if kind is ScalingKind.FIXED and self.target_per_s:
            raise InvalidArgumentError(f"target_per_s={self.target_per_s} makes no sense with kind {kind.value!r}")
        _whole(self.factor, "scaling.factor", low=2, high=FACTOR_MAX)

    def __repr__(self) -> str:
        """Return the call that makes it."""
        if self.kind == ScalingKind.FIXED:
            return f"ScalingPolicy.fixed({self.segment_count})"
        return (
            f"ScalingPolicy.by_{self.kind}_per_s({self.target_per_s}, factor={self.factor}, "
            f"min_segments={self.segment_count})"
        )

    @classmethod
    def fixed(cls, segment_count: int) -> "ScalingPolicy":
        """Return the policy of a stream that is scaled by hand only."""
        return cls(ScalingKind.FIXED, segment_count)

    @classmethod
    def by_bytes_per_s(cls, target: int, *, factor: int = 2, min_segments: int = 1) -> "ScalingPolicy":
        """Return the policy that splits segments above a rate in bytes per second, and merges segments far below it."""
        return cls(ScalingKind.BYTES, min_segments, target, factor)

    @classmethod
    def by_events_per_s(cls, target: int, *, factor: int = 2, min_segments: int = 1) -> "ScalingPolicy":
        """Return the policy that splits segments above a rate in events per second, and merges those far below."""
        return cls(ScalingKind.EVENTS, min_segments, target, factor)

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as it is in the JSON of a configuration."""
        if self.kind == ScalingKind.FIXED:
            return {"kind": self.kind, "segment_count": self.segment_count}
        return {
            "kind": self.kind,
            "target_per_s": self.target_per_s,
            "factor": self.factor,
            "min_segments": self.segment_count,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "ScalingPolicy":
        """Return the policy in the JSON of a configuration.

        Raises:
            InvalidArgumentError: a value is wrong; the message names it.
        """
        count_max = SEGMENTS_PER_STREAM_MAX
        min_segments = _whole(content.get("min_segments"), "scaling.min_segments", low=1, high=count_max)
        if _kind(ScalingKind, content.get("kind", ScalingKind.FIXED), "scaling.kind") is ScalingKind.FIXED:
            count = _whole(content.get("segment_count"), "scaling.segment_count", low=1, high=count_max)
            return cls.fixed(count or min_segments or 1)
        factor = _whole(content.get("factor"), "scaling.factor", low=2, high=FACTOR_MAX)
        return cls(content["kind"], min_segments or 1, content.get("target_per_s") or 0, factor or 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Automatic deletion of events. Made by `by_size`, `by_time` or `by_consumption`.

    A minimum takes precedence over all other bounds; None is no bound. By size and by time a single bound suffices:
    events above it may be deleted.

    Attributes:
        kind: a `RetentionKind`, or its text.
        min_bytes, min_age_s: at least this much, and all younger events, are kept.
        max_bytes, max_age_s: events above or older are deleted, even if a cursor has not passed them.
    """

    kind: str
    min_bytes: int | None = None
    max_bytes: int | None = None
    min_age_s: float | None = None
    max_age_s: float | None = None

    def __post_init__(self) -> None:
        kind = _kind(RetentionKind, self.kind, "retention.kind")
        values: dict[str, Any] = {
            "kind": kind,
            "min_bytes": _whole(self.min_bytes, "retention.min_bytes", low=0),
            "max_bytes": _whole(self.max_bytes, "retention.max_bytes", low=0),
            "min_age_s": _number(self.min_age_s, "retention.min_age_s"),
            "max_age_s": _number(self.max_age_s, "retention.max_age_s"),
        }
        for decisive, unit in ((RetentionKind.SIZE, "bytes"), (RetentionKind.TIME, "age_s")):
            least, most = f"min_{unit}", f"max_{unit}"
            if kind is decisive and values[most] is None:
                values[most] = values[least] or None
            if kind is decisive and values[most] is None:
                raise InvalidArgumentError(f"retention by {kind} needs {most} or {least}")
            if values[most] is not None and values[most] < (values[least] or 0):
                raise InvalidArgumentError(f"retention.{most}={values[most]} is below {least}={values[least]}")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Return the call that makes it."""
        bounds = {name: value for name, value in self.to_dict().items() if name != "kind" and value is not None}
        return f"RetentionPolicy.by_{self.kind}({', '.join(f'{name}={value}' for name, value in bounds.items())})"

    @classmethod
    def by_size(cls, *, max_bytes: int, min_bytes: int | None = None) -> "RetentionPolicy":
        """Return the policy that keeps at most `max_bytes`, and never deletes below `min_bytes`."""
        return cls(kind=RetentionKind.SIZE, min_bytes=min_bytes, max_bytes=max_bytes)

    @classmethod
    def by_time(
        cls, *, max_age_s: float, min_bytes: int | None = None, max_bytes: int | None = None
    ) -> "RetentionPolicy":
        """Return the policy that deletes older events, within optional bounds of size."""
        return cls(kind=RetentionKind.TIME, max_age_s=max_age_s, min_bytes=min_bytes, max_bytes=max_bytes)

    @classmethod
    def by_consumption(
        cls,
        *,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        min_age_s: float | None = None,
        max_age_s: float | None = None,
    ) -> "RetentionPolicy":
        """Return the policy that deletes events that every registered cursor has passed.

        Events above a maximum are deleted even if a cursor has not passed them; events below a minimum stay.
        """
        return cls(
            kind=RetentionKind.CONSUMPTION,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            min_age_s=min_age_s,
            max_age_s=max_age_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as it is in the JSON of a configuration."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "RetentionPolicy":
        """Return the policy in the JSON of a configuration.

        Raises:
            InvalidArgumentError: a value is wrong; the message names it.
        """
        bounds = {name: content.get(name) for name in ("min_bytes", "max_bytes", "min_age_s", "max_age_s")}
        return cls(kind=content.get("kind"), **bounds)  # type: ignore[arg-type]  # checked when it is made


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StreamConfig(ShortRepr):
    """Configuration of a stream.

    Attributes:
        retention: None: events are kept until they are truncated.
        event_times: None: events may have any time.
        tags: for finding streams in a listing; sorted, without duplicates.
    """

    scaling: ScalingPolicy = field(default_factory=lambda: ScalingPolicy.fixed(1))
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()
    event_times: EventTimeBounds | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.scaling, ScalingPolicy):
            raise InvalidArgumentError(f"scaling must be a ScalingPolicy, not {self.scaling!r:.120}")
        if not isinstance(self.retention, RetentionPolicy | None):
            raise InvalidArgumentError(f"retention must be a RetentionPolicy or None, not {self.retention!r:.120}")
        if not isinstance(self.event_times, EventTimeBounds | None):
            raise InvalidArgumentError(f"event_times must be an EventTimeBounds or None, not {self.event_times!r:.120}")
        if not isinstance(self.tags, tuple | list) or len(self.tags) > TAGS_COUNT_MAX:
            raise InvalidArgumentError(f"tags must be a list of at most {TAGS_COUNT_MAX} texts")
        for tag in self.tags:
            if not isinstance(tag, str) or not tag.isprintable() or not 1 <= len(tag.encode()) <= TAG_SIZE_BYTES_MAX:
                raise InvalidArgumentError(
                    f"a tag must be 1 to {TAG_SIZE_BYTES_MAX} bytes of printable text, not {tag!r:.120}"
                )
        object.__setattr__(self, "tags", tuple(sorted(set(self.tags))))

    def to_json(self) -> str:
        """Return the JSON text that is stored with the stream."""
        content: dict[str, Any] = {
            "scaling": self.scaling.to_dict(),
            "retention": None if self.retention is None else self.retention.to_dict(),
        }
        if self.tags:
            content["tags"] = list(self.tags)
        if self.event_times is not None:
            content["event_times"] = self.event_times.to_dict()
        return json.dumps(content, separators=(",", ":"))

    @staticmethod
    @lru_cache(maxsize=1024)
    def from_json(text: str) -> "StreamConfig":
        """Parse a configuration.

        Raises:
            InvalidArgumentError: it is not a JSON object, or a value in it is wrong; the message names it.
        """
        try:
            content = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the configuration is not JSON: {error}") from None
        content = _object(content, "the configuration")
        retention, times = content.get("retention"), content.get("event_times")
        return StreamConfig(
            scaling=ScalingPolicy.from_dict(_object(content.get("scaling"), "scaling")),
            retention=None if retention is None else RetentionPolicy.from_dict(_object(retention, "retention")),
            tags=() if content.get("tags") is None else content["tags"],
            event_times=None if times is None else EventTimeBounds.from_dict(_object(times, "event_times")),
        )


def _object(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{name} must be an object, not {value!r:.120}")
    return value


def _kind(kinds: type[KindT], value: Any, name: str) -> KindT:
    try:
        return kinds(value)
    except ValueError:
        raise InvalidArgumentError(f"{name} must be one of {', '.join(kinds)}, not {value!r:.120}") from None


def _number(value: Any, name: str) -> float | None:
    """Return a number of 0 or more, None if it is missing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float(1 << 63):
        raise InvalidArgumentError(f"{name} must be a number of 0 or more, not {value!r:.120}")
    return value


def _whole(value: Any, name: str, *, low: int, high: int = (1 << 63) - 1) -> int | None:
    """Return a whole number between two bounds, None if it is missing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        raise InvalidArgumentError(f"{name} must be a whole number, not {value!r:.120}")
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name}={value} must be between {low} and {high}")
    return int(value)
