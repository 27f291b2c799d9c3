"""Our own client under load: one process that writes events, or reads them, as a program would.

`python -m benchmarks.stream_client JSON`, with the fields of `ClientWork`; prints a `ClientResult` as JSON.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final

import uvloop

import millrace

_BLOCK_EVENTS: Final = 10_000
_EVENT_SIZE_BYTES: Final = 100
# How many events are written one by one between two readings of the clock.
_STRIDE_EVENTS: Final = 1_000
# Blocks per second of a writer that is paced, so that what it writes comes evenly.
_PACES_PER_S: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWork:
    """What to do: a key of `WORKS`, and for how long (writing) or how many events (reading, filling).

    Attributes:
        per_s: the rate of `paced`; one event at a time below `_PACES_PER_S`, else as many blocks.
    """

    what: str
    address: str
    stream: str
    duration_s: float = 0.0
    event_count: int = 0
    per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientResult:
    """What was done, the last event durable or read."""

    events: int
    elapsed_s: float
    # Processor time of the client.
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Events per second."""
        return self.events / self.elapsed_s


async def _write_many(client: millrace.Client, work: ClientWork) -> int:
    """Write blocks of 10,000 from a list until the time is over."""
    values = [os.urandom(_EVENT_SIZE_BYTES) for _ in range(_BLOCK_EVENTS)]
    deadline_s = time.perf_counter() + work.duration_s
    events = 0
    async with client.writer(work.stream) as writer:
        while time.perf_counter() < deadline_s:
            written = writer.write_many(values)
            events += len(values)
            await writer.drain()
        await written
    return events


async def _fill(client: millrace.Client, work: ClientWork) -> int:
    """Write at least that many events."""
    values = [os.urandom(_EVENT_SIZE_BYTES) for _ in range(_BLOCK_EVENTS)]
    events = 0
    async with client.writer(work.stream) as writer:
        while events < work.event_count:
            written = writer.write_many(values)
            events += len(values)
            await writer.drain()
        await written
    return events


async def _write_paced(client: millrace.Client, work: ClientWork) -> int:
    """Write at a rate until the time is over; what is late is made up for."""
    paces_per_s = min(work.per_s, _PACES_PER_S)
    values = [os.urandom(_EVENT_SIZE_BYTES) for _ in range(round(work.per_s / paces_per_s))]
    begin_s = time.perf_counter()
    blocks = round(work.duration_s * paces_per_s)
    async with client.writer(work.stream) as writer:
        for number in range(blocks):
            await asyncio.sleep(begin_s + number / paces_per_s - time.perf_counter())
            # The key leads each block to another segment, as a topic without keys leads to another partition.
            await writer.write_many(values, key=f"key-{number}")
    return blocks * len(values)


async def _write_one_by_one(client: millrace.Client, work: ClientWork) -> int:
    """Write single events until the time is over; keep every future and check each result."""
    values = [os.urandom(_EVENT_SIZE_BYTES) for _ in range(_STRIDE_EVENTS)]
    deadline_s = time.perf_counter() + work.duration_s
    events = 0
    strides: list[list[asyncio.Future[millrace.WriteResult]]] = []
    async with client.writer(work.stream) as writer:
        while time.perf_counter() < deadline_s:
            strides.append([writer.write(value) for value in values])
            events += len(values)
            await writer.drain()
            while strides and strides[0][-1].done():
                for future in strides.pop(0):
                    future.result()
        await writer.flush()
    for stride in strides:
        for future in stride:
            future.result()
    return events


async def _read_batches(client: millrace.Client, work: ClientWork) -> int:
    events = 0
    async with client.reader(work.stream, start=millrace.HEAD, end=millrace.TAIL) as reader:
        async for batch in reader.arrow_batches():
            events += batch.num_rows
    return events


async def _read_one_batch(client: millrace.Client, work: ClientWork) -> None:
    """Load what is loaded with the first batch: a cost of the process, not of its events."""
    async with client.reader(work.stream, start=millrace.HEAD, end=millrace.TAIL) as reader:
        async for batch in reader.arrow_batches():
            assert batch.num_rows
            break


async def _read_one_by_one(client: millrace.Client, work: ClientWork) -> int:
    events = size = 0
    async with client.reader(work.stream, start=millrace.HEAD, end=millrace.TAIL) as reader:
        async for event in reader:
            events += 1
            size += len(event.value)
            if events == work.event_count:
                break
    assert size == events * _EVENT_SIZE_BYTES
    return events


WORKS: Final[dict[str, Callable[[millrace.Client, ClientWork], Awaitable[int]]]] = {
    "fill": _fill,
    "write_many": _write_many,
    "write": _write_one_by_one,
    "paced": _write_paced,
    "arrow_batches": _read_batches,
    "async_for": _read_one_by_one,
}


async def run_client(work: ClientWork) -> ClientResult:
    """Do the work; the stream is created if there is none."""
    # Loaded on first use otherwise, and then measured.
    importlib.import_module("pyarrow")
    async with millrace.connect(work.address) as client:
        await client.create_stream(work.stream)
        if work.what == "arrow_batches":
            await _read_one_batch(client, work)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        events = await WORKS[work.what](client, work)
        return ClientResult(
            events=events, elapsed_s=time.perf_counter() - begin_s, cpu_s=time.process_time() - begin_cpu_s
        )


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(run_client(ClientWork(**json.loads(sys.argv[1])))))))
