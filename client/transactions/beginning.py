"""The beginning of a transaction: what the server must know of it before its events, and is not waited for.

An *announcement* is a request (BEGIN, or parts) that leaves together with the events after it. The server does not
answer it: what it stores after it says that it knows it. Until then it is sent again on each new connection, before
the events; the server recognises it. What it refuses, it refuses with all that was sent after it, so then nothing of
that is stored, and to ask once more, for an answer, says why.

A transaction may have to begin again: its streams were scaled since the client fetched them, its numbers were void, or
as many transactions were open as may be. That is another *attempt*, under another number, with the same events.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from millrace.client.errors import ConnectionLostError, EpochChangedError, TransactionUnknownError
from millrace.client.transport.channel import Channel
from millrace.client.transport.connection import Connection
from millrace.client.transport.retry import Retry, may_resend
from millrace.model.errors import InvalidArgumentError, MillraceError
from millrace.wire import messages as m

from .identities import NEVER, Identities
from .known_streams import KnownStreams, Route

_ATTEMPTS_COUNT_MAX: Final = 20
"""In a row, each refused since a stream was scaled in between."""


@dataclass(slots=True, eq=False)
class Announcement:
    """A request that is sent once on each connection until the server is known to have carried it out.

    Attributes:
        is_known: whether the server has carried it out, as far as it has said so: then it is sent no more.
        was_sent: whether the server may know of it.
    """

    request: m.BeginTransaction | m.AddParts
    is_known: bool = False
    was_sent: bool = False
    _connection: Connection | None = None

    def send(self, connection: Connection) -> None:
        """Send it with what follows in this turn of the loop, unless it was sent on this connection or is known."""
        if self._connection is not connection and not self.is_known:
            connection.send_unanswered(self.request)
            self._connection, self.was_sent = connection, True

    async def answered(self, channel: Channel, retry: Retry) -> None:
        """Ask whether the server knows it, and let it; again after a lost connection. Cancelling is safe.

        Raises:
            MillraceError: why it was refused, or that no connection could be made.
        """
        request = cast("m.Request[Any]", self.request)  # its reply tells nothing that is not known
        while not self.is_known:
            try:
                connection = await channel.connection_by(retry)
                self._connection, self.was_sent = connection, True
                await connection.request(request)
            except ConnectionLostError as error:
                await retry.wait(error)
            else:
                self.is_known = True


@dataclass(slots=True, eq=False)
class Attempt:
    """A transaction as it was begun, or is to be, under one number.

    Attributes:
        routes: by stream, the segments by which its events are routed.
        is_over: it was refused, and so was all that belongs to it.
    """

    number: int
    routes: Mapping[str, Route]
    announcement: Announcement
    is_over: bool = False

    def add_parts(self, parts: Sequence[m.NewPart]) -> bool:
        """Let these parts of its branch 0 begin with it; return False if it was sent before, or has begun."""
        begin = self.announcement.request
        if self.announcement.was_sent or not isinstance(begin, m.BeginTransaction):
            return False
        begin.parts.extend(parts)  # nobody has it yet
        return True


@dataclass(slots=True, eq=False)
class Beginning:
    """The attempts to begin one transaction.

    Attributes:
        current: the last one.
        is_held: its commit is being asked for: nothing is sent again before that is answered.
        is_ending: its commit was asked for, of all that was written.
        listeners: of each who writes, called after it began again.
    """

    channel: Channel
    identities: Identities
    known: KnownStreams
    lease_ms: int
    current: Attempt
    is_held: bool = False
    is_ending: bool = False
    listeners: dict[object, Callable[[], None]] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Why it does not begin any more, if it has not.
    _end_error: MillraceError | None = None

    @classmethod
    async def of_unnamed(
        cls, channel: Channel, identities: Identities, known: KnownStreams, *, streams: Sequence[str], lease_ms: int
    ) -> "Beginning":
        """Return the beginning of a transaction of which nothing is sent yet. Waits only for what is not known.

        Raises:
            StreamNotFoundError, StreamSealedError: of one of the streams.
            MillraceError: as `Channel.request`.
        """
        routes = {name: known.route_of(name) or await known.fetch(name) for name in streams}
        numbers = identities.take_now(1) or await identities.take(1)
        attempt = _attempt(numbers[0], routes, lease_ms=lease_ms)
        return cls(channel, identities, known, lease_ms, attempt)

    def announce(self, connection: Connection) -> None:
        """Send what begins the transaction, if that is not known or on its way."""
        self.current.announcement.send(connection)

    async def known_to_server(self) -> Attempt:
        """Wait until the transaction has begun, in as many attempts as that takes; return the one. Cancelling is safe.

        Raises:
            MillraceError: why it cannot begin.
        """
        async with self._turn:
            scaled_count, void_since = 0, NEVER
            with self.channel.retry(is_transient=may_resend) as retry:
                while True:
                    attempt = self.current
                    if self._end_error is not None and not attempt.announcement.is_known:
                        raise self._end_error.with_traceback(None)
                    try:
                        await attempt.announcement.answered(self.channel, retry)
                        return attempt
                    except EpochChangedError:
                        scaled_count += 1
                        if scaled_count == _ATTEMPTS_COUNT_MAX:
                            raise
                        await self._fetch_all()
                    except InvalidArgumentError as refusal:
                        void_since = self.identities.forget_void(refusal, since=void_since)
                    except MillraceError as error:
                        await retry.wait(error)
                        await self._give_up(attempt, retry)
                    await self._begin_again()

    def end(self, error: MillraceError) -> None:
        """Begin no more: the transaction is over. Those who wait for it get the error."""
        self._end_error = error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nothing be sent again meanwhile: the answer to the commit says what is stored."""
        self.is_held = self.is_ending = True
        try:
            yield
        finally:
            self.is_held = False

    async def _give_up(self, attempt: Attempt, retry: Retry) -> None:
        """See to it that an attempt that was refused for now is never carried out, and then wait no more for it.

        All of it, with its commit, may also have been sent on a connection that was lost, and arrive later than this.

        Raises:
            TransactionCommittedError: it has arrived before, and is committed.
            MillraceError: the server does not say what became of it.
        """
        while True:
            try:
                await self.channel.request(m.AbortTransaction(attempt.number, ""))
            except TransactionUnknownError:
                return  # its number is void
            except MillraceError as error:
                await retry.wait(error)
            else:
                return

    async def _fetch_all(self) -> None:
        for name in self.current.routes:
            await self.known.fetch(name)

    async def _begin_again(self) -> None:
        (number,) = await self.identities.take(1)
        routes = {name: self.known.route_of(name) or await self.known.fetch(name) for name in self.current.routes}
        self.current.is_over = True
        self.current = _attempt(number, routes, lease_ms=self.lease_ms)
        for begun_again in list(self.listeners.values()):
            begun_again()


def _attempt(number: int, routes: Mapping[str, Route], *, lease_ms: int) -> Attempt:
    streams = [m.RoutedStream(name, route.stream_id, route.epoch) for name, route in routes.items()]
    request = m.BeginTransaction(number=number, name="", lease_ms=lease_ms, streams=streams)
    return Attempt(number, routes, Announcement(request))


def begun(number: int, routes: Mapping[str, Route]) -> Attempt:
    """Return the attempt of a transaction that the server knows."""
    attempt = _attempt(number, routes, lease_ms=0)
    attempt.announcement.is_known = attempt.announcement.was_sent = True
    return attempt
