"""Events as they are read."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from .shown import short


class EventPosition(NamedTuple):
    """The position of an event: segment, offset of its block, and index in the block."""

    segment_id: int
    offset: int
    event_index: int


_FIELDS: Final = ("value", "key", "timestamp_us", "segment", "offset", "index", "headers")


class _Items(NamedTuple):
    value: bytes
    key: str | None
    timestamp_us: int | None
    segment: int
    offset: int
    index: int  # type: ignore[assignment]  # hides the method of tuples
    headers_or_none: dict[str, bytes] | None


class Event(_Items):
    """One event of a stream. A tuple, so that a million can be created in a tenth of a second.

    Attributes:
        timestamp_us: Unix microseconds, given by the caller or the writer's clock; None if its block has none.
        segment: the id of the segment.
        offset: of its block in the segment.
        index: its place in the block, from 0.
    """

    __slots__ = ()

    def __new__(
        cls,
        value: bytes,
        key: str | None,
        timestamp_us: int | None,
        segment: int,
        offset: int,
        index: int,
        headers: Mapping[str, bytes] | None = None,
    ) -> Self:
        """Return the event of these fields."""
        return super().__new__(
            cls, value, key, timestamp_us, segment, offset, index, dict(headers) if headers else None
        )

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers by name; empty if it has none."""
        return self.headers_or_none or {}

    @property
    def count(self) -> int:  # type: ignore[override]  # a tuple's method, which means nothing here
        """Not an attribute of events."""
        raise AttributeError("an event has no count")

    @property
    def position(self) -> EventPosition:
        """The position of the event."""
        return EventPosition(self.segment, self.offset, self.index)

    def __hash__(self) -> int:
        # Without the headers, a dictionary; None keeps the hash equal to that of an equal tuple.
        return hash((*self[:6], None))

    def _replace(self, **changes: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]  # it names `headers`
        """Return an event with other values in some fields, as of a named tuple."""
        return type(self)(**{name: getattr(self, name) for name in _FIELDS} | changes)

    def __repr__(self) -> str:
        return f"Event({', '.join(f'{name}={short(getattr(self, name))}' for name in _FIELDS)})"

    def __dir__(self) -> list[str]:
        return [*_FIELDS, "position"]
