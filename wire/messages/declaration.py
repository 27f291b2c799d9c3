"""Declaration of a message: one class, whose annotations are its layout.

    @message(21)                                     its number on the wire, never changed and never reused
    class SealSegment(Request[SegmentInfo]):         its sender, and its reply
        '''Seal a segment.'''
        segment_id: SegmentId                        its layout, and the entities that it needs in memory

The decorator makes the class a dataclass with slots, frozen for the type checkers. Its construct `layout` is built from
the annotations on first use. Everything else is derived from these: codecs (`wire.framing`), the messages allowed at
each end (`wire.session`), the entities that the server loads before a request (`required_entities`), the dispatch of
requests, the output of the inspector, the tables of `docs/formats.md`, and the strategies of the property tests. A
constant field is a `ClassVar` with a `Const`.

The base class determines the sender, and there is no default: `Request`, `Query` (a request that changes nothing),
`FromClient` (without a reply), `FromServer`, `FromBoth`, and `Record` for records of the log only.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import construct as c

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX

_TEXT: Final = c.PascalString(c.Int16ul, "utf8")

Item = TypeVar("Item")
Value = TypeVar("Value")

U8 = Annotated[int, c.Int8ul]
U16 = Annotated[int, c.Int16ul]
U32 = Annotated[int, c.Int32ul]
U64 = Annotated[int, c.Int64ul]
I64 = Annotated[int, c.Int64sl]
Text = Annotated[str, _TEXT]
LongText = Annotated[str, c.PascalString(c.Int32ul, "utf8")]
Blob = Annotated[bytes, c.Prefixed(c.Int32ul, c.GreedyBytes)]
Bytes16 = Annotated[bytes, c.Bytes(16)]
Rest = Annotated[bytes | memoryview, c.GreedyBytes]
"""The rest of the frame: the last field only."""
List16 = Annotated[list[Item], c.Int16ul]
"""A list after its count of 16 bits; its items are numbers or named tuples that are annotated in the same way."""
List32 = Annotated[list[Item], c.Int32ul]


@dataclass(frozen=True, slots=True)
class Names:
    """Marks a field of a message whose values name entities, by number or by name.

    Attributes:
        scope: a key of `Required`: the kind of the entities, or another scope of that kind.
    """

    scope: str


SEGMENTS: Final = Names("segments")
WRITERS: Final = Names("writers")
STREAMS: Final = Names("streams")
OPEN_STREAMS: Final = Names("open_streams")
"""Streams with their open segments only, however many were replaced."""
TRANSACTIONS: Final = Names("transactions")
PRODUCERS: Final = Names("producers")

SegmentId = Annotated[int, c.Int64ul, SEGMENTS]
SegmentName = Annotated[str, _TEXT, SEGMENTS]
WriterNumber = Annotated[int, c.Int64ul, WRITERS]
WriterId = Annotated[str, _TEXT, WRITERS]
StreamId = Annotated[int, c.Int64ul, STREAMS]
StreamName = Annotated[str, _TEXT, STREAMS]
OpenStreamId = Annotated[int, c.Int64ul, OPEN_STREAMS]
OpenStreamName = Annotated[str, _TEXT, OPEN_STREAMS]
TransactionNumber = Annotated[int, c.Int64ul, TRANSACTIONS]
TransactionName = Annotated[str, _TEXT, TRANSACTIONS]
ProducerNumber = Annotated[int, c.Int64ul, PRODUCERS]
ProducerId = Annotated[str, _TEXT, PRODUCERS]


_EntityPath = tuple[str, Callable[[Any], Any] | None, str]
"""A field that names entities, the getter of an item's name if it is a list of items, and the scope."""


class FrameType(int):
    """The number of a frame on the wire, with a readable name.

    Types below 128 cross the wire; types from 128 on are records of the log.
    """

    name: str

    def __new__(cls, number: int, name: str) -> "FrameType":
        """Return the number with its name."""
        made = super().__new__(cls, number)
        made.name = name
        return made


class _Derived(Generic[Value]):
    """An attribute of a message class that is derived from its annotations on first use.

    A program uses few kinds of messages. Deriving everything for all of them took longer than the rest of loading their
    modules.
    """

    def __init__(self, make: Callable[[type["Message"]], Value]) -> None:
        self._make = make

    def __set_name__(self, owner: type["Message"], name: str) -> None:
        self._name = name

    def __get__(self, message: "Message | None", cls: type["Message"]) -> Value:
        if "type" not in vars(cls):  # subclasses would inherit a cached value
            raise AttributeError(f"{cls.__name__} is a base of messages, and has no {self._name}")
        made = self._make(cls)
        setattr(cls, self._name, made)
        return made


class Message:
    """A message: a dataclass whose fields are never reassigned. Two of one class are equal if their fields are.

    Attributes:
        type: the number of its frames.
        layout: of the body of its frames; byte for byte as sent or stored.
        entity_fields: fields that name entities needed in memory, each with its scope; `list.field` if the items of a
            list do.
        entity_paths: the same, parsed.
        flags: the bits that the header of its frames may have set.
    """

    __slots__ = ()
    type: ClassVar[FrameType]
    flags: ClassVar[int] = 0

    layout = _Derived(lambda cls: layout_of(cls))  # noqa: PLW0108  # it is defined below
    entity_fields = _Derived(lambda cls: _entity_fields(_hints(cls)))
    entity_paths = _Derived(lambda cls: tuple(_path_of(name, entity) for name, entity in cls.entity_fields))

    # Shared by all messages: a dataclass would compile them for each, and take half the time of loading the messages.

    def __eq__(self, other: object) -> bool:
        """Return whether the messages have the same class and fields."""
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        """Return a hash of the class and the fields."""
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        """Return the expression that creates it."""
        values = zip(fields(self), self._values(), strict=True)  # type: ignore[arg-type]  # each message is one
        return f"{type(self).__name__}({', '.join(f'{field.name}={value!r}' for field, value in values)})"

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]


class FromClient(Message):
    """Sent by clients only."""

    __slots__ = ()


class FromServer(Message):
    """Sent by servers only: a reply, or a notice."""

    __slots__ = ()


class FromBoth(Message):
    """Sent by either side."""

    __slots__ = ()


class RequestFlag(IntEnum):
    """Bits in the header flags of some requests."""

    UNANSWERED = 1  # no reply, whatever the outcome: later frames that depend on it are rejected if it is


class Record(Message):
    """A decision in the form in which it is logged; rejected from the network."""

    __slots__ = ()


Reply = TypeVar("Reply", bound=Message)
AnyMessage = TypeVar("AnyMessage", bound=Message)


class Request(FromClient, Generic[Reply]):
    """Sent by clients with a new request id; answered by a `Reply`, or an ERROR_REPLY, with that id.

    Attributes:
        reply: the class of its reply.
    """

    __slots__ = ()
    reply: ClassVar[type[Message]]


class Query(Request[Reply], Generic[Reply]):
    """A request that changes nothing: it is answered from durable state, and so at once."""

    __slots__ = ()


MESSAGES: Final[dict[int, type[Message]]] = {}
"""Every message, by the number of its frames."""


@dataclass_transform(frozen_default=True)
def message(number: int, *, kw_only: bool = False) -> Callable[[type[AnyMessage]], type[AnyMessage]]:
    """Return the decorator that declares a message of this number."""

    def declare(cls: type[AnyMessage]) -> type[AnyMessage]:
        # Frozen for the type checkers, by `frozen_default`. At run time, a frozen class would set each field by a call:
        # a reply of 13 fields takes 0.8 us to make, and would take 4.9 us.
        made = dataclass(slots=True, eq=False, repr=False, kw_only=kw_only)(cls)
        assert issubclass(made, FromClient | FromServer | FromBoth | Record), f"{made.__name__}: who sends it?"
        assert issubclass(made, Record) == (number >= 128), f"{made.__name__}: records have numbers from 128 on"
        assert number not in MESSAGES, f"{made.__name__} has the number of {MESSAGES[number].__name__}"
        made.type = FrameType(number, re.sub(r"(?<!^)(?=[A-Z])", "_", made.__name__).upper())
        if issubclass(made, Request):
            (made.reply,) = get_args(made.__orig_bases__[0])  # type: ignore[attr-defined]  # every generic class has it
        MESSAGES[number] = made
        return made

    return declare


def _hints(cls: type[Any]) -> dict[str, Any]:
    """Return the annotations of a message, or of an item of a list, by the name of the field."""
    return get_type_hints(cls, include_extras=True)


def layout_of(cls: type[Any]) -> c.Struct:
    """Return the layout that the annotations of a message, or of an item of a list, declare."""
    subcons = []
    for name, hint in _hints(cls).items():
        if get_origin(hint) is Annotated:
            layout, item = get_args(hint)[1], _item_of(hint)
            if item is not None:
                layout = c.PrefixedArray(layout, layout_of(item) if _is_structure(item) else get_args(item)[1])
            subcons.append(name / layout)
        elif isinstance(constant := vars(cls).get(name), c.Const):
            subcons.append(name / constant)
    if issubclass(cls, Message) and not (subcons and subcons[-1].subcon is c.GreedyBytes):
        subcons.append(c.Terminated)
    return c.Struct(*subcons)


def item_classes(cls: type[Any]) -> dict[str, type[Any]]:
    """Return the named tuples in the lists of a message, or of such an item, by the name of the field."""
    items = {name: _item_of(hint) for name, hint in _hints(cls).items()}
    return {name: item for name, item in items.items() if _is_structure(item)}


def _entity_fields(hints: dict[str, Any]) -> tuple[tuple[str, Names], ...]:
    marks = [(name, mark) for name, hint in hints.items() for mark in get_args(_item_of(hint) or hint)]
    for name, hint in hints.items():
        if _is_structure(item := _item_of(hint)):
            marks += [
                (f"{name}.{field}", mark) for field, of_field in _hints(item).items() for mark in get_args(of_field)
            ]
    return tuple((name, mark) for name, mark in marks if isinstance(mark, Names))


def _path_of(name: str, named: Names) -> _EntityPath:
    name, _, field = name.partition(".")
    return name, attrgetter(field) if field else None, named.scope


def _item_of(hint: Any) -> Any:
    """Return the annotation of the items if an annotation is that of a list, else None."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else None
    return get_args(plain)[0] if get_origin(plain) is list else None


def _is_structure(item: Any) -> bool:
    return hasattr(item, "_fields")


class Required(dict[str, Sequence[int | str]]):
    """The entities that a message names, by number or by name: keys by scope (see `Names`)."""

    __slots__ = ()


def required_entities(message: Message) -> Required:
    """Return the entities that a request or a record needs in memory; not those that it creates.

    The number 0 and the empty name mean none. If a request lists more items than allowed, none is returned: it will be
    rejected. A record returns all that it lists.
    """
    keys = Required()
    for name, of_item, scope in message.entity_paths:
        value = getattr(message, name)
        if not value:
            continue
        if isinstance(value, list):
            if len(value) > SEGMENTS_PER_STREAM_MAX and not isinstance(message, Record):
                continue
            named = tuple(filter(None, value if of_item is None else map(of_item, value)))
        else:
            named = (value,)
        keys[scope] = (*keys[scope], *named) if scope in keys else named
    return keys
