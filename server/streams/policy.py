"""What a stream asks of the server: how it scales, what it keeps, under which tags it is listed.

The configuration of a stream is JSON, made by the client and kept as it came. Of it the server reads:

    {"scaling":   {"kind": "fixed" | "bytes" | "events",
                   "target_per_s": N,         per segment; of "bytes" and "events"
                   "factor": 2,               into how many parts a segment is split at most
                   "min_segments": 1},        fewer there never are by merging
     "retention": {"kind": "size" | "time" | "consumption",
                   "min_bytes", "max_bytes", "min_age_s", "max_age_s": N or null} or null,
     "tags":      ["winter", ...]}

Everything may be left out; an empty text is an empty object; names that are not known are left to others. A value that
is there and wrong is refused when the stream is created or updated.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeVar

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.server.errors import InvalidArgumentError

TAGS_COUNT_MAX: Final = 64
TAG_SIZE_BYTES_MAX: Final = 100
FACTOR_MAX: Final = 16

Kind = TypeVar("Kind", bound=StrEnum)


class ScalingKind(StrEnum):
    """What the target of scaling counts."""

    FIXED = "fixed"  # nothing: the segments change only when somebody asks
    BYTES = "bytes"
    EVENTS = "events"


class RetentionKind(StrEnum):
    """What makes old events superfluous, inside the bounds of the policy."""

    SIZE = "size"
    TIME = "time"
    CONSUMPTION = "consumption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """When the segments of a stream are split and merged.

    Attributes:
        target_per_s: bytes or events per second and segment; 0 of a fixed one.
        factor: a segment is split into 2 to this many.
        min_segments: merging leaves at least this many open.
    """

    kind: ScalingKind = ScalingKind.FIXED
    target_per_s: float = 0.0
    factor: int = 2
    min_segments: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What of a stream is kept. What a minimum keeps is kept whatever else holds; what is not set is no bound.

    Attributes:
        min_bytes, min_age_s: at least so much, and all that is younger, is kept.
        max_bytes, max_age_s: what is more, or older, goes, whoever still wants it.
    """

    kind: RetentionKind
    min_bytes: int = 0
    max_bytes: int | None = None
    min_age_s: float = 0.0
    max_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that the server reads in a configuration."""

    scaling: Scaling = Scaling()
    retention: Retention | None = None
    tags: frozenset[str] = frozenset()


@lru_cache(maxsize=1024)
def parse_policy(configuration: str) -> Policy:
    """Return what a configuration asks for.

    Raises:
        InvalidArgumentError: it is no JSON object, or a value in it is wrong; the message names it.
    """
    try:
        content = json.loads(configuration) if configuration else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the configuration is not JSON: {error}") from None
    content = _object(content, "the configuration")
    return Policy(
        scaling=_scaling(_object(content.get("scaling"), "scaling")),
        retention=None if content.get("retention") is None else _retention(_object(content["retention"], "retention")),
        tags=_tags(content.get("tags")),
    )


def _scaling(content: dict[str, Any]) -> Scaling:
    kind = _kind(ScalingKind, content.get("kind", ScalingKind.FIXED), "scaling.kind")
    min_segments = _whole(content.get("min_segments"), "scaling.min_segments", low=1, high=SEGMENTS_PER_STREAM_MAX)
    if kind is ScalingKind.FIXED:
        return Scaling(min_segments=min_segments or 1)
    target_per_s = _number(content.get("target_per_s"), "scaling.target_per_s")
    if not target_per_s:
        raise InvalidArgumentError("scaling.target_per_s must be above 0")
    factor = _whole(content.get("factor"), "scaling.factor", low=2, high=FACTOR_MAX)
    return Scaling(kind=kind, target_per_s=target_per_s, factor=factor or 2, min_segments=min_segments or 1)


def _retention(content: dict[str, Any]) -> Retention:
    kind = _kind(RetentionKind, content.get("kind"), "retention.kind")
    min_bytes = _whole(content.get("min_bytes"), "retention.min_bytes", low=0) or 0
    max_bytes = _whole(content.get("max_bytes"), "retention.max_bytes", low=0)
    min_age_s = _number(content.get("min_age_s"), "retention.min_age_s") or 0.0
    max_age_s = _number(content.get("max_age_s"), "retention.max_age_s")
    # A policy with one bound alone means just that: what is above it may go.
    if kind is RetentionKind.SIZE and max_bytes is None:
        max_bytes = min_bytes or None
    if kind is RetentionKind.TIME and max_age_s is None:
        max_age_s = min_age_s or None
    if kind is RetentionKind.SIZE and max_bytes is None:
        raise InvalidArgumentError("retention by size needs max_bytes or min_bytes")
    if kind is RetentionKind.TIME and max_age_s is None:
        raise InvalidArgumentError("retention by time needs max_age_s or min_age_s")
    if max_bytes is not None and max_bytes < min_bytes:
        raise InvalidArgumentError(f"retention.max_bytes={max_bytes} is below min_bytes={min_bytes}")
    if max_age_s is not None and max_age_s < min_age_s:
        raise InvalidArgumentError(f"retention.max_age_s={max_age_s} is below min_age_s={min_age_s}")
    return Retention(kind=kind, min_bytes=min_bytes, max_bytes=max_bytes, min_age_s=min_age_s, max_age_s=max_age_s)


def _tags(content: Any) -> frozenset[str]:
    if content is None:
        return frozenset()
    if not isinstance(content, list) or len(content) > TAGS_COUNT_MAX:
        raise InvalidArgumentError(f"tags is a list of at most {TAGS_COUNT_MAX} texts")
    for tag in content:
        if not isinstance(tag, str) or not tag.isprintable() or not 1 <= len(tag.encode()) <= TAG_SIZE_BYTES_MAX:
            raise InvalidArgumentError(f"a tag is 1 to {TAG_SIZE_BYTES_MAX} bytes of printable text, not {tag!r:.120}")
    return frozenset(content)


def _object(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{name} is an object, not {value!r:.120}")
    return value


def _kind(kinds: type[Kind], value: Any, name: str) -> Kind:
    try:
        return kinds(value)
    except ValueError:
        raise InvalidArgumentError(f"{name} is one of {', '.join(kinds)}, not {value!r:.120}") from None


def _number(value: Any, name: str) -> float | None:
    """Return a number of 0 or more, None if it is left out."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float(1 << 63):
        raise InvalidArgumentError(f"{name} is a number of 0 or more, not {value!r:.120}")
    return float(value)


def _whole(value: Any, name: str, *, low: int, high: int = (1 << 63) - 1) -> int | None:
    """Return a whole number between two bounds, None if it is left out."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        raise InvalidArgumentError(f"{name} is a whole number, not {value!r:.120}")
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name}={value} must lie between {low} and {high}")
    return int(value)
