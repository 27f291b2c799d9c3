"""Recovery of a log in an object store that is far away.

`python -m benchmarks.log_reader JSON`, with the fields of `LogReaderOptions`; prints a `LogReaderResult` as JSON. The
log is written first, without a delay. What is measured is what the next owner does before it serves: list, read, check
and close what the last one has left. The content is not applied to a container.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

import uvloop

from millrace.server.host.clock import SystemClock
from millrace.server.object_store import ObjectStore
from millrace.server.wal import ObjectWal, WalOptions
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import encode_append_header
from millrace.wire.limits import KIB

from .far_store import FarStore, clear, connect, retrying
from .log_appender import FILES_MAX, OWNER, PREFIX

OBJECT_SIZE_BYTES: Final = 164 * KIB
"""What 256 MB are made of if a log of 20 PUTs a second waits 75 s for a copy of the checkpoint: some 1,500 objects."""
_PAYLOAD_SIZE_BYTES: Final = 4 * KIB
_ROUND_SIZE_BYTES: Final = 8 * OBJECT_SIZE_BYTES
"""As many objects as are under way at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReaderOptions:
    """Which log to write and read, below `url`, which is empty.

    Attributes:
        latency_s: before each PUT and GET of the recovery.
        log_bytes: how much payload to write.
    """

    url: str
    latency_s: float
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReaderResult:
    """What the recovery took."""

    size_bytes: int
    objects: int
    gets: int
    elapsed_s: float
    cpu_s: float


async def run_reader(options: LogReaderOptions, store: ObjectStore) -> LogReaderResult:
    """Write a log to an empty store, and recover it as its next owner; the store is empty afterwards."""
    await _fill(store, options.log_bytes)
    far = FarStore(store, options.latency_s)
    log = _log(far, epochs=[1, 2])
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    await asyncio.to_thread(_exhaust, log)  # as a server does
    elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    report = log.report
    assert not report.damages, report.damages
    await clear(store)
    return LogReaderResult(
        size_bytes=report.size_bytes,
        objects=report.batch_count,
        gets=far.gets,
        elapsed_s=elapsed_s,
        cpu_s=cpu_s,
    )


def _log(store: ObjectStore, *, epochs: list[int]) -> ObjectWal:
    wal = WalOptions(place="object", puts_per_s_max=0.0, files_max=FILES_MAX, batch_size_bytes_max=OBJECT_SIZE_BYTES)
    return ObjectWal(retrying(store), PREFIX, wal, epochs=epochs, from_sequence=1, clock=SystemClock(), owner=OWNER)


def _exhaust(log: ObjectWal) -> None:
    for _ in log.recover():
        pass


async def _fill(store: ObjectStore, log_bytes: int) -> None:
    """Write a log as the owner of epoch 1, who goes without a word."""
    payload = bytes(_PAYLOAD_SIZE_BYTES)
    frame = encode_append_header(request_id=1, segment_id=1, payload=payload) + payload
    log = _log(store, epochs=[1])
    async for _ in log.read():
        raise AssertionError("the log is not empty")
    waiting: set[asyncio.Future[None]] = set()

    def on_durable(runs: list[AppendRun], sequence: int, wall_time_us: int) -> None:
        del runs, sequence, wall_time_us
        if not log.queued_bytes:
            waiting.pop().set_result(None)

    def on_failure(error: BaseException) -> None:
        for future in waiting:
            future.set_exception(error)

    await log.start(on_durable=on_durable, on_failure=on_failure)
    for offset in range(0, log_bytes, _ROUND_SIZE_BYTES):
        future = asyncio.get_running_loop().create_future()
        waiting.add(future)
        for start in range(offset, min(log_bytes, offset + _ROUND_SIZE_BYTES), _PAYLOAD_SIZE_BYTES):
            log.submit(AppendRun(1, start, frame, frame_count=1, frame_size=len(frame), event_count=1))
        await future
    await log.close()


async def _main(options: LogReaderOptions) -> LogReaderResult:
    store = await connect(options.url)
    try:
        return await run_reader(options, store)
    finally:
        await store.close()


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(_main(LogReaderOptions(**json.loads(sys.argv[1])))))))
