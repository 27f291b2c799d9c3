"""Events as they are read."""

from collections import namedtuple
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self


class EventPosition(NamedTuple):
    """Where an event is: the event of that index in the block at that offset of that segment."""

    segment_id: int
    offset: int
    event_index: int


# Its attributes are the quickest that Python has for the items of a tuple.
_Items = namedtuple("_Items", "value key timestamp_us segment offset index headers_or_none")  # noqa: PYI024  # pyright: ignore[reportUntypedNamedTuple]  # typed below

_FIELDS: Final = ("value", "key", "timestamp_us", "segment", "offset", "index", "headers")


class Event(tuple[bytes, str | None, int | None, int, int, int, dict[str, bytes] | None]):
    """One event of a stream. A tuple, so that a million of them are made in a tenth of a second.

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
        items = (value, key, timestamp_us, segment, offset, index, dict(headers) if headers else None)
        return super().__new__(cls, items)

    if TYPE_CHECKING:

        @property
        def value(self) -> bytes:
            """What was written."""
            ...

        @property
        def key(self) -> str | None:
            """The routing key, None without one."""
            ...

        @property
        def timestamp_us(self) -> int | None:
            """Unix microseconds."""
            ...

        @property
        def segment(self) -> int:
            """Id of the segment."""
            ...

        @property
        def offset(self) -> int:
            """Of its block."""
            ...

        @property
        def index(self) -> int:  # type: ignore[override]  # the field, not the method of tuples
            """Its place in the block."""
            ...
    else:
        value, key, timestamp_us = _Items.value, _Items.key, _Items.timestamp_us
        segment, offset, index = _Items.segment, _Items.offset, _Items.index

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers by their names; empty if it has none."""
        return self[6] or {}

    @property
    def count(self) -> int:  # type: ignore[override]  # a tuple's method, which means nothing here
        """Not an attribute of events."""
        raise AttributeError("an event has no count")

    @property
    def position(self) -> EventPosition:
        """Where the event is."""
        return EventPosition(self.segment, self.offset, self.index)

    def __hash__(self) -> int:
        # Without the headers, a dictionary; the None keeps it equal to that of a tuple which equals the event.
        return hash((*self[:6], None))

    def _replace(self, **changes: Any) -> Self:
        """Return an event with other values in some fields, as of a named tuple."""
        return type(self)(**{name: getattr(self, name) for name in _FIELDS} | changes)

    def __repr__(self) -> str:
        return f"Event({', '.join(f'{name}={getattr(self, name)!r}' for name in _FIELDS)})"

    def __getnewargs__(self) -> tuple[object, ...]:
        return tuple(self)
