"""Shared by all transactions of a client: reserved numbers, and a writer.

A number names a transaction or a part of one, and is used once. Those that were reserved are void when the server ends:
what is refused for that is asked again with fresh ones, unless no connection was made since these were taken. A request
that the server has carried out it recognises, whatever became of the other numbers, so nothing is done twice.

Numbers are reserved, and the writer is opened, before they are needed: only the first transaction waits for that.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from millrace.client.transport.channel import Channel
from millrace.model.errors import InvalidArgumentError, MillraceError
from millrace.wire import messages as m

_IDS_COUNT: Final = 1000
"""Reserved at once: a record of the server for each time."""
_IDS_COUNT_LOW: Final = _IDS_COUNT // 2
"""Others are reserved when fewer are left."""
NEVER: Final = -1
"""No number was refused yet; see `Identities.forget_void`."""
_WRITER_AGE_S_MAX: Final = 3600.0
"""A writer is replaced long before the server may forget it: after a day without a connection, as a rule."""
_WRITER_AGE_S_HIGH: Final = _WRITER_AGE_S_MAX / 2
"""Another one is opened, for later, when it is older."""

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
        self._preparing: asyncio.Task[None] | None = None

    async def use(self, count: int, request: Callable[[list[int]], Awaitable[R]]) -> R:
        """Return what a request answers that uses so many fresh numbers. Cancelling loses numbers, nothing else.

        Raises:
            InvalidArgumentError: refused also with numbers of the same connection; or another answer of the server.
        """
        since = NEVER
        while True:
            try:
                return await request(await self.take(count))
            except InvalidArgumentError as refusal:
                since = self.forget_void(refusal, since=since)

    def take_now(self, count: int) -> list[int] | None:
        """Return fresh numbers; None if there are not so many."""
        if len(self._ids) < count:
            return None
        taken = [self._ids.popleft() for _ in range(count)]
        if len(self._ids) < _IDS_COUNT_LOW:
            self._prepare()
        return taken

    async def take(self, count: int) -> list[int]:
        """Return fresh numbers, which are reserved if there are not so many. Cancelling is safe."""
        while (taken := self.take_now(count)) is None:
            await self.reserve(count)
        return taken

    async def reserve(self, count: int) -> None:
        """See to it that so many numbers can be taken. Cancelling is safe. Raises like `Channel.request`."""
        async with self._turn:
            if len(self._ids) < count:
                await self._reserve(max(count, _IDS_COUNT))

    def writer_now(self) -> WriterIdentity | None:
        """Return a writer that is open; None if there is none."""
        age_s = self._channel.clock.monotonic_s() - self._opened_s
        if self._writer is None or age_s > _WRITER_AGE_S_MAX:
            return None
        if age_s > _WRITER_AGE_S_HIGH:
            self._prepare()
        return self._writer

    async def writer(self) -> WriterIdentity:
        """Return a writer that is open; cancelling is safe. Raises like `Channel.request`."""
        while (writer := self.writer_now()) is None:
            async with self._turn:
                if self.writer_now() is None:
                    await self._open()
        return writer

    def forget(self) -> None:
        """Use nothing any more that was reserved or opened so far."""
        self._ids.clear()
        self._writer = None

    def forget_void(self, refusal: InvalidArgumentError, *, since: int) -> int:
        """Forget all, for a number was refused: as a rule the server was started again since it was reserved.

        Args:
            since: what this returned when it was called last for the same thing; `NEVER` the first time.

        Raises:
            InvalidArgumentError: the refusal. No connection was made since, so it is for something else.
        """
        connects_count = self._channel.connects_count
        if connects_count == since:
            raise refusal
        self.forget()
        return connects_count

    def close(self) -> None:
        """Reserve and open nothing any more."""
        if self._preparing is not None:
            self._preparing.cancel()

    def _prepare(self) -> None:
        if self._preparing is None:
            self._preparing = asyncio.create_task(self._prepare_in_time(), name="transactions reserve numbers")

    async def _prepare_in_time(self) -> None:
        """Reserve and open what will be needed; what fails is tried again when it is."""
        with suppress(MillraceError):
            async with self._turn:
                if len(self._ids) < _IDS_COUNT_LOW:
                    await self._reserve(_IDS_COUNT)
                if self._channel.clock.monotonic_s() - self._opened_s > _WRITER_AGE_S_HIGH:
                    await self._open()
        self._preparing = None

    async def _reserve(self, count: int) -> None:
        first = (await self._channel.request(m.ReserveIds(count))).first
        self._ids.extend(range(first, first + count))

    async def _open(self) -> None:
        opened = await self._channel.request(m.OpenWriter("", [], 0))
        self._writer = WriterIdentity(opened.writer_number, opened.writer_epoch)
        self._opened_s = self._channel.clock.monotonic_s()
