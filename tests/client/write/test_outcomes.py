"""Behaviour 88: futures of one key resolve in the order written."""

import asyncio
import random
from collections import deque

import pytest

from millrace.client.write.events import Block, Call, Stored
from millrace.client.write.outcomes import Outcomes
from millrace.model.errors import EventTooLargeError

pytestmark = pytest.mark.asyncio


def stored(segment_id: int) -> Stored:
    return Stored(segment_id, 0, 1, 1)


def block(order: int, future: "asyncio.Future[Stored]") -> Block:
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
        future: asyncio.Future[Stored] = loop.create_future()
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
