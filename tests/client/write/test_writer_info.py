import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import millrace
from millrace.client.errors import RequestTimeoutError
from millrace.client.options import Backoff, ClientOptions
from millrace.client.write.options import WriterOptions
from millrace.model.key_range import KEY_SPACE
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import decode, encode
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX

pytestmark = pytest.mark.asyncio

GREETING = m.HelloReply(
    version=1,
    features=0,
    frame_size_max=FRAME_SIZE_BYTES_MAX,
    append_size_max=APPEND_SIZE_BYTES_MAX,
    appends_in_flight_max=1000,
    server_id=bytes(16),
    server="ever changing",
)
GONE = m.ErrorReply(
    code=ErrorCode.SEGMENT_NOT_FOUND,
    retriable=0,
    retry_after_ms=0,
    start_offset=-1,
    length=-1,
    subject="",
    message="there is no segment with id 7",
)
STREAM = m.StreamInfo(
    created=0,
    stream_id=5,
    created_us=0,
    epoch=0,
    sealed=0,
    name="a/b",
    configuration="",
    segments=[m.StreamSegment(7, 0, KEY_SPACE - 1, 0, 0, 0, 0, 0, 0)],
)


@asynccontextmanager
async def ever_changing() -> AsyncIterator[tuple[str, list[m.Message]]]:
    """A server whose stream has other segments whenever it is asked about those which it had a moment ago."""
    asked: list[m.Message] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readexactly(4)
                header, message = decode(head + await reader.readexactly(int.from_bytes(head, "little") - 4))
                asked.append(message)
                answers = {m.Hello: GREETING, m.GetStream: STREAM, m.Ping: m.Pong()}
                writer.write(encode(answers.get(type(message), GONE), request_id=header.request_id))
        except EOFError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}", asked


async def test_a_writer_of_a_stream_that_never_holds_still_is_given_up() -> None:
    """Opening ends within the delivery timeout of the writer, and says what was tried."""
    options = ClientOptions(backoff=Backoff(first_s=0.001, limit_s=0.01))
    async with ever_changing() as (address, asked), millrace.connect(address, options=options) as client:
        writer = client.writer("a/b", writer_id="till-7", options=WriterOptions(delivery_timeout_s=0.2))
        with pytest.raises(
            RequestTimeoutError, match=r"not opened: a/b changed each of \d+ times .* no segment with id 7"
        ):
            await writer.open()
        assert sum(isinstance(message, m.OpenWriter) for message in asked) > 1


async def test_so_is_a_question_about_its_writer() -> None:
    options = ClientOptions(backoff=Backoff(first_s=0.001, limit_s=0.01), request_timeout_s=0.2)
    async with ever_changing() as (address, asked), millrace.connect(address, options=options) as client:
        with pytest.raises(RequestTimeoutError, match="nothing is known of writer 'till-7': a/b changed"):
            await client.writer_state("a/b", "till-7")
        assert sum(isinstance(message, m.GetWriter) for message in asked) > 1
