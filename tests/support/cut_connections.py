"""A relay between clients and a server that cuts connections at a byte of the test's choice, or goes silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millrace.wire.framing import decode_header
from millrace.wire.limits import FRAME_HEADER_SIZE_BYTES


class Relay:
    """Passes bytes on in both directions.

    Attributes:
        address: where clients connect.
        passed: how many bytes have gone to the server, and from it.
        cuts_count: how often connections were cut.
    """

    def __init__(self, server_address: str) -> None:
        self.lead_to(server_address)
        self.address = ""
        self.passed = {True: 0, False: 0}
        self.cuts_count = 0
        self._left: dict[bool, int | None] = {True: None, False: None}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_silent = False
        # Those of clients, with that to the server; and what is held back for the latter.
        self._pairs: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._held: dict[asyncio.StreamWriter, list[bytes]] = {}

    def lead_to(self, server_address: str) -> None:
        """Lead connections from now on to this server."""
        self._host, _, port = server_address.rpartition(":")
        self._port = int(port)

    def cut_after(self, count: int, *, to_server: bool) -> None:
        """Cut all connections once so many more bytes have gone in this direction; those after it live."""
        self._left[to_server] = count

    def hold(self) -> None:
        """Hold back what is sent to the server on the connections that there are now."""
        self._held |= {up_writer: [] for up_writer in self._pairs.values()}

    def held_types(self) -> list[int]:
        """Return the types of the whole frames that are held back; what was passed on before ended with one."""
        found: list[int] = []
        for held in self._held.values():
            data, offset = b"".join(held), 0
            while len(data) - offset >= FRAME_HEADER_SIZE_BYTES:
                header = decode_header(data, offset)
                offset += header.length
                if offset <= len(data):
                    found.append(header.type)
        return found

    def cut_held(self) -> None:
        """Let clients lose the connections of which something is held back; the server does not know yet."""
        for writer, up_writer in self._pairs.items():
            if up_writer in self._held:
                writer.transport.abort()

    def deliver(self) -> None:
        """Pass on what was held back, and the end of its connections after it."""
        held, self._held = self._held, {}
        for up_writer, data in held.items():
            up_writer.write(b"".join(data))
            up_writer.close()

    def silence(self) -> None:
        """Drop all bytes and close nothing, also of new connections, as a network that vanished; `cut` ends that."""
        self._is_silent = True

    def cut(self) -> None:
        """Cut all connections now."""
        self.cuts_count += 1
        self._is_silent = False
        self._left = {True: None, False: None}
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._is_silent:
                self._writers.add(writer)
                while await reader.read(65536):
                    pass
                return
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
            self._writers |= {writer, up_writer}
            self._pairs[writer] = up_writer
            await asyncio.gather(
                self._pass_on(reader, up_writer, to_server=True), self._pass_on(up_reader, writer, to_server=False)
            )
        except OSError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def end(self) -> None:
        """End what is under way."""
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool) -> None:
        while data := await reader.read(65536):
            if self._is_silent:
                continue
            left = self._left[to_server]
            is_last = left is not None and len(data) >= left
            if is_last:
                data = data[:left]
            elif left is not None:
                self._left[to_server] = left - len(data)
            self.passed[to_server] += len(data)
            if writer in self._held:
                self._held[writer].append(data)
                continue
            writer.write(data)
            if is_last:
                await writer.drain()
                await asyncio.sleep(0)  # so that the other end has read it before the end
                self.cut()
                return
            await writer.drain()
        if writer not in self._held and not self._is_silent:
            writer.close()


@asynccontextmanager
async def relay_to(server_address: str) -> AsyncIterator[Relay]:
    """Run a relay to a server."""
    relay = Relay(server_address)
    listening = await asyncio.start_server(relay.take, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    relay.address = f"{host}:{port}"
    try:
        yield relay
    finally:
        listening.close()
        await relay.end()
