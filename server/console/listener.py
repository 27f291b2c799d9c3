"""A small, bounded HTTP listener in a thread of its own: it answers one request on each connection, and closes it.

h11 implements the protocol; this module the sockets. A connection has one deadline, from its first byte to the last one
sent, so a peer that trickles gains nothing. The number of connections is bounded. At the limit, a new connection
replaces the oldest replaceable one: one whose rejection is delayed, or that has not sent a whole request, of the
address with the most of these. Connections with a request in progress keep their places, and addresses share those
(`shares`).

An answer may be a stream, which has no deadline and does not count as a connection; the handler limits the number of
streams. Backpressure: a peer that does not receive is sent nothing more, so a stream costs only the bytes under way; a
peer that receives nothing for a while is cut. A stream ends at once when its peer leaves.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from socket import AF_INET, AF_INET6, create_server
from threading import Thread
from typing import Final

import h11

from millrace.server.host.addresses import address_of
from millrace.server.host.listening import is_for_both_families
from millrace.server.host.proxy_protocol import NO_PROXIES, ProxyHeaderError, TrustedProxies, proxy_header
from millrace.server.shares import Shares

logger = logging.getLogger(__name__)

CONNECTIONS_COUNT_MAX: Final = 64
DEADLINE_S: Final = 10.0
"""Deadline of a connection."""
REQUEST_SIZE_BYTES_MAX: Final = 128 << 10
"""Of the request line and the headers; a header may contain the cut of a stream of 4,096 segments."""
READ_SIZE_BYTES: Final = 4096
UPTAKE_CHECKED_S: Final = 0.25
"""Interval at which stalled peers are detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """An HTTP request.

    Attributes:
        path: without the query, as it was sent.
        query: after the question mark, as it was sent.
        headers: by lower-case name; the first of several with one name.
        address: of the client's host, empty if unknown.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    address: str = ""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response.

    Attributes:
        delay_s: how long it is withheld; meanwhile another connection can replace this one.
    """

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass(slots=True)
class Uptake:
    """Progress of the peer of a stream.

    Attributes:
        stalled_since_s: since when it has received nothing of the waiting bytes, by the clock of the loop; None if no
            bytes wait.
        is_rest_wanted: whether the stream should rest because its memory is needed; for a stalled peer.
    """

    stalled_since_s: float | None = None
    is_rest_wanted: bool = False


async def _rest() -> None:
    """Release nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedResponse:
    """A response that is sent piece by piece, with status 200.

    Attributes:
        opening: sent at once.
        chunks: the rest; the next one is requested when the peer has received most of the previous ones.
        patience_s: a peer that receives nothing for this long is cut.
        uptake: kept up to date while the stream is sent.
        rest: releases the memory of the stream, until the next chunk is requested.
    """

    content_type: str
    headers: Mapping[str, str]
    opening: bytes
    chunks: AsyncIterator[bytes]
    patience_s: float
    uptake: Uptake = field(default_factory=Uptake)
    rest: Callable[[], Awaitable[None]] = _rest


BUSY: Final = HttpResponse(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "text/plain",
    b"too many requests of your address are being answered now; try again later\n",
    {"Retry-After": "1"},
)
Respond = Callable[[HttpRequest], AbstractAsyncContextManager[HttpResponse | StreamedResponse]]
"""Answers a request, in the thread of the listener. It is left when the answer was taken, or its peer has left."""


class HttpListener:
    """Listens from its creation until `close`.

    Args:
        host, port: where to listen; port 0 lets the system choose.
        respond: answers a request.
        proxies: the proxies that report the addresses of their clients.
        connections_count_max: concurrent connections, without streams.
        deadline_s: for each, until a stream begins.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        respond: Respond,
        proxies: TrustedProxies = NO_PROXIES,
        connections_count_max: int = CONNECTIONS_COUNT_MAX,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._respond = respond
        self._proxies = proxies
        self._connections_count_max = connections_count_max
        self._deadline_s = deadline_s
        # All connections; and the addresses of those without a whole request yet, oldest first. These are ended by
        # their transports: a task that is cancelled before it has begun would leave its connection open. The others are
        # cancelled.
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._waiting: dict[asyncio.Task[None], str] = {}
        # Connections whose answer is withheld, oldest first; connections with other answers, by address.
        self._refused: dict[asyncio.Task[None], None] = {}
        self._answering: dict[asyncio.Task[None], str] = {}
        self._shares = Shares[str](connections_count_max)
        # Connections that are answered with a stream.
        self._streaming: set[asyncio.Task[None]] = set()
        self._streams_ended = False
        self._socket = create_server(
            (host, port), family=AF_INET6 if ":" in host else AF_INET, dualstack_ipv6=is_for_both_families(host)
        )
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = Thread(target=self._run, name="millrace-console", daemon=True)
        self._thread.start()

    def end_streams(self) -> None:
        """Cut all streams and requests in progress, and each stream that would begin later.

        Returns when they have ended; blocks for a moment.
        """
        asyncio.run_coroutine_threadsafe(self._end_streams(), self._loop).result()

    def close(self) -> None:
        """Stop to listen, and cut the connections. Blocks for a moment."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=REQUEST_SIZE_BYTES_MAX)
        await self._stop.wait()
        # No connection is accepted from here on; but the server is closed only after the connections just accepted have
        # reached `_connected`, which ends them: asyncio leaves the socket of a connection open if the server is closed
        # first.
        self._loop.remove_reader(self._socket)
        for writer in self._tasks.values():
            writer.transport.abort()
        self._stop_answering()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks)
        server.close()

    async def _end_streams(self) -> None:
        self._streams_ended = True
        if answering := self._stop_answering():
            await asyncio.wait(answering)

    def _stop_answering(self) -> list[asyncio.Task[None]]:
        """Cancel all connections that have a whole request, and return them: any of them may become a stream."""
        answering = [task for task in self._tasks if task not in self._waiting]
        for task in answering:
            task.cancel()
        return answering

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stop.is_set():
            writer.transport.abort()
            return
        is_full = len(self._tasks) - len(self._streaming) >= self._connections_count_max
        if is_full and not self._make_room():
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._tasks[task] = writer
        self._waiting[task] = address_of(writer.get_extra_info("peername"))
        task.add_done_callback(self._ended)

    def _make_room(self) -> bool:
        """End a replaceable connection; return False if requests are in progress on all of them."""
        if self._refused:
            refused = next(iter(self._refused))
            del self._refused[refused]
            refused.cancel()
            return True
        counts = Counter(self._waiting.values())
        oldest = max(self._waiting, key=lambda task: counts[self._waiting[task]], default=None)
        if oldest is None:
            return False
        del self._waiting[oldest]
        self._tasks[oldest].transport.abort()
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._waiting.pop(task, None)
        self._refused.pop(task, None)
        self._release(task)
        self._streaming.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("console request failed", exc_info=error)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                await self._answer(reader, writer, deadline)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError) as error:
            logger.debug("console connection ended peer=%s error=%r", writer.get_extra_info("peername"), error)
        finally:
            writer.transport.abort()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deadline: asyncio.Timeout
    ) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_SIZE_BYTES_MAX)
        task = asyncio.current_task()
        assert task is not None
        problem = None
        try:
            if self._proxies.trusts(writer.get_extra_info("peername")):
                received = await self._after_header(task, reader)
                if received:  # an empty write would mean the end of the connection
                    connection.receive_data(received)
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_SIZE_BYTES))
        except h11.RemoteProtocolError as error:
            problem = HttpResponse(HTTPStatus(error.error_status_hint), "text/plain", f"{error}\n".encode())
        except ProxyHeaderError as error:
            problem = HttpResponse(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())
        address = self._waiting.pop(task, "")
        if problem is not None:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await _send_whole(connection, writer, problem)
            return
        if not isinstance(event, h11.Request):
            return  # the peer has left
        request = _request_of(event, address)
        if not self._shares.has_room(request.address):
            await _send_whole(connection, writer, BUSY)
            return
        self._answering[task] = request.address
        self._shares.take(request.address)
        async with self._respond(request) as response:
            if isinstance(response, HttpResponse):
                if response.delay_s:
                    await self._withhold(task, response.delay_s)
                await _send_whole(connection, writer, response)
            elif not self._streams_ended:
                self._release(task)
                self._streaming.add(task)
                deadline.reschedule(None)
                await _send_stream(connection, reader, writer, response)
                deadline.reschedule(self._loop.time() + self._deadline_s)

    async def _after_header(self, task: asyncio.Task[None], reader: asyncio.StreamReader) -> bytes:
        """Count a connection for the host that uses the proxy; return the bytes received after the header.

        Raises:
            ProxyHeaderError: the header is invalid.
        """
        data = b""
        while (header := proxy_header(data)) is None:
            received = await reader.read(READ_SIZE_BYTES)
            if not received:
                return data
            data += received
        if header.host and task in self._waiting:
            self._waiting[task] = address_of((header.host, header.port))
        return data[header.size_bytes :]

    async def _withhold(self, task: asyncio.Task[None], delay_s: float) -> None:
        """Wait before a refusal; the connection can be replaced meanwhile."""
        self._release(task)
        self._refused[task] = None
        await asyncio.sleep(delay_s)
        self._refused.pop(task, None)

    def _release(self, task: asyncio.Task[None]) -> None:
        """Release the place of a connection with a request in progress, if it has one."""
        address = self._answering.pop(task, None)
        if address is not None:
            self._shares.release(address)


def _request_of(event: h11.Request, address: str) -> HttpRequest:
    path, _, query = event.target.decode("latin-1").partition("?")
    headers: dict[str, str] = {}
    for name, value in event.headers:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return HttpRequest(
        method=event.method.decode("latin-1"),
        path=path,
        query=query,
        headers=headers,
        address=address,
    )


def _head(status: HTTPStatus, content_type: str, headers: Mapping[str, str]) -> h11.Response:
    fields = {"Content-Type": content_type, **headers, "Connection": "close"}
    return h11.Response(status_code=status, headers=list(fields.items()), reason=status.phrase)


async def _send_whole(connection: h11.Connection, writer: asyncio.StreamWriter, response: HttpResponse) -> None:
    length = {} if response.status is HTTPStatus.NO_CONTENT else {"Content-Length": str(len(response.body))}
    head = _head(response.status, response.content_type, {**response.headers, **length})
    for event in (head, h11.Data(data=response.body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()


async def _send_stream(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: StreamedResponse
) -> None:
    """Send the chunks as the peer receives them, until they end or the peer leaves.

    Raises:
        TimeoutError: the peer has received nothing for too long.
        OSError: the connection was lost.
    """
    sending = asyncio.create_task(_send_chunks(connection, writer, response))
    leaving = asyncio.create_task(_left(reader))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        await _ended(sending, leaving)
    if not sending.cancelled():
        sending.result()


async def _ended(*tasks: asyncio.Task[None]) -> None:
    """Wait until tasks have ended, even if cancelled: their chunks are closed next, and must not be in use."""
    cancellation = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def _send_chunks(connection: h11.Connection, writer: asyncio.StreamWriter, response: StreamedResponse) -> None:
    for event in (_head(HTTPStatus.OK, response.content_type, response.headers), h11.Data(data=response.opening)):
        writer.write(connection.send(event) or b"")
    async for chunk in response.chunks:
        writer.write(connection.send(h11.Data(data=chunk)) or b"")
        del chunk
        await _taken(writer, response)
        # Chunks and a fast peer may never block this loop, and other connections need their turn.
        await asyncio.sleep(0)
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await _taken(writer, response)


async def _taken(writer: asyncio.StreamWriter, response: StreamedResponse) -> None:
    """Wait until the peer has received most of the written bytes; meanwhile the stream may have to rest.

    Raises:
        TimeoutError: it received nothing for `patience_s`.
    """
    now_s = asyncio.get_running_loop().time
    uptake, patience_s = response.uptake, response.patience_s
    stalled_s = uptake.stalled_since_s = now_s()
    unsent_bytes = writer.transport.get_write_buffer_size()
    while True:
        try:
            async with asyncio.timeout(min(UPTAKE_CHECKED_S, stalled_s + patience_s - now_s())):
                await writer.drain()
            uptake.stalled_since_s = None
            return
        except TimeoutError:
            before, unsent_bytes = unsent_bytes, writer.transport.get_write_buffer_size()
            if unsent_bytes < before:
                stalled_s = uptake.stalled_since_s = now_s()
            elif now_s() >= stalled_s + patience_s:
                raise
            if uptake.is_rest_wanted:
                uptake.is_rest_wanted = False
                await response.rest()


async def _left(reader: asyncio.StreamReader) -> None:
    """Wait until the peer leaves; anything that it sends is dropped."""
    try:
        while await reader.read(READ_SIZE_BYTES):
            pass
    except OSError:
        return
