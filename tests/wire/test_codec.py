"""The derived codecs against construct itself: the same bytes, the same values, the same refusals."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import construct as c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model import block_layout
from millrace.wire import messages as m
from millrace.wire.codec import Codec, fixed_struct
from millrace.wire.errors import CodecError
from millrace.wire.framing import encode
from millrace.wire.schema import chunk, frame, log
from tests.support.examples import examples
from tests.support.strategies import (
    Values,
    bounds,
    declarations,
    fields_of,
    from_construct,
    to_construct,
    values_of,
)
from tests.support.tables import table


def declared(module: ModuleType) -> Iterator[tuple[str, c.Struct]]:
    for name, value in vars(module).items():
        if isinstance(value, c.Struct):
            yield f"{module.__name__.rpartition('.')[2]}.{name}", value


ALL: dict[str, c.Struct] = {
    **{cls.__name__: cls.layout for cls in m.MESSAGES.values()},
    **dict(pair for module in (frame, block_layout, log, chunk) for pair in declared(module)),
}
every_declaration = pytest.mark.parametrize("name", ALL)


def parsed(declaration: c.Struct, data: bytes) -> Values | None:
    """What construct says: the values, or None if it refuses."""
    try:
        return from_construct(declaration, declaration.parse(data))
    except c.ConstructError:
        return None


def unpacked(codec: Codec, data: Any) -> Values | None:
    try:
        return codec.unpack(data)
    except CodecError:
        return None


def check_agreement(declaration: c.Struct, codec: Codec, data: bytes) -> None:
    assert unpacked(codec, data) == parsed(declaration, data)


@every_declaration
@settings(max_examples=examples(25))
@given(drawn=st.data())
def test_both_write_and_read_the_same(name: str, drawn: st.DataObject) -> None:
    declaration, codec = ALL[name], Codec(ALL[name], name=name)
    values = drawn.draw(values_of(declaration))

    data = codec.pack(*values)

    assert data == declaration.build(to_construct(declaration, values))
    assert codec.unpack(data) == values == parsed(declaration, data)
    for kind in (bytearray, memoryview):
        assert codec.unpack(kind(data)) == values
    assert codec.unpack_from(b"??" + data + b"!!", 2, 2 + len(data)) == (values, 2 + len(data))


@every_declaration
@settings(max_examples=examples(10))
@given(drawn=st.data())
def test_both_refuse_the_same_truncations(name: str, drawn: st.DataObject) -> None:
    """Behaviour 49: a frame cut anywhere."""
    declaration, codec = ALL[name], Codec(ALL[name], name=name)
    data = codec.pack(*drawn.draw(values_of(declaration)))

    # All cuts near both ends, and some between: each one costs the declaration a parse.
    for size in {
        *range(min(len(data), 64)),
        *range(0, len(data), max(1, len(data) // 64)),
        *range(max(0, len(data) - 32), len(data)),
    }:
        check_agreement(declaration, codec, data[:size])
        # The bytes after `end` are there, and must not be looked at.
        with_end = unpacked_until(codec, data, size)
        assert with_end == parsed(declaration, data[:size])


def unpacked_until(codec: Codec, data: bytes, end: int) -> Values | None:
    try:
        return codec.unpack(data, 0, end)
    except CodecError:
        return None


@every_declaration
@settings(max_examples=examples(5))
@given(drawn=st.data())
def test_both_agree_on_every_flipped_bit(name: str, drawn: st.DataObject) -> None:
    """Behaviour 49: every bit flipped in turn."""
    declaration, codec = ALL[name], Codec(ALL[name], name=name)
    data = codec.pack(*drawn.draw(values_of(declaration)))

    for bit in range(8 * min(len(data), 64)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        check_agreement(declaration, codec, bytes(flipped))


@every_declaration
@settings(max_examples=examples(25))
@given(data=st.binary(max_size=80))
def test_both_agree_on_random_bytes(name: str, data: bytes) -> None:
    check_agreement(ALL[name], Codec(ALL[name], name=name), data)


@every_declaration
@settings(max_examples=examples(10))
@given(drawn=st.data())
def test_a_number_out_of_range_is_refused_and_named(name: str, drawn: st.DataObject) -> None:
    codec = Codec(ALL[name], name=name)
    fields = fields_of(ALL[name])
    numeric = [index for index, (_, subcon) in enumerate(fields) if isinstance(subcon, c.FormatField)]
    if not numeric:
        return
    values = list(drawn.draw(values_of(ALL[name])))
    index = drawn.draw(st.sampled_from(numeric))
    least, greatest = bounds(fields[index][1])
    values[index] = drawn.draw(st.sampled_from([least - 1, greatest + 1, 1 << 80, "1", None, 1.5]))

    with pytest.raises(CodecError) as caught:
        codec.pack(*values)

    assert (caught.value.structure, caught.value.field) == (name, fields[index][0])


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(declaration=declarations(), drawn=st.data())
def test_any_declaration_that_can_be_derived_is_derived_right(declaration: c.Struct, drawn: st.DataObject) -> None:
    codec = Codec(declaration, name="Any")
    values = drawn.draw(values_of(declaration))

    data = codec.pack(*values)

    assert data == declaration.build(to_construct(declaration, values))
    assert codec.unpack(data) == values
    cut = drawn.draw(st.integers(0, len(data)))
    check_agreement(declaration, codec, data[:cut])
    noise = drawn.draw(st.binary(max_size=40))
    check_agreement(declaration, codec, data[:cut] + noise)


def test_the_struct_of_a_fixed_structure_is_handed_out_under_the_names_expected() -> None:
    declaration = c.Struct("a" / c.Int8ul, "b" / c.Const(7, c.Int16ul))

    assert fixed_struct(declaration, name="it", names="a b").pack(1, 7) == b"\x01\x07\x00"
    assert fixed_struct(declaration, name="it").size == 3
    for wrong, names in [(declaration, "b a"), (m.Hello.layout, "")]:
        with pytest.raises(TypeError, match="it is not a fixed structure"):
            fixed_struct(wrong, name="it", names=names)


def test_the_greedy_rest_is_lent_and_other_bytes_are_copied() -> None:
    codec = Codec(c.Struct("own" / c.Prefixed(c.Int8ul, c.GreedyBytes), "lent" / c.GreedyBytes), name="it")
    data = bytearray(b"\x02abcd")

    own, lent = codec.unpack(data)
    data[:] = b"\x02wxyz"

    assert own == b"ab"
    assert lent == b"yz"


@table(
    ("field", "value"),
    [
        (c.PascalString(c.Int16ul, "utf8"), "\ud800"),
        (c.PascalString(c.Int16ul, "utf8"), b"bytes"),
        (c.PascalString(c.Int8ul, "utf8"), "x" * 256),
        (c.Prefixed(c.Int8ul, c.GreedyBytes), b"x" * 256),
        (c.Prefixed(c.Int16ul, c.GreedyBytes), 5),
        (c.PrefixedArray(c.Int8ul, c.Int8ul), [0] * 256),
        (c.PrefixedArray(c.Int8ul, c.Int8ul), [256]),
        (c.PrefixedArray(c.Int8ul, c.Int8ul), None),
        (c.PrefixedArray(c.Int8ul, c.Struct("a" / c.Int8ul)), [7]),
        (c.PrefixedArray(c.Int8ul, c.Struct("a" / c.Int8ul)), [(1, 2)]),
        (c.Bytes(4), b"123"),
        (c.Bytes(4), b"12345"),
        (c.Bytes(4), 7),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_its_field_named(field: c.Construct, value: Any) -> None:
    with pytest.raises(CodecError) as caught:
        Codec(c.Struct("it" / field), name="Strict").pack(value)

    assert (caught.value.structure, caught.value.field) == ("Strict", "it")


@table("value", ["text", ["list"], 7])
def test_bytes_must_be_bytes(value: Any) -> None:
    with pytest.raises(CodecError):
        Codec(c.Struct("it" / c.Prefixed(c.Int16ul, c.GreedyBytes)), name="Strict").pack(value)
    with pytest.raises(CodecError):
        Codec(c.Struct("it" / c.GreedyBytes), name="Strict").pack(value)


def test_an_item_of_a_list_names_itself() -> None:
    with pytest.raises(CodecError, match=r"Index\.entries\.wall_time_us: "):
        Codec(m.Index.layout, name="Index").pack([(1, 2, 3), (1, 2, 1 << 63)])


def test_a_count_is_believed_only_as_far_as_bytes_have_arrived() -> None:
    """Behaviour 49: no allocation beyond the bytes that arrived."""
    for declaration in (m.StreamList.layout, m.Index.layout, c.Struct("it" / c.PrefixedArray(c.Int32ul, c.Int64ul))):
        with pytest.raises(CodecError, match=r"4 bytes left, \d+ needed"):
            Codec(declaration, name="it").unpack(b"\xff\xff\xff\xff" + bytes(4))


@table(
    "declaration",
    [
        c.Struct("it" / c.Int32ub),
        c.Struct("it" / c.Float64l),
        c.Struct("it" / c.VarInt),
        c.Struct("it" / c.CString("utf8")),
        c.Struct("it" / c.PascalString(c.Int16ul, "utf16")),
        c.Struct("it" / c.PascalString(c.Int16sl, "utf8")),
        c.Struct("it" / c.PascalString(c.VarInt, "utf8")),
        c.Struct("it" / c.Prefixed(c.Int32sl, c.GreedyBytes)),
        c.Struct("it" / c.Prefixed(c.Bytes(2), c.GreedyBytes)),
        c.Struct("it" / c.Prefixed(c.Int32ul, c.GreedyBytes, includelength=True)),
        c.Struct("it" / c.Prefixed(c.Int32ul, c.GreedyRange(c.Int8ul))),
        c.Struct("it" / c.PrefixedArray(c.Int16sl, c.Int8ul)),
        c.Struct("it" / c.PrefixedArray(c.Int16ul, c.Bytes(16))),
        c.Struct("it" / c.PrefixedArray(c.Int16ul, c.Const(1, c.Int8ul))),
        c.Struct("it" / c.PrefixedArray(c.Int16ul, c.Struct())),
        c.Struct("it" / c.PrefixedArray(c.Int16ul, c.Struct("rest" / c.GreedyBytes))),
        c.Struct("it" / c.FocusedSeq("b", "a" / c.Int8ul, "b" / c.Int8ul)),
        c.Struct("it" / c.Struct("nested" / c.Int8ul)),
        c.Struct("it" / c.Bytes(c.this.size)),
        c.Struct("rest" / c.GreedyBytes, "more" / c.Int8ul),
        c.Struct(c.Terminated, "more" / c.Int8ul),
        c.Struct(c.Int8ul),
    ],
)
def test_what_has_no_derivation_is_refused_at_import(declaration: c.Struct) -> None:
    with pytest.raises(TypeError):
        Codec(declaration, name="it")


@table(
    ("name", "value", "told"),
    [
        ("prefix", "x" * 70_000, "has 70000 bytes; at most 65535 fit"),
        ("prefix", "é" * 40_000, "has 80000 bytes; at most 65535 fit"),
        ("tag", 5, "is text, not int"),
        ("tag", "\ud800", "'\\ud800' cannot be written in UTF-8"),
    ],
)
def test_text_that_does_not_fit_is_told_in_words(name: str, value: object, told: str) -> None:
    """Nobody has to know the module `struct` to read it."""
    values = {"prefix": "", "tag": "", "after": "", "count_max": 1, name: value}
    with pytest.raises(CodecError) as refused:
        encode(m.ListStreams(**values))  # type: ignore[arg-type]
    assert (refused.value.field, refused.value.reason) == (name, told)


def test_each_field_says_what_would_fit() -> None:
    codec = Codec(
        c.Struct(
            "number" / c.Int16ul,
            "below" / c.Int8sl,
            "id" / c.Bytes(4),
            "data" / c.Prefixed(c.Int8ul, c.GreedyBytes),
            "many" / c.PrefixedArray(c.Int8ul, c.Int16ul),
        ),
        name="Things",
    )
    right = {"number": 1, "below": -1, "id": b"abcd", "data": b"", "many": []}
    for field, value, told in (
        ("number", -1, "is a whole number from 0 to 65535, not -1"),
        ("number", "x", "is a whole number from 0 to 65535, not 'x'"),
        ("below", 128, "is a whole number from -128 to 127, not 128"),
        ("id", b"abc", "is 4 bytes, not 3"),
        ("id", None, "is 4 bytes, not NoneType"),
        ("data", bytes(256), "has 256 bytes; at most 255 fit"),
        ("data", "text", "is bytes, not str"),
        ("many", [1] * 256, "has 256 numbers; at most 255 fit"),
        ("many", [1, "x"], "has whole numbers from 0 to 65535, not 'x'"),
        ("many", 7, "is a list of numbers, not int"),
    ):
        with pytest.raises(CodecError) as refused:
            codec.pack(*{**right, field: value}.values())
        assert (refused.value.field, refused.value.reason) == (field, told)
