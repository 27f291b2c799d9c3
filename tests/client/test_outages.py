"""Behaviour 89: readers, tails, cursors and writers outlive outages of a real server, and say what they wait for.

How long one lasts is tried with clocks in `read/test_subscription.py` and `write/test_delivery.py`. Here it is longer
than a request may take: a request of the same client has failed.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

import millrace
from millrace.client.client import Client
from millrace.client.errors import ConnectionLostError, OutageTimeoutError, RequestTimeoutError
from millrace.client.options import ClientOptions
from millrace.client.testing import TestServer
from millrace.client.waiting import WaitReason
from millrace.server.app import Server
from millrace.server.host.room import RESERVE_BYTES_MIN
from millrace.wire.limits import KIB, MIB
from tests.client.scaling import scale
from tests.support.files import MemoryFileSystem
from tests.support.servers import server_options
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

ATTENTIVE = ClientOptions(keepalive_s=2.0)
"""A server that hangs is noticed within seconds."""


@contextmanager
def killed(server: TestServer) -> Iterator[Callable[[], None]]:
    server.kill()
    yield server.start


@contextmanager
def hung(server: TestServer) -> Iterator[Callable[[], None]]:
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield lambda: os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)  # or it could not be stopped


Outage = Callable[[TestServer], AbstractContextManager[Callable[[], None]]]
"""Begins an outage, and gives what ends it."""

OUTAGES = pytest.mark.parametrize("outage", [killed, hung])


@pytest_asyncio.fixture
async def patient(millrace_server: TestServer) -> AsyncIterator[Client]:
    """A client to be under test."""
    async with millrace.connect(millrace_server.address, options=ATTENTIVE) as connected:
        yield connected


@asynccontextmanager
async def helper(server: TestServer) -> AsyncIterator[Client]:
    """Lend a client for what is not under test."""
    async with millrace.connect(server.address) as connected:
        yield connected


def give_up_soon(client: Client) -> None:
    """Let requests of a client give up soon, from now on: an outage that is longer takes no time then."""
    for channel in (client._writes, client._reads):
        channel.options = replace(channel.options, request_timeout_s=0.2)


async def outlast(client: Client, name: str) -> None:
    """Wait until the outage has lasted longer than a request may, and is known."""
    with pytest.raises((ConnectionLostError, RequestTimeoutError)):
        await client.stream_info(name)
    await until(lambda: client.statistics().waiting)
    with pytest.raises((ConnectionLostError, RequestTimeoutError)):
        await client.stream_info(name)
    waiting = client.statistics().waiting
    assert waiting is not None
    assert waiting.reason is WaitReason.UNREACHABLE


@OUTAGES
async def test_what_reads_resumes_when_the_server_returns(
    outage: Outage,
    millrace_server: TestServer,
    patient: Client,
    name: str,
) -> None:
    async with helper(millrace_server) as client:
        await client.create_stream(name)
        await client.segments.create(f"{name}-raw")
        await client.create_stream(f"{name}-file")
        async with client.writer(name) as writer:
            await writer.write(b"before")
        (part,) = await client.plan_ranges(name)
    async with (
        patient.reader(name) as reader,
        patient.byte_reader(f"{name}-file", follow=True) as file,
        aclosing(patient.segments.tail(f"{name}-raw", 0)) as tail,
    ):
        assert (await anext(reader)).value == b"before"
        position = reader.position()
        event = asyncio.ensure_future(anext(reader))
        piece = asyncio.ensure_future(anext(tail))
        data = asyncio.ensure_future(file.read(10))
        await until(lambda: (reads := patient.statistics().reads.connection) and reads.subscriptions == 2)
        with outage(millrace_server) as end:
            give_up_soon(patient)
            rows = asyncio.ensure_future(anext(patient.read_range(part)))
            cursor = asyncio.ensure_future(patient.cursors(name).set("reader", position))
            await outlast(patient, name)
            assert not any(each.done() for each in (event, piece, data, rows, cursor))
            await asyncio.to_thread(end)
            async with helper(millrace_server) as client:
                async with client.writer(name) as writer:
                    await writer.write(b"after")
                await client.segments.append(f"{name}-raw", b"after")
                async with client.byte_writer(f"{name}-file") as byte_writer:
                    await byte_writer.write(b"after")
                async with asyncio.timeout(PATIENCE_S):
                    assert (await event).value == (await piece).data == await data == b"after"
                    assert (await rows).num_rows == 1
                    assert await cursor == await client.cursors(name).get("reader") == position
        await until(lambda: patient.statistics().waiting is None)


@OUTAGES
async def test_what_writes_stores_everything_once_when_the_server_returns(
    outage: Outage,
    millrace_server: TestServer,
    patient: Client,
    name: str,
) -> None:
    async with helper(millrace_server) as client:
        await client.create_stream(name)
        await client.create_stream(f"{name}-file")
    async with (
        patient.writer(name, writer_id=f"{name}:w") as writer,
        patient.byte_writer(f"{name}-file", writer_id=f"{name}:b") as byte_writer,
    ):
        futures = [writer.write(b"%d" % number, key="k") for number in range(100)]
        await byte_writer.write(b"before ")
        await futures[0]
        with outage(millrace_server) as end:
            give_up_soon(patient)
            futures += [writer.write(b"%d" % number, key="k") for number in range(100, 200)]
            await byte_writer.write(b"after")
            await outlast(patient, name)
            await asyncio.to_thread(end)
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*futures)
                await byte_writer.flush()
    await until(lambda: patient.statistics().waiting is None)
    async with helper(millrace_server) as client, client.reader(name, end=millrace.TAIL) as reader:
        assert [event.value async for event in reader] == [b"%d" % number for number in range(200)]
        async with client.byte_reader(f"{name}-file") as file:
            assert await file.read() == b"before after"


async def test_a_reader_that_looks_for_successors_in_an_outage_reads_on(
    millrace_server: TestServer, patient: Client, name: str
) -> None:
    async with helper(millrace_server) as client:
        await client.create_stream(name)
        async with patient.reader(name) as reader:
            async with client.writer(name) as writer:
                await writer.write(b"before", key="k")
                await scale(client, name)
                await writer.write(b"after", key="k")
            await until(lambda: all(source.state.name == "ENDED" for source in reader._sources.values()))
            assert (await anext(reader)).value == b"before"
            await asyncio.to_thread(millrace_server.kill)
            give_up_soon(patient)
            waiting = asyncio.ensure_future(anext(reader))
            await outlast(patient, name)
            assert not waiting.done()
            await asyncio.to_thread(millrace_server.start)
            async with asyncio.timeout(PATIENCE_S):
                assert (await waiting).value == b"after"


async def test_a_reader_with_a_time_limit_ends_with_the_cut_to_resume_from(
    millrace_server: TestServer, name: str
) -> None:
    options = ClientOptions(outage_timeout_s=0.5)
    async with millrace.connect(millrace_server.address, options=options) as client:
        await client.create_stream(name)
        async with client.writer(name) as writer:
            await writer.write_many([b"%d" % number for number in range(10)])
        async with client.reader(name) as reader:
            seen = [(await anext(reader)).value for _ in range(10)]
            await asyncio.to_thread(millrace_server.kill)
            with pytest.raises(
                OutageTimeoutError, match=f"{name}: given up after 0.5 s.*; resume at {name}@"
            ) as caught:
                await anext(reader)
        assert isinstance(caught.value.__cause__, OutageTimeoutError)
        assert caught.value.resume_at is not None
        await asyncio.to_thread(millrace_server.start)
        async with client.writer(name) as writer:
            await writer.write_many([b"%d" % number for number in range(10, 20)])
        async with client.reader(name, start=caught.value.resume_at, end=millrace.TAIL) as reader:
            seen += [event.value async for event in reader]
        assert seen == [b"%d" % number for number in range(20)]


async def test_a_full_disk_keeps_a_writer_waiting_and_says_so(tmp_path: Path, name: str) -> None:
    files = MemoryFileSystem()
    # From the start: a log that has measured more room accepts appends for which it has to wait later.
    files.capacity_bytes = 2 * RESERVE_BYTES_MIN + MIB
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    told: list[WaitReason | None] = []
    options = ClientOptions(on_waiting=lambda waiting: told.append(None if waiting is None else waiting.reason))
    async with (
        Server(server_options(tmp_path), files=files) as server,
        millrace.connect(server.address, options=options) as client,
    ):
        await client.create_stream(name)
        async with client.writer(name, writer_id="w") as writer:
            futures = [writer.write_many([bytes([number]) * (40 * KIB)]) for number in range(200)]
            await until(lambda: WaitReason.NO_SPACE in told)
            waiting = client.statistics().waiting
            assert waiting is not None
            assert waiting.reason is WaitReason.NO_SPACE
            files.capacity_bytes = 64 << 20
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*futures)
        assert told[-1] is None
        assert client.statistics().waiting is None
        async with client.reader(name, end=millrace.TAIL) as reader:
            assert [event.value[0] async for event in reader] == list(range(200))
