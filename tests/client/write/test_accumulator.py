import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.client.write.accumulator import Accumulator
from millrace.client.write.events import Call, Events, WriteResult
from millrace.model.compression import Compression
from millrace.model.errors import EventTooLargeError
from tests.support.examples import examples

LARGE = 1 << 20


def gathering(events: list[tuple[bytes, str | None]], last: int = 0) -> Accumulator:
    made = Accumulator(last_event_number=last, compression=Compression.NONE)
    made.extend(events_of(events))
    return made


def events_of(events: list[tuple[bytes, str | None]]) -> Events:
    loop = asyncio.new_event_loop()
    futures: list[asyncio.Future[WriteResult]] = [loop.create_future() for _ in events]
    loop.close()
    return Events(
        values=[value for value, _ in events],
        keys=[key for _, key in events],
        times=list(range(len(events))),
        futures=futures,
        cost_bytes=sum(len(value) for value, _ in events),
    )


@settings(max_examples=examples(40))
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
    blocks = made.pack_gathered(size_max, order=1)
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
    assert made.pack_gathered(size_max, order=1) == []


def test_an_event_that_no_append_can_hold_any_more_is_a_block_with_an_error() -> None:
    made = gathering([(b"a", None), (bytes(2000), None), (b"b", None)])
    blocks = made.pack_gathered(1000, order=1)
    assert [(block.event_count, isinstance(block.error, EventTooLargeError)) for block in blocks] == [
        (1, False), (1, True), (1, False),
    ]  # fmt: skip


def test_a_block_of_a_call_is_cut_only_if_it_was_several() -> None:
    """All or nothing is what a segment stores of a call; what several stored of it is not all or nothing anyway."""
    loop = asyncio.new_event_loop()
    call = Call(loop.create_future(), order=4)
    loop.close()
    whole = events_of([(bytes(600), None), (bytes(600), None)])._replace(futures=[], call=call, order=4, block_count=1)
    (block,) = Accumulator(last_event_number=0, compression=Compression.NONE).pack(whole, 1000)
    assert isinstance(block.error, EventTooLargeError)
    assert (block.call, block.order) == (call, 4)
    parts = Accumulator(last_event_number=0, compression=Compression.NONE).pack(whole._replace(block_count=2), 1000)
    assert [(each.event_count, each.error, each.call, each.order) for each in parts] == [(1, None, call, 4)] * 2


def test_what_is_gathered_has_the_order_of_what_was_gathered_first() -> None:
    made = gathering([(b"a", "k")])
    (block,) = made.pack_gathered(LARGE, order=7)
    assert block.order == 7
    made.extend(events_of([(b"a", "k")])._replace(order=3))
    made.extend(events_of([(b"b", "k")])._replace(order=5))
    (block,) = made.pack_gathered(LARGE, order=8)
    assert (block.order, block.event_count) == (3, 2)


def test_what_is_packed_follows_what_was_gathered() -> None:
    made = gathering([(b"a", "k"), (b"b", "k")], last=4)
    block = made.packed(Events([b"c"], "k", 0, [], 0), LARGE)
    (gathered,) = made.pack_gathered(LARGE, order=1)
    made.number(block)
    assert (gathered.event_number, block.event_number) == (5, 7)
