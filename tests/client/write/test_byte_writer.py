import asyncio
import io
import random
from array import array

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import (
    ConditionFailedError,
    NotOpenError,
    StreamNotFoundError,
    StreamSealedError,
    WriterFencedError,
)
from millrace.client.options import ClientOptions, parse_addresses
from millrace.client.testing import TestServer
from millrace.client.transport.channel import Channel
from millrace.client.transport.client_guard import ClientGuard
from millrace.client.write.byte_writer import ByteWriter
from millrace.model.errors import InvalidArgumentError, InvalidNameError
from millrace.model.policy import ScalingPolicy, StreamConfig
from tests.client.scaling import scale

pytestmark = pytest.mark.asyncio


@pytest.mark.both_loops
async def test_what_is_read_is_what_was_written(client: Client, name: str) -> None:
    await client.create_stream(name)
    dice = random.Random(3)
    data = dice.randbytes(300_000)
    async with client.byte_writer(name) as writer:
        place = 0
        while place < len(data):
            assert writer.tell() == place
            place += await writer.write(data[place : place + dice.randint(1, 30_000)])
        await writer.flush()
        assert writer.durable_offset == writer.tell() == len(data)
    async with client.byte_reader(name) as reader:
        assert await reader.read(0) == b""
        pieces = []
        while piece := await reader.read(dice.randint(1, 5000)):
            pieces.append(piece)
            assert reader.tell() == sum(map(len, pieces))
    assert b"".join(pieces) == data


async def test_what_was_written_is_counted_in_bytes(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.byte_writer(name) as writer:
        numbers = memoryview(array("i", [1, 2, 3]))
        assert await writer.write(numbers) == numbers.nbytes == writer.tell()


async def test_the_older_of_two_writers_is_fenced_or_finds_strange_bytes(client: Client, name: str) -> None:
    """Behaviour 4; a writer without an id notices the other by the place of its bytes."""
    await client.create_stream(name)
    async with client.byte_writer(name, writer_id=f"{name}:w") as older:
        await older.write(b"a")
        await older.flush()
        async with client.byte_writer(name, writer_id=f"{name}:w") as newer:
            assert newer.tell() == 1
            await older.write(b"b")
            with pytest.raises(WriterFencedError):
                await older.flush()
            await newer.write(b"c")
        with pytest.raises(WriterFencedError):
            await older.close()
        older._stop()
    stranger = client.byte_writer(name)
    async with client.byte_writer(name) as writer:
        await stranger.__aenter__()
        await writer.write(b"d")
        await writer.flush()
        await stranger.write(b"e")
        with pytest.raises(ConditionFailedError):
            await stranger.close()
    async with client.byte_reader(name) as reader:
        assert await reader.read() == b"acd"


async def test_sealing_under_a_writer_fails_it_as_sealed(client: Client, name: str) -> None:
    await client.create_stream(name)
    writer = await client.byte_writer(name).__aenter__()
    await client.seal_stream(name)
    await writer.write(b"x")
    with pytest.raises(StreamSealedError):
        await writer.close()


async def test_only_one_segment_is_a_file(client: Client, name: str) -> None:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
    await client.create_stream(f"{name}-scaled")
    await scale(client, f"{name}-scaled")
    for wrong in (name, f"{name}-scaled"):
        with pytest.raises(InvalidArgumentError):
            async with client.byte_writer(wrong):
                pass
        with pytest.raises(InvalidArgumentError):
            async with client.byte_reader(wrong):
                pass
    with pytest.raises(StreamNotFoundError):
        async with client.byte_reader("tests/none"):
            pass
    with pytest.raises(InvalidNameError):
        client.byte_writer(name, writer_id="tab\t")


async def test_what_was_not_opened_says_so(client: Client, name: str) -> None:
    await client.create_stream(name)
    with pytest.raises(NotOpenError):
        await client.byte_writer(name).write(b"x")
    with pytest.raises(NotOpenError):
        await client.byte_reader(name).read(1)


@pytest.mark.slow
async def test_a_killed_server_costs_no_byte_and_doubles_none(millrace_server: TestServer, name: str) -> None:
    """Behaviours 2 and 3."""
    dice = random.Random(5)
    data = dice.randbytes(3_000_000)
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name)
        async with client.byte_writer(name) as writer:
            kills = {500_000, 1_500_000, 2_500_000}
            for place in range(0, len(data), 20_000):
                await writer.write(data[place : place + 20_000])
                await asyncio.sleep(0)
                if place in kills:
                    await asyncio.to_thread(millrace_server.kill)
                    await writer.write(b"")
                    await asyncio.to_thread(millrace_server.start)
            await writer.flush()
        async with client.byte_reader(name) as reader:
            assert await reader.read() == data


async def test_much_in_flight_makes_a_write_wait(server: TestServer, client: Client, name: str) -> None:
    await client.create_stream(name)
    channel = Channel(parse_addresses(server.address), ClientOptions(), ClientGuard())
    async with ByteWriter(channel, name, writer_id=None, buffer_bytes_high=1000) as writer:
        for _ in range(20):
            await writer.write(b"x" * 600)
            assert writer.tell() - writer.durable_offset < 2000
    await channel.close()
    async with client.byte_reader(name) as reader:
        assert len(await reader.read()) == 12_000


async def test_threads_use_it_as_a_file(server: TestServer, name: str) -> None:
    def use() -> None:
        with millrace.blocking.connect(server.address) as client:
            client.create_stream(name)
            with io.BufferedWriter(client.byte_writer(name)) as file:
                for number in range(1000):
                    file.write(b"line %d\n" % number)
            with client.byte_reader(name) as raw:
                assert raw.readable()
                assert list(io.BufferedReader(raw)) == [b"line %d\n" % number for number in range(1000)]
            with client.byte_writer(name, writer_id=f"{name}:w") as writer:
                writer.drop_before(7)
                writer.write(bytearray(b"end"))
                writer.flush()
                assert writer.tell() == len(b"line 100\n") * 900 + len(b"line 10\n") * 90 + 70 + 3
                writer.seal()
            with client.byte_reader(name, offset=7, follow=True) as raw:
                text = raw.readall()
                assert text.startswith(b"line 1\n")
                assert text.endswith(b"line 999\nend")
                assert raw.seek(-3, io.SEEK_END) == raw.tell()
                buffer = bytearray(5)
                assert raw.readinto(buffer) == 3
                assert buffer == b"end\0\0"

    await asyncio.to_thread(use)
