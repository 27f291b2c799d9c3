import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_packing import pack_block
from millrace.model.block_times import blocks_of, with_times_between
from millrace.model.compression import Compression
from millrace.model.errors import BlockCorruptError
from millrace.model.event_block import unpack_block
from tests.support.event_blocks import COMPRESSIONS, EVENTS, HEADERS
from tests.support.tables import table


def test_blocks_of_an_append_are_found_with_their_times() -> None:
    first = pack_block([b"a", b"b"], timestamps_us=[3, -1])
    second = pack_block([b"c"])

    assert blocks_of(first + second) == [
        (0, len(first), (-1, 3), len(first) - BLOCK_HEADER_SIZE_BYTES),
        (len(first), len(first) + len(second), None, len(second) - BLOCK_HEADER_SIZE_BYTES),
    ]


@table("cut", [1, 8, 56, 60])
def test_a_part_of_a_block_is_not_an_append(cut: int) -> None:
    block = bytes(pack_block([b"a"], timestamps_us=1))

    for payload in (block[:cut], block + block[:cut], b"x" * 64):
        with pytest.raises(BlockCorruptError):
            blocks_of(payload)


@given(EVENTS, HEADERS, COMPRESSIONS, st.integers(-(2**62), 0), st.integers(0, 2**62))
def test_only_times_outside_change(
    events: list[tuple[bytes, str | None, int]],
    headers: dict[int, dict[str, bytes]],
    compression: Compression,
    low: int,
    high: int,
) -> None:
    values, keys, times = (list(column) for column in zip(*events, strict=True))
    headers = {index: each for index, each in headers.items() if index < len(values)}
    block = pack_block(
        values, keys=keys, timestamps_us=times, headers=headers, first_event_number=7, compression=compression
    )

    before, after = unpack_block(block), unpack_block(with_times_between(block, low, high))

    assert after.timestamps is not None
    assert after.timestamps.tolist() == [min(max(each, low), high) for each in times]
    assert (after.fields.timestamp_us_min, after.fields.timestamp_us_max) == (
        after.timestamps.min(),
        after.timestamps.max(),
    )
    assert (after.values(), after.keys(), after.headers()) == (before.values(), before.keys(), before.headers())
    assert after.fields.first_event_number == 7
