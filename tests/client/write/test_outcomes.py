"""Behaviour 88: futures of one key resolve in the order written."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import random
from collections import deque

import pytest

from millrace.client.errors import WriterFencedError
from millrace.client.write.events import Block, Call, WriteResult
from millrace.client.write.outcomes import Outcomes
from millrace.model.errors import EventTooLargeError
from millrace.model.key_range import key_place
from millrace.wire.errors import ErrorCode
from tests.client.write.writers import error_of, writing
from tests.support.model_server import ModelServer, turns

pytestmark = pytest.mark.asyncio


def stored(segment_id: int) -> WriteResult:
    return WriteResult(segment_id, 0, 1, 1)


def block(order: int, future: "asyncio.Future[WriteResult]") -> Block:
    return Block(bytearray(b"x"), [future], 1, 1, 1, order=order)


def part(call: Call) -> Block:
    return Block(bytearray(b"x"), [], 1, 1, 1, call=call, order=call.order)


async def test_a_call_ends_with_the_result_of_its_last_block_or_the_first_error() -> None:
    for error in (None, EventTooLargeError("large")):
        call = Call(asyncio.get_running_loop().create_future(), order=1)
        outcomes = Outcomes()
        outcomes.expect(call, 3)
        outcomes.settle(part(call), stored(3))
        outcomes.settle(part(call), error or stored(1))
        assert not call.future.done()
        outcomes.settle(part(call), stored(2))
        assert call.future.exception() is error
        if error is None:
            assert call.future.result().segment_id == 2


async def test_what_was_written_after_a_call_waits_for_all_of_its_blocks() -> None:
    loop = asyncio.get_running_loop()
    call = Call(loop.create_future(), order=2)
    before, after = block(1, loop.create_future()), block(3, loop.create_future())
    first, last = before.futures[0], after.futures[0]
    outcomes = Outcomes()
    outcomes.expect(call, 2)
    outcomes.settle(part(call), stored(1))
    outcomes.settle(after, stored(1))
    assert not last.done()
    outcomes.settle(before, stored(2))
    assert first.done()
    outcomes.settle(part(call), stored(2))
    assert call.future.done()
    assert last.done()


async def test_a_call_of_one_block_that_is_divided_later_is_waited_for_too() -> None:
    loop = asyncio.get_running_loop()
    older, newer = (Call(loop.create_future(), order=order) for order in (1, 2))
    outcomes = Outcomes()
    outcomes.expect(older, 1)
    outcomes.expect(newer, 2)
    outcomes.expect(older, 1)  # its block became two
    outcomes.settle(part(newer), stored(1))
    outcomes.settle(part(newer), stored(2))
    outcomes.settle(part(older), stored(1))
    assert not newer.future.done()
    outcomes.settle(part(older), stored(2))
    assert older.future.done()
    assert newer.future.done()


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_the_order_of_segments_each_one_resolves_in_its_order(seed: int) -> None:
    dice = random.Random(seed)
    loop = asyncio.get_running_loop()
    outcomes = Outcomes()
    segments: list[deque[Block]] = [deque() for _ in range(4)]
    resolved: list[list[int]] = [[] for _ in segments]
    written: list[list[int]] = [[] for _ in segments]
    for order in range(1, 60):
        future: asyncio.Future[WriteResult] = loop.create_future()
        numbers = dice.sample(range(4), dice.choice([1, 1, 1, 2, 4]))
        call = Call(future, order=order) if dice.random() < 0.7 or len(numbers) > 1 else None
        for number in numbers:
            segments[number].append(part(call) if call else block(order, future))
            written[number].append(order)
            future.add_done_callback(lambda _, number=number, order=order: resolved[number].append(order))  # type: ignore[misc]  # defaults
        if call:
            outcomes.expect(call, len(numbers))
    while any(segments):
        segment = dice.choice([each for each in segments if each])
        outcomes.settle(segment.popleft(), stored(1))
    await asyncio.sleep(0)
    assert resolved == written, f"seed {seed}"


# --- of a whole writer ---


async def test_futures_fail_in_the_order_written() -> None:
    """Behaviour 88, when the writer ends: what is in flight, what is queued, what is gathered."""
    server = ModelServer()
    server.appends_in_flight_max = 2
    async with writing(server) as writer:
        order: list[int] = []
        futures = [writer.write_many([b"%d" % number], key="k") for number in range(4)] + [writer.write(b"4", key="k")]
        await turns()
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]  # a default
        server.refuse(ErrorCode.WRITER_FENCED)
        await turns()
        assert order == []  # one is in flight still
        server.refuse(ErrorCode.WRITER_FENCED)
        await turns()
        assert order == [0, 1, 2, 3, 4]
        with pytest.raises(WriterFencedError):
            await writer.flush()
        assert writer.pending_bytes == 0


def noting(order: list[str], **futures: "asyncio.Future[WriteResult]") -> None:
    """Add the names of futures to `order` when they are done."""
    for name, future in futures.items():
        future.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]  # a default


def keys_of_both(server: ModelServer) -> tuple[str, str]:
    """Return a key of each of two segments."""
    border = server.segments[server.open_ids()[1]].low
    keys = [f"k{number}" for number in range(20)]
    return next(key for key in keys if key_place(key) < border), next(key for key in keys if key_place(key) >= border)


async def test_what_follows_a_call_in_one_of_its_segments_resolves_after_it() -> None:
    """Behaviour 88."""
    server = ModelServer(segment_count=2)
    low, high = keys_of_both(server)
    async with writing(server) as writer:
        order: list[str] = []
        noting(order, call=writer.write_many([b"1", b"1"], keys=[low, high]), after=writer.write_many([b"2"], key=low))
        await turns()
        held = [append for append in server.arrived if append.segment_id == 2]
        for append in held:
            server.arrived.remove(append)
        server.answer()
        await turns()
        assert order == []
        assert writer.statistics().in_flight_bytes > 0
        server.arrived.extend(held)
        server.answer()
        await turns()
        assert order == ["call", "after"]


async def test_a_call_that_a_split_divides_resolves_before_what_follows_it() -> None:
    """Behaviour 88, while the stream is scaled."""
    server = ModelServer()
    async with writing(server) as writer:
        order: list[str] = []
        keys = [f"k{number}" for number in range(8)]
        noting(order, call=writer.write_many([b"1"] * 8, keys=keys))
        noting(order, **{key: writer.write_many([b"2"], key=key) for key in keys})
        server.replace([1], 2)
        server.answer()
        for _ in range(4):
            await turns()
            server.answer()
        assert order[0] == "call"
        assert set(order[1:]) == set(keys)


async def test_a_block_that_was_stored_with_an_unknown_outcome_resolves_before_what_follows_it() -> None:
    """Behaviour 88."""
    server = ModelServer()
    async with writing(server) as writer:
        order: list[str] = []
        noting(order, first=writer.write_many([b"1"], key="k"), second=writer.write_many([b"2"], key="k"))
        await turns()
        server.refuse(ErrorCode.OUTCOME_UNKNOWN, stored=True)
        server.answer()
        await turns()
        assert order == ["first", "second"]
        await writer.flush()


async def test_what_no_append_can_hold_any_more_fails_after_what_was_written_before_it() -> None:
    """Behaviour 88, after a restart of the server with a lower limit."""
    server = ModelServer()
    async with writing(server) as writer:
        order: list[str] = []
        server.append_size_max = 1000
        server.lose()
        await turns()
        futures = {"first": writer.write_many([b"1"], key="k")}
        await turns()
        assert len(server.arrived) == 1
        # Limits of the connection before, as they are until the next one is made.
        writer._delivery.append_size_max = writer._delivery.block_size_bytes = 10_000
        futures["large"] = writer.write(bytes(5000), key="k")
        writer._delivery.append_size_max = 1000
        noting(order, **futures)
        await turns()
        writer._delivery.send_gathered(writer._delivery.targets.segments[0])
        await turns()
        assert order == []
        server.answer()
        await turns()
        assert order == ["first", "large"]
        assert isinstance(await error_of(futures["large"]), EventTooLargeError)
