"""Events of one stream in transactions, or without: by a blocking socket and packed before, or by the client."""

# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

import millrace
from loadtests.protocol import ProtocolClient, UnexpectedFrameError
from millrace.model.block_packing import pack_block
from millrace.wire import messages as m
from millrace.wire.client_session import ServerFrame

from .timing import Latencies

SEGMENT_COUNT: Final = 4
EVENT_COUNT: Final = 1_000
"""Events of one transaction, of 100 B."""
_BLOCK_EVENT_COUNT: Final = EVENT_COUNT // SEGMENT_COUNT
_IDS_COUNT: Final = 50_000
_LEASE_MS: Final = 30_000


class TransactionClient:
    """A connection that writes to a stream, which is created if there is none. The client is its own from now on."""

    def __init__(self, client: ProtocolClient, stream: str) -> None:
        # A timeout makes every call poll first, which would be measured.
        client.socket.settimeout(None)
        self._client = client
        created = client.request(m.CreateStream(stream, SEGMENT_COUNT, ""))
        self._segments = created.segments
        self._stream = m.RoutedStream(stream, created.stream_id, created.epoch)
        opened = client.request(m.OpenWriter("", [], 0))
        self._writer = {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch}
        self._block = bytes(pack_block([os.urandom(100) for _ in range(_BLOCK_EVENT_COUNT)]))
        self._ids = itertools.chain.from_iterable(iter(self._reserve, None))
        self._written = 0

    def flush(self, _: int = 0) -> None:
        """Write the events, a block for each segment, and wait until they are durable."""
        with self._client.together():
            for segment in self._segments:
                self._append(segment.segment_id, event_number=self._written + 1)
        self._written += _BLOCK_EVENT_COUNT
        while self._client.in_flight_count:
            self._client.receive_acks()

    def commit(self, _: int = 0) -> None:
        """Write the same to a transaction, from its beginning to its commit, and wait until it is committed."""
        client, number, stream = self._client, next(self._ids), self._stream
        parts = [m.NewPart(next(self._ids), segment.segment_id) for segment in self._segments]
        branches = [m.BranchCount(0, len(parts) * _BLOCK_EVENT_COUNT)]
        with client.together():
            client.send_unanswered(
                m.BeginTransaction(number=number, name="", lease_ms=_LEASE_MS, streams=[stream], parts=parts)
            )
            for part in parts:
                self._append(part.segment_id, event_number=1)
            request_id = client.send(
                m.CommitTransaction(number=number, name="", branches=branches, drops_others=0, cursors=[])
            )
        while not isinstance(event := client.receive(), ServerFrame) or event.request_id != request_id:
            pass
        if client.in_flight_count:
            raise UnexpectedFrameError(f"{event} for a commit, with {client.in_flight_count} appends in flight")

    def _append(self, segment_id: int, *, event_number: int) -> None:
        self._client.send_append(
            segment_id, self._block, event_count=_BLOCK_EVENT_COUNT, event_number=event_number, **self._writer
        )

    def _reserve(self) -> range:
        reserved = self._client.request(m.ReserveIds(_IDS_COUNT))
        return range(reserved.first, reserved.first + reserved.count)


def through_client(address: str, *, count: int, budget_s: float, rounds: int) -> dict[str, list[Latencies]]:
    """Return how long the client takes to flush the events, and to commit them: in rounds that take turns."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_through_client(address, count=count, budget_s=budget_s, rounds=rounds))


async def _through_client(address: str, *, count: int, budget_s: float, rounds: int) -> dict[str, list[Latencies]]:
    stream = "bench/client"
    values = [os.urandom(100) for _ in range(_BLOCK_EVENT_COUNT)]
    async with millrace.connect(address) as client:
        scaling = millrace.ScalingPolicy.fixed(SEGMENT_COUNT)
        await client.create_stream(stream, millrace.StreamConfig(scaling=scaling))
        keys = await _key_of_each_segment(client, stream)
        async with client.writer(stream) as writer:

            async def flush() -> None:
                for key in keys:
                    writer.write_many(values, key=key)
                await writer.flush()

            async def commit() -> None:
                async with client.transaction(stream) as transaction:
                    for key in keys:
                        transaction.write_many(values, key=key)

            results: dict[str, list[Latencies]] = {"flush": [], "commit": []}
            for _ in range(rounds):
                results["flush"].append(await _repeat(flush, count=count, budget_s=budget_s))
                results["commit"].append(await _repeat(commit, count=count, budget_s=budget_s))
            return results


async def _key_of_each_segment(client: millrace.Client, stream: str) -> list[str]:
    """Return keys of which each goes to another segment."""
    keys: dict[int, str] = {}
    async with client.writer(stream) as writer:
        for number in itertools.count():
            stored = await writer.write(b"x", key=f"key-{number}")
            keys.setdefault(stored.segment_id, f"key-{number}")
            if len(keys) == SEGMENT_COUNT:
                return list(keys.values())
    raise AssertionError("it counts forever")


async def _repeat(work: Callable[[], Awaitable[None]], *, count: int, budget_s: float) -> Latencies:
    """Time work like `timing.repeat`."""
    for _ in range(20):
        await work()
    samples_s: list[float] = []
    begin = previous = time.perf_counter()
    for _ in range(count):
        await work()
        now = time.perf_counter()
        samples_s.append(now - previous)
        previous = now
        if now - begin > budget_s:
            break
    return Latencies.of(samples_s, elapsed_s=previous - begin)
