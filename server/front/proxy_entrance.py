"""The first bytes of a connection that a trusted proxy has made: a header of the PROXY protocol."""

import asyncio
from collections.abc import Callable

from millrace.server.host.proxy_protocol import HEADER_SIZE_BYTES_MAX, ProxyHeader, ProxyHeaderError, proxy_header


class ProxyEntrance(asyncio.BufferedProtocol):
    """The protocol of a transport until its PROXY header is received; then the connection itself takes over.

    So connections without a proxy have no overhead. The deadline is that of the handshake.

    Args:
        connection: was created with this transport.
        identified: called with the header, before the connection receives the bytes after it.
        misidentified: called if the header is invalid.
    """

    def __init__(
        self,
        connection: asyncio.BufferedProtocol,
        transport: asyncio.Transport,
        *,
        identified: Callable[[ProxyHeader], None],
        misidentified: Callable[[ProxyHeaderError], None],
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._identified = identified
        self._misidentified = misidentified
        self._buffer = bytearray(HEADER_SIZE_BYTES_MAX)
        self._size_bytes = 0
        transport.set_protocol(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Lend the rest of the memory; a header that fills it is complete or invalid."""
        return memoryview(self._buffer)[self._size_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Look for the end of the header."""
        self._size_bytes += nbytes
        received = bytes(self._buffer[: self._size_bytes])
        try:
            header = proxy_header(received)
        except ProxyHeaderError as error:
            self._misidentified(error)
            return
        if header is not None:
            self._transport.set_protocol(self._connection)
            self._identified(header)
            self._hand_on(memoryview(received)[header.size_bytes :])

    def _hand_on(self, data: memoryview) -> None:
        """Pass the bytes after the header to the connection."""
        while data and not self._transport.is_closing():
            buffer = memoryview(self._connection.get_buffer(-1))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self._connection.buffer_updated(count)
            data = data[count:]

    def eof_received(self) -> bool:
        """Close when the peer does."""
        return False

    def pause_writing(self) -> None:
        """The peer receives too slowly."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The peer has received what was sent."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended before its header was complete."""
        self._connection.connection_lost(exc)
