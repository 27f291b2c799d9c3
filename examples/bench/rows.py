"""The measurements of `millrace bench`: what one client gets from one server, beside what the disk gives.

Each row runs for about as long as it is told, in one process with one connection. Every append counted is durable.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

from millrace.client.client import Client
from millrace.client.read.reader import Reader
from millrace.client.write.writer import Writer
from millrace.model.cut import HEAD, TAIL
from millrace.server.offline.disk import percentile
from millrace.wire.limits import MIB

SMALL_BYTES: Final = 100
OUTSTANDING: Final = 256
LARGE_OUTSTANDING: Final = 4
BLOCK_EVENTS: Final = 10_000
EVENTS_BETWEEN_DRAINS: Final = 1_000
READ_BYTES: Final = 8 * MIB

Unit = Literal["s", "/s", "B/s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        bare: the same asked of the bare disk in the same run, where that makes sense.
    """

    name: str
    value: float
    unit: Unit
    bare: float | None = None
    bare_name: str = ""

    @property
    def ratio(self) -> float | None:
        """How often the bare figure fits in: for times, how much longer; for rates, which part."""
        return self.value / self.bare if self.bare else None


async def round_trips(client: Client, duration_s: float) -> float:
    """Return the median seconds of a question that touches no disk."""
    times_s = []
    deadline_s = time.perf_counter() + duration_s
    while time.perf_counter() < deadline_s:
        times_s.append(await client.ping())
    return percentile(sorted(times_s), 50)


async def appends_one_by_one(client: Client, segment: str, duration_s: float) -> list[float]:
    """Return the ascending seconds of appends of 100 bytes, each sent when the one before was durable."""
    payload = bytes(SMALL_BYTES)
    handle = await client.segments.open(segment)
    times_s = []
    deadline_s = time.perf_counter() + duration_s
    while (before_s := time.perf_counter()) < deadline_s:
        await handle.append(payload)
        times_s.append(time.perf_counter() - before_s)
    return sorted(times_s)


async def pipelined_appends(
    client: Client, segment: str, duration_s: float, *, size_bytes: int, outstanding: int
) -> float:
    """Return appends per second with so many on their way at once."""
    payload = bytes(size_bytes)
    handle = await client.segments.open(segment)
    await handle.drain()
    on_their_way: deque[asyncio.Future[int]] = deque()
    count = 0
    started_s = time.perf_counter()
    while time.perf_counter() - started_s < duration_s:
        while len(on_their_way) < outstanding:
            on_their_way.append(handle.append_nowait(payload))
        await on_their_way.popleft()
        count += 1
        while on_their_way and on_their_way[0].done():
            on_their_way.popleft().result()
            count += 1
    while on_their_way:
        await on_their_way.popleft()
        count += 1
    return count / (time.perf_counter() - started_s)


async def events_in_blocks(client: Client, stream: str, duration_s: float) -> float:
    """Return events of 100 bytes per second through `write_many`."""
    values = [bytes(SMALL_BYTES)] * BLOCK_EVENTS
    async with _timed_writer(client, stream) as (writer, elapsed_s):
        count = 0
        while elapsed_s() < duration_s:
            _ = writer.write_many(values)  # `flush` tells of failures
            count += BLOCK_EVENTS
            await writer.drain()
        await writer.flush()
        return count / elapsed_s()


async def events_one_by_one(client: Client, stream: str, duration_s: float) -> float:
    """Return events of 100 bytes per second through `write`, a future each."""
    value = bytes(SMALL_BYTES)
    async with _timed_writer(client, stream) as (writer, elapsed_s):
        count = 0
        write = writer.write
        while elapsed_s() < duration_s:
            for _ in range(EVENTS_BETWEEN_DRAINS):
                _ = write(value)
            count += EVENTS_BETWEEN_DRAINS
            await writer.drain()
        await writer.flush()
        return count / elapsed_s()


async def bytes_back(client: Client, segment: str, duration_s: float) -> float:
    """Return bytes of a segment read per second, from its start, again and again."""
    info = await client.segments.info(segment)
    position, count = info.start_offset, 0
    started_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started_s) < duration_s:
        if position >= info.length:
            position = info.start_offset
        result = await client.segments.read(segment, position, max_bytes=READ_BYTES)
        position = result.next_offset
        count += len(result.data)
    return count / elapsed_s


async def events_back(client: Client, stream: str, duration_s: float) -> float:
    """Return events read per second one by one, from the head."""
    return await _read_again_and_again(client, stream, duration_s, _count_events)


async def events_back_as_arrow(client: Client, stream: str, duration_s: float) -> float:
    """Return events read per second as record batches, from the head; needs pyarrow."""
    return await _read_again_and_again(client, stream, duration_s, _count_rows)


async def _count_events(reader: Reader, deadline_s: float) -> int:
    count = 0
    async for _ in reader:
        count += 1
        if not count % BLOCK_EVENTS and time.perf_counter() > deadline_s:
            break
    return count


async def _count_rows(reader: Reader, deadline_s: float) -> int:
    count = 0
    async for batch in reader.arrow_batches():
        count += batch.num_rows
        if time.perf_counter() > deadline_s:
            break
    return count


async def _read_again_and_again(
    client: Client, stream: str, duration_s: float, count: Callable[[Reader, float], Awaitable[int]]
) -> float:
    total, found = 0, 1
    started_s = time.perf_counter()
    while found and time.perf_counter() - started_s < duration_s:
        async with client.reader(stream, start=HEAD, end=TAIL) as reader:
            found = await count(reader, started_s + duration_s)
        total += found
    return total / (time.perf_counter() - started_s)


@asynccontextmanager
async def _timed_writer(client: Client, stream: str) -> AsyncIterator[tuple[Writer, Callable[[], float]]]:
    async with client.writer(stream) as writer:
        started_s = time.perf_counter()
        yield writer, lambda: time.perf_counter() - started_s
