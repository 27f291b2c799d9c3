"""Blocks out of bytes that are cut anywhere, without a server."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.errors import ConnectionLostError, SegmentNotFoundError
from millrace.client.read.block_stream import BlockStream
from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_packing import pack_block
from millrace.model.errors import BlockCorruptError, CutInvalidError, EventTooLargeError
from tests.support.fake_connection import FakeServer

pytestmark = pytest.mark.asyncio

WINDOW_BYTES = 1024


def block(count: int, size: int = 8) -> bytes:
    return bytes(pack_block([b"v" * size] * count, timestamps_us=0, first_event_number=1))


class Case:
    """A block stream of a server without sockets, which starts at the first of some blocks."""

    def __init__(
        self,
        blocks: list[bytes],
        *,
        start: tuple[int, int] = (0, 0),
        end: tuple[int, int] | None = None,
        block_bytes_max: int | None = None,
    ) -> None:
        self.server = FakeServer()
        self.data = b"".join(blocks)
        self.offsets = [0, *itertools.accumulate(len(each) for each in blocks)]
        self.changes = 0
        self.stream = BlockStream(
            self.server.channel,
            7,
            start=start,
            end=end,
            window_bytes=WINDOW_BYTES,
            block_bytes_max=block_bytes_max,
            on_change=self._changed,
        )

    def _changed(self, stream: BlockStream) -> None:
        assert stream is self.stream
        self.changes += 1

    async def open(self) -> None:
        self.stream.start()
        for _ in range(10):
            await asyncio.sleep(0)

    def push(self, start: int, end: int, *, is_end: bool = False) -> None:
        self.server.connection.push(start, self.data[start:end], end=is_end)

    def taken(self) -> list[tuple[int, int, int]]:
        return [(placed.offset, placed.start, placed.end) for placed in iter(self.stream.take, None)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.data())
async def test_blocks_are_whole_wherever_the_bytes_are_cut(counts: list[int], data: st.DataObject) -> None:
    case = Case([block(count) for count in counts])
    await case.open()
    cuts = data.draw(st.lists(st.integers(1, len(case.data) - 1), max_size=8, unique=True))
    for start, end in itertools.pairwise([0, *sorted(cuts), len(case.data)]):
        case.push(start, end, is_end=end == len(case.data))
    expected = [(offset, 0, count) for offset, count in zip(case.offsets, counts, strict=False)]
    assert case.taken() == expected
    assert case.stream.finished


async def test_a_block_above_the_limit_and_the_window_is_not_fetched() -> None:
    """Behaviour 104: its size is known when no more of it than its header has come."""
    large = block(100, 100)
    case = Case([block(1), large], block_bytes_max=len(large) - 1)
    await case.open()
    case.push(0, case.offsets[1] + BLOCK_HEADER_SIZE_BYTES)
    assert (placed := case.stream.take()) is not None
    assert placed.offset == 0
    with pytest.raises(EventTooLargeError) as caught:
        case.stream.take()
    assert caught.value.length == len(large)

    case = Case([large], block_bytes_max=len(large))
    await case.open()
    case.push(0, len(large))
    assert case.taken() == [(0, 0, 100)]


async def test_a_block_larger_than_the_window_comes_as_a_whole() -> None:
    case = Case([block(1), block(100, 100), block(1)])
    await case.open()
    connection = case.server.connection
    sent = 0
    while sent < len(case.data):
        allowed = min(connection.credit_bytes, len(case.data))
        assert allowed > sent, "the reader waits for bytes that the server may not push"
        case.push(sent, allowed)
        sent = allowed
        if not case.stream.ready:
            continue
        case.taken()
    assert connection.credit_bytes >= len(case.data) + WINDOW_BYTES * 3 // 4
    case.stream.close()


async def test_what_waits_to_be_taken_fills_the_window() -> None:
    blocks = [block(4) for _ in range(40)]
    case = Case(blocks)
    await case.open()
    case.push(0, case.offsets[2])
    assert case.server.connection.credit_bytes == WINDOW_BYTES
    case.stream.take()
    case.stream.take()
    assert case.server.connection.credit_bytes in (WINDOW_BYTES, case.offsets[2] + WINDOW_BYTES)
    case.stream.close()


async def test_events_outside_of_start_and_end_are_cut_off() -> None:
    size = len(block(5))
    case = Case([block(5)] * 3, start=(0, 2), end=(2 * size, 3))
    await case.open()
    case.push(0, len(case.data))
    assert case.taken() == [(0, 2, 5), (size, 0, 5), (2 * size, 0, 3)]
    assert case.stream.finished
    assert case.server.connection.subscriber is None, "nothing more was asked for"


async def test_an_end_at_a_border_needs_no_byte_after_it() -> None:
    size = len(block(5))
    case = Case([block(5)] * 2, end=(size, 0))
    await case.open()
    case.push(0, size + 10)
    assert case.taken() == [(0, 0, 5)]
    assert case.stream.finished


async def test_a_stream_of_nothing_is_finished_and_asks_nothing() -> None:
    case = Case([], start=(10, 0), end=(10, 0))
    assert case.stream.finished
    assert await case.stream.next() is None
    await case.open()
    assert case.server.connections == []


@pytest.mark.parametrize("pushed", [8, 30, None])
async def test_an_end_inside_a_block_is_no_cut(pushed: int | None) -> None:
    case = Case([block(5)], end=(8, 0))
    await case.open()
    case.push(0, pushed or len(case.data))
    with pytest.raises(CutInvalidError, match="not a block border"):
        case.stream.take()


@pytest.mark.parametrize(("start", "end"), [((0, 6), None), ((0, 0), (0, 6))])
async def test_an_index_after_the_last_event_is_no_cut(start: tuple[int, int], end: tuple[int, int] | None) -> None:
    case = Case([block(5)], start=start, end=end)
    await case.open()
    case.push(0, len(case.data))
    with pytest.raises(CutInvalidError, match="has 5 events"):
        case.stream.take()


async def test_blocks_before_a_failure_are_taken_first() -> None:
    case = Case([block(5)])
    await case.open()
    case.push(0, len(case.data))
    case.server.connection.refuse(SegmentNotFoundError("gone"))
    assert (await case.stream.next()) is not None
    assert case.stream.ready
    with pytest.raises(SegmentNotFoundError):
        await case.stream.next()
    assert not case.stream.finished


async def test_bytes_that_are_no_block_fail_where_they_are() -> None:
    case = Case([block(5), b"garbage " * 10])
    await case.open()
    case.push(0, len(case.data))
    assert case.stream.take() is not None
    with pytest.raises(BlockCorruptError, match=f"offset {case.offsets[1]}"):
        case.stream.take()
    assert case.server.connection.subscriber is None


async def test_a_segment_that_ends_inside_a_block_is_corrupt() -> None:
    case = Case([block(5)])
    await case.open()
    case.push(0, 40, is_end=True)
    with pytest.raises(BlockCorruptError, match="ends inside the block"):
        case.stream.take()


async def test_a_block_continues_over_a_lost_connection() -> None:
    case = Case([block(5)])
    await case.open()
    case.push(0, 40)
    case.server.connection.lose(ConnectionLostError("cut"))
    waiting = asyncio.create_task(case.stream.next())
    await case.open()
    assert case.server.connection.asked[0].offset == 40
    case.push(40, len(case.data))
    placed = await waiting
    assert placed is not None
    assert placed.next_place == (len(case.data), 0)
    case.stream.close()
