"""What both readers have in common, of blocks that the test gives."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
import pytest

from millrace.client.read.event_reader import EventReader
from millrace.model.event import Event

pytestmark = pytest.mark.asyncio


class Reading(EventReader):
    """Reads the blocks that were put in; ends where one is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: deque[list[Event]] = deque()

    def put(self, *numbers: int) -> None:
        self.blocks.append([Event(b"%d" % number, None, None, 1, 0, number) for number in numbers])
        self._wake()

    def close(self) -> None:
        self._closed = True

    async def arrow_batches(self) -> AsyncIterator[pa.RecordBatch]:
        while events := await self.next_events():
            yield pa.record_batch({"value": [event.value for event in events]})

    def _facts(self) -> Iterator[str]:
        yield f"of {len(self.blocks)} blocks"

    async def _next_block(self) -> bool:
        while not self.blocks:
            await self._wait()
        events = self.blocks.popleft()
        self._events = iter(events)
        return bool(events)


def indexes(events: list[Event]) -> list[int]:
    return [event.index for event in events]


async def test_events_of_blocks_come_one_by_one_up_to_the_end() -> None:
    reader = Reading()
    reader.put(1, 2)
    reader.put(3)
    reader.put()
    assert indexes([event async for event in reader]) == [1, 2, 3]


async def test_a_block_is_handed_out_from_where_it_was_left() -> None:
    reader = Reading()
    reader.put(1, 2, 3)
    reader.put(4)
    reader.put()
    assert (await anext(reader)).index == 1
    assert [indexes(await reader.next_events()) for _ in range(3)] == [[2, 3], [4], []]


async def test_a_wait_that_is_cancelled_loses_nothing() -> None:
    reader = Reading()
    waiting = asyncio.create_task(anext(reader))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    reader.put(1)
    assert (await anext(reader)).index == 1


async def test_leaving_closes() -> None:
    reader = Reading()
    await reader.__aexit__(None, None, None)
    assert reader._closed
