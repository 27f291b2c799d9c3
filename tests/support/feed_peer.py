"""A client of the console over a real socket, which takes what it wants when it wants."""

import asyncio
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import h11

from applications.change_feed.messages import Message, Messages
from millrace.model.address import Address

from .waiting import PATIENCE_S


class FeedPeer:
    """One request and its answer; left by closing the socket.

    Attributes:
        status: of the answer.
        headers: of the answer, by their names in small letters.
        place: the `id` that came last.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = h11.Connection(h11.CLIENT)
        self._messages = Messages()
        self._lines = b""
        self._read: list[Message] = []
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def ask(
        cls, address: str, path: str, *, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> Self:
        """Send a request, and return when the head of the answer has come."""
        where = Address.parse(address, default_port=0)
        peer = cls(*await asyncio.open_connection(where.host, where.port, limit=1 << 16))
        fields = {"Host": address, **(headers or {})}
        peer._send(
            h11.Request(
                method=method, target=path, headers=[(name.encode(), value.encode()) for name, value in fields.items()]
            )
        )
        peer._send(h11.EndOfMessage())
        head = await peer._next_event()
        assert isinstance(head, h11.Response)
        peer.status = head.status_code
        peer.headers = {name.decode(): value.decode() for name, value in head.headers}
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    @property
    def place(self) -> str:
        return self._messages.last_id

    async def body(self) -> bytes:
        """Return the rest of the answer."""
        parts = []
        while isinstance(event := await self._next_event(), h11.Data):
            parts.append(bytes(event.data))
        return b"".join(parts)

    async def error(self) -> str:
        """Return what the answer says is wrong."""
        content: dict[str, Any] = json.loads(await self.body())
        return str(content["error"])

    async def message(self) -> Message | None:
        """Return the next message, None when the answer has ended or the connection was cut."""
        while not self._read:
            try:
                event = await self._next_event()
            except (ConnectionError, h11.RemoteProtocolError):
                return None
            if not isinstance(event, h11.Data):
                return None
            self._lines += bytes(event.data)
            whole, end, self._lines = self._lines.rpartition(b"\n\n")
            self._read += self._messages.read((whole + end).splitlines(keepends=True))
        return self._read.pop(0)

    async def messages(self, count: int | None = None) -> list[Message]:
        """Return so many messages, or all until the answer ends."""
        found: list[Message] = []
        while (count is None or len(found) < count) and (message := await self.message()) is not None:
            found.append(message)
        return found

    async def opened(self) -> Self:
        """Return when the place where the feed begins has come."""
        while not self.place:
            event = await self._next_event()
            assert isinstance(event, h11.Data)
            self._read += self._messages.read(bytes(event.data).splitlines(keepends=True))
        return self

    def _send(self, event: h11.Event) -> None:
        self._writer.write(self._connection.send(event) or b"")

    async def _next_event(self) -> object:
        async with asyncio.timeout(PATIENCE_S):
            while (event := self._connection.next_event()) is h11.NEED_DATA:
                self._connection.receive_data(await self._reader.read(1 << 16))
            return event
