import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES, BlockHeader
from millrace.model.block_packing import pack_block
from millrace.model.block_scan import HEADER_STRUCT, WALK_READ_BYTES, BlockWalk, fields_at
from millrace.model.errors import BlockCorruptError
from millrace.wire.codec import fixed_struct


def test_the_header_is_read_as_it_is_declared() -> None:
    """The model derives its one flat format by itself: the codec of the wire would derive the same."""
    assert fixed_struct(BlockHeader, name="BlockHeader").format == HEADER_STRUCT.format

    data = pack_block([b"hi", b"yo!"], keys="k", timestamps_us=[3, 9], first_event_number=7)
    declared = BlockHeader.parse(data)
    assert fields_at(data)._asdict() == {name: declared[name] for name in fields_at(data)._fields}


@given(sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=12), read_bytes=st.integers(56, 100_000))
def test_a_walk_meets_every_block_however_the_bytes_are_cut(sizes: list[int], read_bytes: int) -> None:
    blocks = [pack_block([b"x" * size] * (1 + size % 3)) for size in sizes]
    data = b"".join(blocks)
    start = 8000
    walk = BlockWalk(start)
    met = []
    while walk.offset < start + len(data):
        place = walk.offset - start
        met += list(walk.feed(data[place : place + min(read_bytes, walk.read_size_bytes)]))

    assert [header.fields.event_count for header in met] == [1 + size % 3 for size in sizes]
    assert [header.end - header.offset for header in met] == [len(block) for block in blocks]
    assert met[0].offset == start
    assert walk.offset == start + len(data)


def test_after_a_large_block_only_a_header_is_read() -> None:
    walk = BlockWalk(0)
    assert walk.read_size_bytes == WALK_READ_BYTES
    list(walk.feed(pack_block([bytes(20_000)])[:100]))
    assert walk.read_size_bytes == BLOCK_HEADER_SIZE_BYTES


def test_a_walk_stops_where_no_block_starts() -> None:
    walk = BlockWalk(0)
    data = bytes(pack_block([b"a"])) + b"noise" * 20
    with pytest.raises(BlockCorruptError, match="no event block starts with"):
        list(walk.feed(data))
    assert walk.offset == len(pack_block([b"a"]))
