from hypothesis import given
from hypothesis import strategies as st

from millrace.server.offline.declared import field_section, hex_dump, hex_text, problems_of, read_fields, values_of
from millrace.wire import messages as m
from millrace.wire.codec import Codec
from millrace.wire.schema.chunk import ChunkSummary

UNSIGNED_32 = st.integers(0, 2**32 - 1)
SIGNED_64 = st.integers(-(2**63), 2**63 - 1)
UNSIGNED_64 = st.integers(0, 2**64 - 1)


@given(st.tuples(*[UNSIGNED_32] * 2, *[UNSIGNED_64] * 5, *[UNSIGNED_32] * 2, *[SIGNED_64] * 3, UNSIGNED_32))
def test_fields_are_what_was_packed_and_cover_every_byte(values: tuple[int, ...]) -> None:
    codec = Codec(ChunkSummary, name="ChunkSummary")
    data = codec.pack(*values)

    fields = read_fields(ChunkSummary, data, offset=1000)

    assert b"".join(field.raw for field in fields) == data
    assert [field.offset for field in fields] == [1000 + sum(f.size for f in fields[:i]) for i in range(len(fields))]
    assert [values_of(fields)[name] for name in codec.names] == list(values)
    assert problems_of(fields, what="summary") == []


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    for declaration in (ChunkSummary, m.StreamCreated.layout, m.SegmentCreated.layout):
        fields = read_fields(declaration, data, offset=0)

        assert len(b"".join(field.raw for field in fields)) <= len(data)


def test_a_wrong_constant_is_named_and_the_rest_is_read() -> None:
    data = bytearray(Codec(ChunkSummary, name="ChunkSummary").pack(65536, 1, 7, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0))
    data[0] ^= 1

    fields = read_fields(ChunkSummary, bytes(data), offset=0)

    (problem,) = problems_of(fields, what="summary")
    assert "byte 0: magic is" in problem
    assert values_of(fields)["segment_id"] == 7


def test_text_lists_and_structures_are_plain_values() -> None:
    declaration = m.StreamCreated.layout
    data = Codec(declaration, name="StreamCreated").pack(1, 2, "shop/orders", "{}", [(3, 0, 9)], [("billing",)])

    values = values_of(read_fields(declaration, data, offset=0))

    assert values["name"] == "shop/orders"
    assert values["segments"] == [{"segment_id": 3, "low": 0, "last": 9}]


def test_bytes_that_end_too_early_leave_what_came_before() -> None:
    fields = read_fields(m.SegmentCreated.layout, bytes(8) + b"\1\2", offset=0)

    assert [field.name for field in fields] == ["segment_id", "created_us"]
    assert fields[1].problem


def test_long_fields_are_cut_in_tables() -> None:
    assert hex_text(bytes(range(4))) == "00010203"
    assert hex_text(bytes(100)).endswith("... (100 bytes)")
    section = field_section("x", "x", read_fields(ChunkSummary, b"", offset=0))
    assert section.columns == ("offset", "size", "field", "value", "hex")


def test_a_dump_shows_offset_bytes_and_text() -> None:
    assert hex_dump(b"hello\0" + bytes(11), offset=80) == [
        [80, "68656c6c 6f000000 00000000 00000000", "hello..........."],
        [96, "00", "."],
    ]
