"""Hypothesis strategies for everything that crosses the wire, read off the declarations themselves."""

from typing import Any

import construct as c
from hypothesis import strategies as st

from millrace.wire import messages as m

Values = tuple[Any, ...]


def unrenamed(subcon: c.Construct) -> c.Construct:
    while isinstance(subcon, c.Renamed):
        subcon = subcon.subcon
    return subcon


def bounds(number: c.FormatField) -> tuple[int, int]:
    """The least and the greatest value of a fixed number."""
    bits = 8 * number.sizeof()
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if number.fmtstr[-1].islower() else (0, (1 << bits) - 1)


def numbers(number: c.FormatField) -> st.SearchStrategy[int]:
    least, greatest = bounds(number)
    return st.integers(least, greatest) | st.sampled_from([least, 0, 1, greatest])


def fields_of(declaration: c.Struct) -> list[tuple[str, c.Construct]]:
    """What a caller of the codec gives and gets: every field that is neither a constant nor the end."""
    named = [(str(subcon.name), unrenamed(subcon)) for subcon in declaration.subcons]
    return [
        (name, subcon)
        for name, subcon in named
        if not isinstance(subcon, c.Const) and not isinstance(subcon, type(c.Terminated))
    ]


def values_of(declaration: c.Struct) -> st.SearchStrategy[Values]:
    """Values that fit a declaration, in the order of its fields."""
    return st.tuples(*[_field(subcon) for _, subcon in fields_of(declaration)])


def _field(subcon: c.Construct) -> st.SearchStrategy[Any]:
    if isinstance(subcon, c.FormatField):
        return numbers(subcon)
    if isinstance(subcon, c.Bytes):
        return st.binary(min_size=subcon.length, max_size=subcon.length)
    if isinstance(subcon, c.StringEncoded):
        return st.text(max_size=8)
    if isinstance(subcon, c.Prefixed | type(c.GreedyBytes)):
        return st.binary(max_size=16)
    assert isinstance(subcon, c.FocusedSeq), subcon
    item = unrenamed(unrenamed(subcon.subcons[1]).subcon)
    return st.lists(values_of(item) if isinstance(item, c.Struct) else _field(item), max_size=4)


def to_construct(declaration: c.Struct, values: Values) -> dict[str, Any]:
    """Values in order as what construct builds from."""
    built = {}
    for (name, subcon), value in zip(fields_of(declaration), values, strict=True):
        item = _item(subcon)
        built[name] = value if item is None else [to_construct(item, part) for part in value]
    return built


def from_construct(declaration: c.Struct, parsed: Any) -> Values:
    """What construct parsed as values in order."""
    values = []
    for name, subcon in fields_of(declaration):
        item = _item(subcon)
        value = list(parsed[name]) if isinstance(parsed[name], list) else parsed[name]
        values.append(value if item is None else [from_construct(item, part) for part in value])
    return tuple(values)


def _item(subcon: c.Construct) -> c.Struct | None:
    if not isinstance(subcon, c.FocusedSeq):
        return None
    item = unrenamed(unrenamed(subcon.subcons[1]).subcon)
    return item if isinstance(item, c.Struct) else None


NUMBERS = (c.Int8ul, c.Int16ul, c.Int32ul, c.Int64ul, c.Int8sl, c.Int16sl, c.Int32sl, c.Int64sl)
PREFIXES = (c.Int8ul, c.Int16ul, c.Int32ul, c.Int64ul)


@st.composite
def declarations(draw: st.DrawFn, *, depth: int = 2) -> c.Struct:
    """Any structure that a codec can be derived from."""
    number, prefix = st.sampled_from(NUMBERS), st.sampled_from(PREFIXES)
    kinds = [
        number,
        st.builds(c.Bytes, st.integers(0, 5)),
        st.builds(c.Const, st.binary(max_size=4)),
        st.builds(c.Const, st.integers(0, 127), number),
        st.builds(lambda size: c.Prefixed(size, c.GreedyBytes), prefix),
        st.builds(lambda size: c.PascalString(size, "utf8"), prefix),
        st.builds(c.PrefixedArray, prefix, number),
    ]
    if depth:
        # A list of structures that may be empty has no bound, and no derivation: each starts with a number.
        items = st.builds(
            lambda first, rest: c.Struct("first" / first, *rest.subcons), number, declarations(depth=depth - 1)
        )
        kinds.append(st.builds(c.PrefixedArray, prefix, items))
    subcons = draw(st.lists(st.one_of(kinds), max_size=6))
    named = [f"field{index}_{depth}" / subcon for index, subcon in enumerate(subcons)]
    if depth == 2:
        named += draw(st.sampled_from([[], [c.Terminated], ["rest" / c.GreedyBytes]]))
    return c.Struct(*named)


MESSAGES = [cls for cls in m.MESSAGES.values() if cls.type not in m.APPENDS]
"""All but appends, which are scanned in place and have no objects."""


def message_of(cls: type[m.Message], values: Values) -> m.Message:
    """The message with these values, in the order of its declaration."""
    fields = dict(zip([name for name, _ in fields_of(cls.layout)], values, strict=True))
    for name, item in m.item_classes(cls).items():
        fields[name] = [item._make(values) for values in fields[name]]
    return cls(**fields)


def messages_of(cls: type[m.Message]) -> st.SearchStrategy[m.Message]:
    return values_of(cls.layout).map(lambda values: message_of(cls, values))


def messages() -> st.SearchStrategy[m.Message]:
    """Any message of any type."""
    return st.sampled_from(MESSAGES).flatmap(messages_of)
