"""A channel to one server: a connection that is opened on demand, and reopened after it was lost.

    IDLE         there is no connection; the next use opens one
    CONNECTING   one attempt is in progress; all users of the connection wait for it
    READY        the connection is open
    CLOSED       for good; every use fails with `ClientClosedError`

(gRPC has the same states for its channels; its TRANSIENT_FAILURE is here a wait in the `Retry` of a caller.)

A repeatable request is resent, with growing waits, until its time limit; other requests fail with `OutcomeUnknownError`
once they were sent and their connection was lost, or once the server reports an unknown outcome. An append without a
writer is never sent twice, except under a condition that only the first can meet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from operator import attrgetter
from random import Random
from secrets import token_bytes
from typing import Final, Protocol, TypeVar

from millrace.client.errors import (
    AnswerLostError,
    AnswerTimeoutError,
    ClientClosedError,
    ConditionFailedError,
    ConnectionLostError,
    OutcomeUnknownError,
    PipelineBrokenError,
    RequestTimeoutError,
)
from millrace.client.options import ClientOptions
from millrace.client.waiting import Waits
from millrace.model.address import Address, Addresses
from millrace.model.checksum import Buffer
from millrace.model.errors import MillraceError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.wire import messages as m
from millrace.wire.client_session import Piece
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import SESSION_ID_SIZE_BYTES

from .client_guard import ClientGuard
from .clock import SYSTEM_CLOCK, Clock
from .connection import Connection, ConnectionStatistics
from .dialing import Dialer
from .retry import Retry, may_resend
from .silence import watch_silence

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=m.Message)
R = TypeVar("R")

# Separate from the module `random`, so that a program that seeds that gets its own numbers undisturbed.
CHANCE: Final = Random()


class FindOther(Protocol):
    """Returns None if a server serves at another address than the silent one, else the seconds until the next try."""

    def __call__(
        self, addresses: Addresses, options: ClientOptions, session_id: bytes, /, *, silent: Address
    ) -> Awaitable[float | None]:
        """Try the addresses, in one attempt each."""
        ...


class ChannelState(Enum):
    """The state of a channel; see the module docstring."""

    IDLE = auto()
    CONNECTING = auto()
    READY = auto()
    CLOSED = auto()


class ChannelEvent(Enum):
    """The events that change the state of a channel."""

    CONNECT = auto()
    CONNECTED = auto()
    FAILED = auto()
    """The attempt to connect failed, or was cancelled."""
    LOST = auto()
    CLOSE = auto()


IDLE, CONNECTING, READY, CLOSED = ChannelState
CONNECT, CONNECTED, FAILED, LOST, CLOSE = ChannelEvent

TRANSITIONS: Final[dict[ChannelState, dict[ChannelEvent, ChannelState]]] = {
    IDLE: {CONNECT: CONNECTING, CLOSE: CLOSED},
    CONNECTING: {CONNECTED: READY, FAILED: IDLE, CLOSE: CLOSED},
    READY: {LOST: IDLE, CLOSE: CLOSED},
    # The attempt that closing has cancelled ends after it, and so does the connection.
    CLOSED: {FAILED: CLOSED, LOST: CLOSED, CLOSE: CLOSED},
}
"""Every legal event of every state, and the state after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatistics:
    """Statistics of a channel."""

    connects: int
    retries: int
    connection: ConnectionStatistics | None


class Channel:
    """At most one open connection to one server. Belongs to one event loop.

    Args:
        chance: returns a random number in [0, 1).
        connect: opens a connection in one attempt, as `Dialer.dial` does: that of an own dialer by default.
        find_other: tries the other addresses, as `Dialer.find_other` does.
        session_id: 16 random bytes, the same for all channels of a client; empty for a session of its own.
        waits: the same for all channels of a client; its own by default.
    """

    def __init__(
        self,
        address: Addresses,
        options: ClientOptions,
        guard: ClientGuard,
        *,
        clock: Clock = SYSTEM_CLOCK,
        chance: Callable[[], float] = CHANCE.random,
        connect: Callable[[Addresses, ClientOptions, bytes], Awaitable[Connection]] | None = None,
        find_other: FindOther | None = None,
        session_id: bytes = b"",
        waits: Waits | None = None,
    ) -> None:
        self.address = address
        self.options = options
        self.guard = guard
        self.clock = clock
        self._chance = chance
        dialer = Dialer()
        self._connect = connect or dialer.dial
        self._find_other: FindOther | None = find_other or (None if connect else dialer.find_other)
        self.session_id = session_id or token_bytes(SESSION_ID_SIZE_BYTES)
        self.waits = waits or waits_of(address, options, clock=clock)
        self.state = IDLE
        # The last open connection, even after it was lost.
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        # Looks for another server while the connected one is silent.
        self._watching: asyncio.Task[None] | None = None
        self._connects = 0
        self._retries = 0

    @property
    def live(self) -> Connection | None:
        """The open connection, None if there is none now."""
        return self._connection if self.state is READY else None

    @property
    def append_size_max(self) -> int:
        """The largest payload of one append, according to the server, or before its first answer to the protocol."""
        return APPEND_SIZE_BYTES_MAX if self._connection is None else self._connection.append_size_max

    @property
    def connects_count(self) -> int:
        """The number of connections opened so far."""
        return self._connects

    def check(self) -> None:
        """Raise if the channel cannot be used: closed, or in the wrong process or loop (see `ClientGuard`)."""
        self.guard.check()
        if self.state is CLOSED:
            raise ClientClosedError("the client was closed")

    def statistics(self) -> ChannelStatistics:
        """Return the statistics of the channel."""
        connection = self._connection
        return ChannelStatistics(
            connects=self._connects,
            retries=self._retries,
            connection=connection.statistics() if connection is not None else None,
        )

    def retry(
        self, limit_s: float | None = None, *, is_transient: Callable[[MillraceError], bool] = attrgetter("retriable")
    ) -> Retry:
        """Return the attempts of an operation that needs this server.

        Args:
            limit_s: how long to retry; None for `request_timeout_s` of the options.
            is_transient: whether another attempt can succeed after an error.
        """
        return Retry(
            self.options.backoff,
            limit_s=self.options.request_timeout_s if limit_s is None else limit_s,
            is_transient=is_transient,
            clock=self.clock,
            chance=self._chance,
            waits=self.waits,
        )

    async def connection(self) -> Connection:
        """Return the open connection, after one attempt to open it if there is none. Cancelling is safe.

        Raises:
            ServerUnreachableError: the attempt failed.
            RequestError: the server rejected the handshake.
        """
        self.check()
        if self.state is READY:
            assert self._connection is not None
            return self._connection
        if self.state is IDLE:
            self._change(CONNECT)
            self._connecting = asyncio.create_task(self._connect_once(), name=f"connect to {self.address}")
            self._connecting.add_done_callback(_retrieve)
        connecting = self._connecting
        assert connecting is not None
        try:
            # Shielded: others wait for the same attempt.
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # A task that is cancelled before its first step never runs, so it cannot raise for `close` itself.
            if self.state is CLOSED and connecting.cancelled():
                raise ClientClosedError("the client was closed") from None
            raise

    async def connection_by(self, retry: Retry) -> Connection:
        """Return the open connection, after as many attempts as `retry` allows. Cancelling is safe.

        Raises:
            ServerUnreachableError: no attempt succeeded.
            RequestError: the server refused the handshake for good.
        """
        while True:
            try:
                return await self.connection()
            except MillraceError as error:
                await self._wait(retry, error)

    async def request(
        self, message: m.Request[Reply], *, repeatable: bool = True, timeout_s: float | None = None
    ) -> Reply:
        """Send a request and return its reply. Cancelling forgets the reply; the request may still be carried out.

        Args:
            repeatable: whether the request is idempotent.
            timeout_s: overrides `request_timeout_s` of the options.

        Raises:
            RequestError: the server's answer.
            OutcomeUnknownError: the server does not know the outcome; for a repeatable request, until the time limit.
            AnswerLostError, AnswerTimeoutError: not repeatable and sent, but the connection was lost before the answer,
                or no answer came within the time limit.
            RequestTimeoutError, ConnectionLostError: no answer within the time limit.
        """
        return await self._repeat(
            lambda connection: connection.request(message), repeatable=repeatable, timeout_s=timeout_s
        )

    async def read(self, message: m.Read, *, timeout_s: float | None = None) -> Piece:
        """Read; `wait_ms` is added to the time limit. Cancelling is safe. Raises like `request`."""
        limit_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        return await self._repeat(
            lambda connection: connection.read(message), repeatable=True, timeout_s=limit_s + message.wait_ms / 1000
        )

    async def append(self, payload: Buffer, *, segment_id: int, expected_offset: int = -1) -> int:
        """Append without a writer and return the offset. Cancelling forgets the outcome; it may still be stored.

        Raises:
            RequestError: the server's answer; nothing was stored.
            OutcomeUnknownError: sent, and the server does not know the outcome.
            AnswerLostError: sent, and the connection was lost before the answer.
            ConnectionLostError: it could not be sent.
        """
        lost: OutcomeUnknownError | None = None
        with self.retry(is_transient=may_resend) as retry:
            while True:
                try:
                    connection = await self.connection_by(retry)
                    if not connection.has_room(len(payload)):
                        await connection.wait_for_room(len(payload))
                        if not connection.is_open:
                            continue
                    return await connection.append(payload, segment_id=segment_id, expected_offset=expected_offset)
                except (OutcomeUnknownError, PipelineBrokenError) as error:
                    # Two appends cannot both meet the condition, so a second attempt stores nothing twice; and if an
                    # append of another task failed before this one, the condition keeps it in order.
                    if expected_offset < 0 or error.code == ErrorCode.OUTCOME_UNKNOWN:
                        raise
                    if isinstance(error, OutcomeUnknownError):
                        lost = error
                    await self._wait(retry, lost or error)
                except (ConditionFailedError, ConnectionLostError):
                    if lost is not None:
                        raise lost from None  # perhaps our own first attempt moved the end
                    raise

    async def close(self) -> None:
        """Close the connection; pending calls fail with `ClientClosedError`. In a forked child, do nothing."""
        was_open = self.live
        self._change(CLOSE)
        if self.guard.forked:
            return
        if self._connecting is not None:
            self._connecting.cancel()
        if was_open is not None:
            await was_open.close()

    # --- inside ---

    def _change(self, event: ChannelEvent) -> None:
        """Go to the state that follows; the only place that does."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{event} in {self.state}"
        self.state = following

    async def _repeat(
        self, call: Callable[[Connection], Awaitable[R]], *, repeatable: bool, timeout_s: float | None
    ) -> R:
        # A server whose log has failed reports an unknown outcome, as a lost connection does.
        is_transient = _may_repeat if repeatable else attrgetter("retriable")
        with self.retry(timeout_s, is_transient=is_transient) as retry:
            while True:
                sent = False
                try:
                    async with self.clock.timeout(retry.left_s):
                        connection = await self.connection()
                        sent = True
                        return await call(connection)
                except MillraceError as error:  # some are a `TimeoutError` too
                    if sent and not repeatable and isinstance(error, ConnectionLostError):
                        told = f"the connection to {self.address} was lost before the answer"
                        raise AnswerLostError(f"{told}; the request may have been carried out") from error
                    await self._wait(retry, error)
                except TimeoutError:
                    told = f"no answer from {self.address} within {retry.limit_s:g} s"
                    if sent and not repeatable:
                        raise AnswerTimeoutError(f"{told}; the request may have been carried out") from None
                    raise RequestTimeoutError(told) from None

    async def _wait(self, retry: Retry, error: MillraceError) -> None:
        await retry.wait(error)
        self._retries += 1
        self.check()

    async def _connect_once(self) -> Connection:
        try:
            connection = await self._connect(self.address, self.options, self.session_id)
            if not connection.is_open:  # lost before this task had its turn
                raise ConnectionLostError(f"the connection to {self.address} was lost at once")
        except asyncio.CancelledError:
            self._change(FAILED)
            if self.state is CLOSED:  # `close` cancelled this; all waiters receive that error
                raise ClientClosedError("the client was closed") from None
            raise
        except BaseException:
            self._change(FAILED)
            raise
        if self.state is CLOSED:
            await connection.close()
            raise ClientClosedError("the client was closed")
        self._change(CONNECTED)
        self._connects += 1
        self._connection = connection
        connection.on_lost = self._lost
        connection.waits = self.waits
        if self._find_other is not None and len(self.address.members) > 1:
            find = partial(self._find_other, self.address, self.options, self.session_id, silent=connection.address)
            watch = watch_silence(connection, self.clock, find)
            self._watching = asyncio.create_task(watch, name=f"watch the silence of {connection.address}")
        return connection

    def _lost(self, error: MillraceError) -> None:
        if self._watching is not None:
            self._watching.cancel()
        was_closed = self.state is CLOSED
        self._change(LOST)
        if not was_closed:
            logger.debug("connection lost address=%s error=%s", self.address, error)


def _may_repeat(error: MillraceError) -> bool:
    """Return whether to resend an idempotent request after this error."""
    return error.retriable or isinstance(error, OutcomeUnknownError)


def _retrieve(task: "asyncio.Task[Connection]") -> None:
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not report it: all waiters have received it


def waits_of(address: Addresses, options: ClientOptions, *, clock: Clock = SYSTEM_CLOCK) -> Waits:
    """Return the waits of the channels of one client; `on_waiting` of its options is called for them."""
    return Waits(str(address), monotonic_s=clock.monotonic_s, on_change=options.on_waiting)
