"""What all transactions of a client share: numbers that the server has reserved for it, and a writer.

A number names a transaction or a part of one, and is used once. Those that were reserved are void when the server ends:
what is refused for that is asked again with fresh ones, once. A request that the server has carried out it recognises,
whatever became of the other numbers, so nothing is done twice.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from millrace.client.transport.channel import Channel
from millrace.model.errors import InvalidArgumentError
from millrace.wire import messages as m

_IDS_COUNT: Final = 1000
"""Reserved at once: a record of the server for each time."""
_WRITER_AGE_S_MAX: Final = 3600.0
"""A writer is replaced long before the server may forget it: after a day without a connection, as a rule."""

R = TypeVar("R")


class WriterIdentity(NamedTuple):
    """A writer without an id, as the server knows it."""

    number: int
    epoch: int


class Identities:
    """The numbers and the writer of a client's transactions."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ids: deque[int] = deque()
        self._turn = asyncio.Lock()
        self._writer: WriterIdentity | None = None
        self._opened_s = 0.0

    async def use(self, count: int, request: Callable[[list[int]], Awaitable[R]]) -> R:
        """Return what a request answers that uses so many fresh numbers. Cancelling loses numbers, nothing else.

        Raises:
            InvalidArgumentError: refused also with numbers that were just reserved; or another answer of the server.
        """
        try:
            return await request(await self._take(count))
        except InvalidArgumentError:
            self._ids.clear()
        return await request(await self._take(count))

    async def writer(self) -> WriterIdentity:
        """Return a writer that is open; cancelling is safe. Raises like `Channel.request`."""
        async with self._turn:
            now_s = self._channel.clock.monotonic_s()
            if self._writer is None or now_s - self._opened_s > _WRITER_AGE_S_MAX:
                opened = await self._channel.request(m.OpenWriter("", [], 0))
                self._writer = WriterIdentity(opened.writer_number, opened.writer_epoch)
                self._opened_s = now_s
            return self._writer

    def forget(self) -> None:
        """Use nothing any more that was reserved or opened so far."""
        self._ids.clear()
        self._writer = None

    async def _take(self, count: int) -> list[int]:
        async with self._turn:
            if len(self._ids) < count:
                size = max(count, _IDS_COUNT)
                first = (await self._channel.request(m.ReserveIds(size))).first
                self._ids = deque(range(first, first + size))
            return [self._ids.popleft() for _ in range(count)]
