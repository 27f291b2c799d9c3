import asyncio
import io

import pytest

from millrace.client.client import Client
from millrace.client.errors import (
    ClientClosedError,
    OffsetBeyondEndError,
    SegmentTruncatedError,
    StreamNotFoundError,
    StreamSealedError,
)
from millrace.model.errors import InvalidArgumentError

pytestmark = pytest.mark.asyncio


async def test_a_reader_goes_anywhere(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.byte_writer(name) as writer:
        await writer.write(b"0123456789")
    async with client.byte_reader(name, offset=4) as reader:
        assert await reader.read(2) == b"45"
        assert await reader.seek(-1, io.SEEK_CUR) == 5
        assert await reader.readexactly(3) == b"567"
        assert await reader.seek(-3, io.SEEK_END) == 7
        assert await reader.read() == b"789"
        assert await reader.read() == b""
        await reader.seek(8)
        with pytest.raises(EOFError):
            await reader.readexactly(3)
        assert reader.tell() == 8
        await reader.seek(11)
        with pytest.raises(OffsetBeyondEndError):
            await reader.read(1)
        with pytest.raises(InvalidArgumentError):
            await reader.seek(-1)
        with pytest.raises(InvalidArgumentError):
            await reader.seek(0, 7)
    with pytest.raises(InvalidArgumentError):
        client.byte_reader(name, offset=-1)


async def test_a_following_reader_waits_at_the_tail_until_the_seal(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.byte_writer(name) as writer, client.byte_reader(name, follow=True) as reader:
        waiting = asyncio.create_task(reader.read(100))
        await writer.write(b"first")
        assert await waiting == b"first"
        everything = asyncio.create_task(reader.read())
        await writer.write(b" and")
        await writer.flush()
        await writer.write(b" last")
        await writer.seal()
        assert await everything == b" and last"
        assert await reader.read(1) == b""
        with pytest.raises(ClientClosedError):
            await writer.write(b"x")
    with pytest.raises(StreamSealedError):
        async with client.byte_writer(name):
            pass


async def test_a_cancelled_read_loses_nothing(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.byte_writer(name) as writer, client.byte_reader(name, follow=True) as reader:
        await writer.write(b"abc")
        await writer.flush()
        for read in (reader.read(), reader.readexactly(5)):
            waiting = asyncio.create_task(read)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiting, 0.02)
        assert reader.tell() == 0
        assert await reader.read(3) == b"abc"


async def test_the_beginning_is_truncated(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.byte_writer(name) as writer:
        await writer.write(b"0123456789")
        await writer.flush()
        await writer.truncate(4)
        with pytest.raises(OffsetBeyondEndError):
            await writer.truncate(11)
        await writer.write(b"x")
    async with client.byte_reader(name) as reader:
        with pytest.raises(SegmentTruncatedError, match=rf"{name}: .* 4 bytes are lost; seek\(4\)") as caught:
            await reader.read(1)
        assert caught.value.start_offset == 4
        await reader.seek(4)
        assert await reader.read() == b"456789x"
        await client.seal_stream(name)
        await client.delete_stream(name)
        with pytest.raises(StreamNotFoundError):
            await reader.read()
