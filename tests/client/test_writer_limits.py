"""Writers on a server that takes smaller appends than the protocol allows."""
# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import millrace
from millrace.client.client import Client
from millrace.client.testing import SETTINGS_SMALL, TestServer
from millrace.client.write.options import WriterOptions
from millrace.model.block_packing import size_of_single
from millrace.model.compression import Compression
from millrace.model.errors import EventTooLargeError
from millrace.wire.limits import KIB, MIB, SEQUENCED_APPEND_HEADER_SIZE_BYTES
from tests.support.servers import ENVIRONMENT_OF_BUSY

pytestmark = pytest.mark.asyncio

LARGEST_APPEND_BYTES = 64 * KIB - SEQUENCED_APPEND_HEADER_SIZE_BYTES


@pytest.fixture(scope="module")
def narrow() -> Iterator[TestServer]:
    with millrace.testing.server(settings=ENVIRONMENT_OF_BUSY) as running:
        yield running


@pytest_asyncio.fixture
async def client(narrow: TestServer) -> AsyncIterator[Client]:
    async with millrace.connect(narrow.address) as connected:
        yield connected


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_blocks_are_no_larger_than_the_server_takes(client: Client, name: str, compression: Compression) -> None:
    """Behaviour 8: also where keys take more bytes than letters, and one event nearly fills an append."""
    await client.create_stream(name)
    keys = ["🌊" * 3000, "b", "🏭" * 500]
    written = defaultdict(list)
    async with client.writer(name, options=WriterOptions(compression=compression)) as writer:
        for number in range(300):
            key = keys[number % 3]
            size = 40_000 if number % 50 == 7 else number
            value = b"%d|" % number + bytes(size)
            writer.write(value, key=key)
            written[key].append(value)
            if number % 70 == 0:
                await asyncio.sleep(0)
    read = defaultdict(list)
    async with client.reader(name, end=millrace.TAIL) as reader:
        async for event in reader:
            read[event.key].append(event.value)
    assert read == written


async def test_an_event_that_no_append_holds_is_refused_alone(client: Client, name: str) -> None:
    """Behaviour 8: one byte more is refused before it is sent, and the writer continues."""
    await client.create_stream(name)
    for key, overhead in ((None, size_of_single(0, key_size=None)), ("schlüssel", size_of_single(0, key_size=10))):
        largest = (LARGEST_APPEND_BYTES - overhead) // 8 * 8
        async with client.writer(name) as writer:
            before = writer.write(b"before", key=key)
            fitting = writer.write(bytes(largest), key=key)
            with pytest.raises(EventTooLargeError, match=f"this server takes {LARGEST_APPEND_BYTES}"):
                writer.write(bytes(largest + 1), key=key)
            with pytest.raises(EventTooLargeError, match=f"one append holds {LARGEST_APPEND_BYTES}"):
                writer.write_many([bytes(largest // 2)] * 3, key=key)
            after = writer.write(b"after", key=key)
            await writer.flush()
            assert [future.result().segment_id for future in (before, fitting, after)]
            assert sum(writer.last_event_numbers.values()) == 3


async def test_a_byte_writer_keeps_to_the_limit_too(client: Client, name: str) -> None:
    await client.create_stream(name)
    data = bytes(range(256)) * 1024
    async with client.byte_writer(name) as writer:
        await writer.write(data)
    async with client.byte_reader(name) as reader:
        assert await reader.read() == data


@pytest.mark.slow
async def test_a_server_that_comes_back_with_a_lower_limit_is_heeded(millrace_server: TestServer, name: str) -> None:
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name)
        async with client.writer(name, options=WriterOptions(block_size_bytes=4 * MIB)) as writer:
            for _ in range(10):
                writer.write(bytes(20_000))
            await writer.flush()
            millrace_server.stop()
            millrace_server._settings = {**SETTINGS_SMALL, "MILLRACE_WAL_RUN_SIZE_BYTES_MAX": str(64 * KIB)}
            millrace_server.start()
            await writer.write(b"connected again")
            for _ in range(10):
                writer.write(bytes(20_000))
            await writer.flush()
            with pytest.raises(EventTooLargeError):
                writer.write(bytes(64 * KIB))
        assert (await client.distance(millrace.HEAD, millrace.TAIL, stream=name)).events == 21
