"""A small HTTP listener in a thread of its own, with bounds: it answers one GET on each connection, and ends it.

The protocol is that of h11; here are the sockets. A connection has a deadline for all of it, from its first byte to the
last one that it takes, so a peer that trickles wins nothing. So many connections are there at once; one more takes the
place of the one that has been there longest without a whole request, so that peers which never send one keep nobody
out.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from socket import AF_INET, AF_INET6, create_server
from threading import Thread
from typing import Final

import h11

logger = logging.getLogger(__name__)

CONNECTIONS_COUNT_MAX: Final = 64
DEADLINE_S: Final = 10.0
"""How long a connection may take, all in all."""
REQUEST_SIZE_BYTES_MAX: Final = 16 << 10
"""Of the request line and the headers."""
READ_SIZE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Response:
    """What a GET is answered with."""

    status: HTTPStatus
    content_type: str
    body: bytes


Respond = Callable[[str, str], Response]
"""Given the path and the header Accept of a request; called in the thread of the listener."""


class HttpListener:
    """Listens from its making until `close`.

    Args:
        host, port: where to listen; port 0 lets the system choose.
        respond: answers a request.
        connections_count_max: at once.
        deadline_s: for each.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        respond: Respond,
        connections_count_max: int = CONNECTIONS_COUNT_MAX,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._respond = respond
        self._connections_count_max = connections_count_max
        self._deadline_s = deadline_s
        # Of connections; and of those without a whole request yet, the oldest first. They are ended by transports:
        # a task that is cancelled before it has begun would leave its connection open.
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._waiting: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._socket = create_server((host, port), family=AF_INET6 if ":" in host else AF_INET)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = Thread(target=self._run, name="millrace-console", daemon=True)
        self._thread.start()

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
        # No more are accepted from here on; but the server is closed only after those that just were have come in to
        # `_connected`, which ends them: asyncio leaves the socket open of one that meets a closed server.
        self._loop.remove_reader(self._socket)
        for writer in self._tasks.values():
            writer.transport.abort()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks)
        server.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stop.is_set():
            writer.transport.abort()
            return
        if len(self._tasks) >= self._connections_count_max:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                writer.transport.abort()
                return
            self._waiting.pop(oldest).transport.abort()
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._tasks[task] = writer
        self._waiting[task] = writer
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._waiting.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("console request failed", exc_info=error)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._answer(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError) as error:
            logger.debug("console connection ended peer=%s error=%r", writer.get_extra_info("peername"), error)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_SIZE_BYTES_MAX)
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_SIZE_BYTES))
        except h11.RemoteProtocolError as error:
            response = Response(HTTPStatus(error.error_status_hint), "text/plain", f"{error}\n".encode())
        else:
            if not isinstance(event, h11.Request):
                return  # the peer has left
            response = self._response(event)
        task = asyncio.current_task()
        assert task is not None
        self._waiting.pop(task, None)
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Connection", "close"),
        ]
        head = h11.Response(status_code=response.status, headers=headers, reason=response.status.phrase)
        for event in (head, h11.Data(data=response.body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()

    def _response(self, request: h11.Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"only GET is answered here\n")
        accept = next((value for name, value in request.headers if name == b"accept"), b"")
        path = request.target.partition(b"?")[0]
        return self._respond(path.decode("latin-1"), accept.decode("latin-1"))
