"""A client belongs to one event loop. In another one, or in none, each use ends in one clear error, and at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest

import millrace
from millrace import blocking
from millrace.client.testing import TestServer


@dataclass(frozen=True)
class Held:
    """What a program has of a client whose loop has ended."""

    client: millrace.Client
    writer: millrace.Writer
    bytes_writer: millrace.ByteWriter
    reader: millrace.Reader
    # Which closes the reader when it is collected.
    reading: AbstractAsyncContextManager[millrace.Reader]
    transaction: millrace.Transaction


async def opened(address: str) -> Held:
    client = await millrace.connect(address)
    await client.create_stream("loop/a")
    await client.create_stream("loop/bytes")
    reading = client.reader("loop/a")
    return Held(
        client,
        await client.writer("loop/a").__aenter__(),
        await client.byte_writer("loop/bytes").__aenter__(),
        await reading.__aenter__(),
        reading,
        await client.begin_transaction("loop/a", name="loop"),
    )


@pytest.fixture(scope="module")
def held(server: TestServer) -> Iterator[Held]:
    with asyncio.Runner() as runner:
        held = runner.run(opened(server.address))
        yield held
        runner.run(held.client.close())


USES: dict[str, Callable[[Held], Awaitable[Any]]] = {
    "request": lambda held: held.client.create_stream("loop/b"),
    "ping": lambda held: held.client.ping(),
    "append": lambda held: held.client.segments.append("loop/s", b"x"),
    "writer": lambda held: held.client.writer("loop/a").open(),
    "reader": lambda held: held.client.reader("loop/a").__aenter__(),
    "write": lambda held: held.writer.write(b"x"),
    "write_many": lambda held: held.writer.write_many([b"x"]),
    "flush": lambda held: held.writer.flush(),
    "drain": lambda held: held.writer.drain(),
    "bytes": lambda held: held.bytes_writer.write(b"x"),
    "flush of bytes": lambda held: held.bytes_writer.flush(),
    "read": lambda held: anext(held.reader),
    "write in a transaction": lambda held: held.transaction.write(b"x"),
    "commit": lambda held: held.transaction.commit(),
    "abort": lambda held: held.transaction.abort(),
    "close": lambda held: held.client.close(),
}


@pytest.mark.parametrize("use", USES)
def test_a_use_in_another_loop_is_refused_at_once(held: Held, use: str) -> None:
    async def other() -> None:
        async with asyncio.timeout(10):
            await USES[use](held)

    with pytest.raises(millrace.WrongLoopError, match="make one client for each loop"):
        asyncio.run(other())


def test_without_a_loop_nothing_can_be_used(held: Held) -> None:
    for use in (lambda: held.writer.write(b"x"), lambda: held.client.writer("loop/a")):
        with pytest.raises(millrace.WrongLoopError):
            use()


def test_a_blocking_client_is_not_for_its_own_loop(server: TestServer) -> None:
    with blocking.connect(server.address) as client:
        told: list[BaseException] = []

        async def inside() -> None:
            try:
                client.ping()
            except millrace.WrongLoopError as error:
                told.append(error)

        client._loop.call(inside)
        assert "use millrace.connect" in str(told[0])


def test_closing_under_calls_that_wait_ends_each_with_a_typed_error(server: TestServer) -> None:
    async def main() -> None:
        client = await millrace.connect(server.address)
        segment = await client.segments.create("loop/raw")
        await client.create_stream("loop/c")
        async with client.reader("loop/c") as reader, asyncio.timeout(10):
            waiting = [
                asyncio.ensure_future(each)
                for each in (
                    anext(reader),
                    client.segments.read("loop/raw", 0, wait_s=60),
                    anext(client.segments.tail("loop/raw", 0)),
                )
            ]
            await client.ping()
            connection = await client._writes.connection()
            appending = connection.append(b"x", segment_id=segment.segment_id)
            await client.close()
            for each in waiting:
                with pytest.raises(millrace.ClientClosedError):
                    await each
            with pytest.raises(
                millrace.AnswerLostError, match="the client was closed; the append was not acknowledged"
            ):
                await appending
        for use in (client.ping, lambda: client.create_stream("loop/d"), client.__aenter__):
            with pytest.raises(millrace.ClientClosedError):
                await use()
        await client.close()

    asyncio.run(main())
