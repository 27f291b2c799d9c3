import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.client.write.accumulator import Accumulator, Block, Events, Join, Stored
from millrace.model.compression import Compression
from millrace.model.errors import EventTooLargeError

LARGE = 1 << 20


def gathering(events: list[tuple[bytes, str | None]], last: int = 0) -> Accumulator:
    made = Accumulator(last_event_number=last, compression=Compression.NONE)
    made.extend(events_of(events))
    return made


def events_of(events: list[tuple[bytes, str | None]]) -> Events:
    loop = asyncio.new_event_loop()
    futures: list[asyncio.Future[Stored]] = [loop.create_future() for _ in events]
    loop.close()
    return Events(
        values=[value for value, _ in events],
        keys=[key for _, key in events],
        times=list(range(len(events))),
        futures=futures,
        cost_bytes=sum(len(value) for value, _ in events),
    )


@settings(max_examples=40)
@given(
    events=st.lists(st.tuples(st.binary(max_size=300), st.none() | st.text(max_size=5)), min_size=1, max_size=30),
    size_max=st.integers(500, 3000),
    last=st.integers(0, 100),
)
def test_gathered_events_become_blocks_that_fit_in_order_and_without_a_gap(
    events: list[tuple[bytes, str | None]], size_max: int, last: int
) -> None:
    made = gathering(events, last)
    futures = list(made.futures)
    blocks = made.pack_gathered(size_max)
    assert [block.event_number for block in blocks] == [
        last + 1 + sum(block.event_count for block in blocks[:index]) for index in range(len(blocks))
    ]
    assert made.last_number == last + len(events) == blocks[-1].last_number
    assert all(len(block.payload) <= size_max and block.error is None for block in blocks)
    assert [future for block in blocks for future in block.futures] == futures
    assert sum(block.cost_bytes for block in blocks) == sum(len(value) for value, _ in events)
    unpacked = [block.unpack() for block in blocks]
    assert [event for part in unpacked for event in zip(part.values, part.keys or (), strict=True)] == events
    assert [time for part in unpacked if isinstance(part.times, list) for time in part.times] == list(
        range(len(events))
    )
    assert made.pack_gathered(size_max) == []


def test_an_event_that_no_append_can_hold_any_more_is_a_block_with_an_error() -> None:
    made = gathering([(b"a", None), (bytes(2000), None), (b"b", None)])
    blocks = made.pack_gathered(1000)
    assert [(block.event_count, isinstance(block.error, EventTooLargeError)) for block in blocks] == [
        (1, False), (1, True), (1, False),
    ]  # fmt: skip


def test_a_block_that_was_written_as_one_is_never_cut() -> None:
    events = events_of([(bytes(600), None), (bytes(600), None)])
    one = events._replace(futures=events.futures[:1])
    assert one.is_block
    (block,) = Accumulator(last_event_number=0, compression=Compression.NONE).pack(one, 1000)
    assert isinstance(block.error, EventTooLargeError)
    assert block.futures == one.futures


def test_what_is_packed_follows_what_was_gathered() -> None:
    made = gathering([(b"a", "k"), (b"b", "k")], last=4)
    block = made.packed(Events([b"c"], "k", 0, [], 0), LARGE)
    (gathered,) = made.pack_gathered(LARGE)
    made.number(block)
    assert (gathered.event_number, block.event_number) == (5, 7)


@pytest.mark.asyncio
async def test_a_cancelled_future_stays_so() -> None:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Stored]] = [loop.create_future() for _ in range(2)]
    futures[0].cancel()
    block = Block(bytearray(b"x"), list(futures), 1, 2, 0)
    stored = Stored(1, 0, 1, 2)
    block.resolve(stored)
    assert futures[0].cancelled()
    assert futures[1].result() == stored


@pytest.mark.asyncio
async def test_joined_futures_end_with_the_last_result_or_the_first_error() -> None:
    loop = asyncio.get_running_loop()
    for error in (None, EventTooLargeError("large")):
        result: asyncio.Future[Stored] = loop.create_future()
        join = Join(result, 3)
        parts = [join.part() for _ in range(3)]
        parts[2].set_result(Stored(3, 0, 1, 1))
        if error is None:
            parts[0].set_result(Stored(1, 0, 1, 1))
        else:
            parts[0].set_exception(error)
        await asyncio.sleep(0)
        assert result.done() == (error is not None)
        parts[1].set_result(Stored(2, 0, 1, 1))
        await asyncio.sleep(0)
        assert result.exception() is error
        if error is None:
            assert result.result().segment_id == 2
