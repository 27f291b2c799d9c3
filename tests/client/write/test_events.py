import asyncio

import pytest

from millrace.client.write.accumulator import Accumulator
from millrace.client.write.events import Block, Call, Events, WriteResult, joined
from millrace.model.compression import Compression

STORED = WriteResult(1, 0, 1, 2)


@pytest.mark.asyncio
async def test_a_cancelled_future_stays_so() -> None:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[WriteResult]] = [loop.create_future() for _ in range(2)]
    futures[0].cancel()
    block = Block(bytearray(b"x"), list(futures), 1, 2, 0)
    block.resolve(STORED)
    assert futures[0].cancelled()
    assert futures[1].result() == STORED


@pytest.mark.asyncio
async def test_parts_of_a_call_are_joined_with_their_headers() -> None:
    call = Call(asyncio.get_running_loop().create_future(), order=3)
    parts = []
    for number in range(2):
        events = Events([b"a", b"b"], ["k", "l"], [1, 2], [], 9, {1: {"part": b"%d" % number}}, call, order=3)
        (block,) = Accumulator(last_event_number=0, compression=Compression.NONE).pack(events, 1000)
        parts.append(block.unpack())
    whole = joined(parts)
    assert whole.values == [b"a", b"b"] * 2
    assert whole.keys == ["k", "l"] * 2
    assert whole.times == [1, 2] * 2
    assert whole.headers == {1: {"part": b"0"}, 3: {"part": b"1"}}
    assert (whole.call, whole.order, whole.block_count, whole.cost_bytes) == (call, 3, 2, 18)
    assert joined(parts[:1]) is parts[0]
