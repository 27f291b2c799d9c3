"""Closed loops of clients on a log in an object store: each appends again as soon as its last append is durable.

`python -m benchmarks.log_appender JSON`, with the fields of `LogAppenderOptions`; prints a `LogAppenderResult` as JSON.
What is measured is the log of one container over the retries of a server, without the network to a client.
"""

import asyncio
import json
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Final

import uvloop

from millrace.server.host.clock import SystemClock
from millrace.server.object_store import ObjectStore
from millrace.server.wal import LogOwner, ObjectWal, WalOptions
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import encode_append_header

from .far_store import FarStore, clear, connect, retrying
from .timing import Latencies

PREFIX: Final = "c0000/log/"
OWNER: Final = LogOwner(container_id=0, server_id=uuid.UUID(int=1))
FILES_MAX: Final = 256
"""A bound of the log that no measurement reaches: nothing is deleted meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAppenderOptions:
    """How to load the log below `url`, which is empty.

    Attributes:
        latency_s: before each PUT.
        clients: closed loops; 0 for bare PUTs of the payload without a log, one at a time.
        puts_per_s_max: as of `WalOptions`.
    """

    url: str
    latency_s: float
    clients: int
    payload_size: int
    puts_per_s_max: float
    warm_up_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAppenderResult:
    """What was measured after the warm-up."""

    p50_s: float
    p99_s: float
    appends: int
    # Asked of the store; what had to be asked again included.
    puts: int
    payload_bytes: int
    elapsed_s: float
    # How many were busy in this process, over all of its run.
    processors: float

    @property
    def puts_per_s(self) -> float:
        """PUTs per second, which is what a log in a store costs."""
        return self.puts / self.elapsed_s

    @property
    def bytes_per_s(self) -> float:
        """Bytes of payload per second, of all clients together."""
        return self.payload_bytes / self.elapsed_s


class _Clients:
    """The closed loops: client `n` appends to segment `n` of the log."""

    def __init__(self, log: ObjectWal, *, payload_size: int, from_s: float, until_s: float) -> None:
        self._log = log
        self._payload_size = payload_size
        self._from_s = from_s
        self._until_s = until_s
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self.samples_s: list[float] = []

    def on_durable(self, runs: list[AppendRun], sequence: int, wall_time_us: int) -> None:
        """Let those continue whose appends are durable."""
        del sequence, wall_time_us
        for run in runs:
            self._waiting.pop(run.segment_id).set_result(None)

    def on_failure(self, error: BaseException) -> None:
        """End all loops with the failure of the log."""
        for future in self._waiting.values():
            future.set_exception(error)

    async def run(self, number: int) -> None:
        """Append until the time is over; at least one append of each client counts."""
        payload = bytes(self._payload_size)
        frame = encode_append_header(request_id=1, segment_id=number, payload=payload) + payload
        offset = 0
        while True:
            begin_s = time.perf_counter()
            future = self._waiting[number] = asyncio.get_running_loop().create_future()
            self._log.submit(AppendRun(number, offset, frame, frame_count=1, frame_size=len(frame), event_count=1))
            await future
            now_s = time.perf_counter()
            offset += self._payload_size
            if begin_s >= self._from_s:
                self.samples_s.append(now_s - begin_s)
                if now_s >= self._until_s:
                    return


async def run_appender(options: LogAppenderOptions, store: ObjectStore) -> LogAppenderResult:
    """Load a log in a store, which is empty then and afterwards."""
    far = FarStore(store, options.latency_s)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    from_s = begin_s + options.warm_up_s
    until_s = from_s + options.duration_s
    load = _appends if options.clients else _bare_puts
    samples_s = await load(far, options, from_s, until_s)
    end_s = time.perf_counter()
    processors = (time.process_time() - begin_cpu_s) / (end_s - begin_s)
    elapsed_s = end_s - from_s
    latencies = Latencies.of(samples_s, elapsed_s=elapsed_s)
    await clear(store)
    return LogAppenderResult(
        p50_s=latencies.p50_s,
        p99_s=latencies.p99_s,
        appends=latencies.count,
        puts=sum(at_s >= from_s for at_s in far.put_at_s),
        payload_bytes=latencies.count * options.payload_size,
        elapsed_s=elapsed_s,
        processors=processors,
    )


async def _appends(far: FarStore, options: LogAppenderOptions, from_s: float, until_s: float) -> list[float]:
    wal = WalOptions(place="object", puts_per_s_max=options.puts_per_s_max, files_max=FILES_MAX)
    log = ObjectWal(retrying(far), PREFIX, wal, epochs=[1], from_sequence=1, clock=SystemClock(), owner=OWNER)
    async for _ in log.read():
        raise AssertionError("the log is not empty")
    clients = _Clients(log, payload_size=options.payload_size, from_s=from_s, until_s=until_s)
    await log.start(on_durable=clients.on_durable, on_failure=clients.on_failure)
    async with asyncio.TaskGroup() as group:
        for number in range(1, options.clients + 1):
            group.create_task(clients.run(number))
    await log.close()
    return clients.samples_s


async def _bare_puts(far: FarStore, options: LogAppenderOptions, from_s: float, until_s: float) -> list[float]:
    store = retrying(far)
    payload = bytes(options.payload_size)
    samples_s: list[float] = []
    number = 0
    while not samples_s or time.perf_counter() < until_s:
        begin_s = time.perf_counter()
        await store.create(f"bare/{number}", [payload])
        number += 1
        if begin_s >= from_s:
            samples_s.append(time.perf_counter() - begin_s)
    return samples_s


async def _main(options: LogAppenderOptions) -> LogAppenderResult:
    store = await connect(options.url)
    try:
        return await run_appender(options, store)
    finally:
        await store.close()


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(_main(LogAppenderOptions(**json.loads(sys.argv[1])))))))
