"""Writers against a server that answers when the test says so: no sockets, no waiting."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import millrace
from millrace.client.client import Client
from millrace.client.write.events import WriteResult
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer import Writer
from tests.support.model_server import STREAM, ModelServer


@asynccontextmanager
async def writing(server: ModelServer, options: WriterOptions | None = None) -> AsyncIterator[Writer]:
    """Open a writer; what it did not flush is given up at the end."""
    channel = server.channel()
    writer = Writer(channel, STREAM, writer_id="w", options=options or WriterOptions())
    await writer.open()
    try:
        yield writer
    finally:
        await writer.__aexit__(GeneratorExit, None, None)
        await channel.close()


async def error_of(future: "asyncio.Future[WriteResult]") -> BaseException | None:
    await asyncio.wait([future])
    return future.exception()


async def values_of(client: Client, stream: str) -> list[bytes]:
    """Return the values of all events of a stream, as a reader is given them."""
    async with client.reader(stream, end=millrace.TAIL) as reader:
        return [event.value async for event in reader]
