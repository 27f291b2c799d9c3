"""A channel to one server: connects when it is needed, and again after the connection was lost.

A request that may be repeated is sent again, with growing waits, until its time limit; one that may not fails with
`OutcomeUnknownError` once it was sent and its connection died. An append without a writer is never sent twice, except
under a condition that only the first can meet.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from millrace.client.errors import (
    ClientClosedError,
    ConditionFailedError,
    ConnectionLostError,
    ErrorFacts,
    MillraceError,
    OutcomeUnknownError,
    PipelineBrokenError,
    RequestError,
    RequestTimeoutError,
)
from millrace.client.options import Address, ClientOptions
from millrace.wire.checksum import Buffer
from millrace.wire.frames import Message, Read
from millrace.wire.limits import APPEND_SIZE_BYTES_MAX

from .connection import Chunk, Connection, ConnectionStatistics, open_connection
from .fork_guard import ForkGuard

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatistics:
    """What a channel has done."""

    connects: int
    retries: int
    connection: ConnectionStatistics | None


class Channel:
    """At most one open connection to one address. Belongs to one event loop."""

    def __init__(self, address: Address, options: ClientOptions, guard: ForkGuard) -> None:
        self.address = address
        self.options = options
        self.guard = guard
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._closed = False
        self._connects = 0
        self._retries = 0

    @property
    def live(self) -> Connection | None:
        """The open connection, if there is one now."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    @property
    def append_size_max(self) -> int:
        """The largest payload of one append, as the server said last; as the protocol says before the first time."""
        return APPEND_SIZE_BYTES_MAX if self._connection is None else self._connection.append_size_max

    def check(self) -> None:
        """Raise if the channel cannot be used: closed, or in a forked child."""
        self.guard.check()
        if self._closed:
            raise ClientClosedError("the client was closed")

    def statistics(self) -> ChannelStatistics:
        """Return what the channel has done."""
        connection = self._connection
        return ChannelStatistics(
            connects=self._connects,
            retries=self._retries,
            connection=connection.statistics() if connection is not None else None,
        )

    async def connection(self) -> Connection:
        """Return the open connection, after one attempt to make it if there is none. Cancelling is safe.

        Raises:
            ServerUnreachableError: the attempt failed.
            RequestError: the server refused the handshake.
        """
        self.check()
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name=f"connect to {self.address}")
            self._connecting.add_done_callback(self._connected)
        # Shielded: others wait for the same attempt.
        return await asyncio.shield(self._connecting)

    async def connection_by(self, deadline_s: float) -> Connection:
        """Return the open connection, trying again until `deadline_s` on the loop's clock. Cancelling is safe.

        Raises:
            ServerUnreachableError: no attempt succeeded.
            RequestError: the server refused the handshake for good.
        """
        attempt = 0
        while True:
            try:
                return await self.connection()
            except MillraceError as error:
                attempt += 1
                await self.wait_before_retry(attempt, error, deadline_s)

    async def request(
        self,
        message: Message,
        reply: type[M],
        *,
        repeatable: bool = True,
        timeout_s: float | None = None,
    ) -> M:
        """Send a request and return its reply. Cancelling forgets the reply; the request may still be carried out.

        Args:
            repeatable: whether carrying it out twice is the same as once.
            timeout_s: instead of `request_timeout_s` of the options.

        Raises:
            RequestError: the server's answer.
            OutcomeUnknownError: not repeatable, sent, and the connection died before the answer.
            RequestTimeoutError, ConnectionLostError: no answer within the time limit.
        """
        return await self._repeat(
            lambda connection: connection.request(message, reply), repeatable=repeatable, timeout_s=timeout_s
        )

    async def read(self, message: Read) -> Chunk:
        """Read; `wait_ms` is granted beside the time limit of requests. Cancelling is safe. Raises like `request`."""
        timeout_s = self.options.request_timeout_s + message.wait_ms / 1000
        return await self._repeat(lambda connection: connection.read(message), repeatable=True, timeout_s=timeout_s)

    async def append(self, payload: Buffer, *, segment_id: int, expected_offset: int = -1) -> int:
        """Append without a writer and return the offset. Cancelling forgets the outcome; it may still be stored.

        Raises:
            RequestError: the server's answer; nothing was stored.
            OutcomeUnknownError: sent, and the connection died before the answer.
            ConnectionLostError: it could not be sent.
        """
        self.check()
        deadline_s = asyncio.get_running_loop().time() + self.options.request_timeout_s
        lost: OutcomeUnknownError | None = None
        while True:
            connection = self.live or await self.connection_by(deadline_s)
            if not connection.has_room(len(payload)):
                await connection.wait_for_room(len(payload))
                if not connection.is_open:
                    continue
            try:
                return await connection.append(payload, segment_id=segment_id, expected_offset=expected_offset)
            except OutcomeUnknownError as error:
                if error.code is not None or expected_offset < 0:
                    raise
                # Two appends cannot both meet the condition, so a second attempt stores nothing twice.
                lost = error
            except PipelineBrokenError:
                # An append of another task failed in front of this one. Its own condition keeps it in order.
                if expected_offset < 0:
                    raise
            except ConditionFailedError:
                if lost is not None:
                    raise lost from None  # perhaps it was our own first attempt that moved the end
                raise

    async def wait_before_retry(self, attempt: int, error: MillraceError, deadline_s: float) -> None:
        """Wait as long as the rule of the options says, or raise `error` if it is final or the deadline comes first."""
        if not error.retriable:
            raise error
        asked_s = error.retry_after_s if isinstance(error, RequestError) else 0.0
        wait_s = self.options.backoff.wait_s(attempt, chance=random.random(), retry_after_s=asked_s)
        if asyncio.get_running_loop().time() + wait_s >= deadline_s:
            raise error
        self._retries += 1
        logger.debug("retry address=%s attempt=%d wait_s=%.3f error=%s", self.address, attempt, wait_s, error)
        await asyncio.sleep(wait_s)
        self.check()

    async def close(self) -> None:
        """Close the connection; what waits fails with `ClientClosedError`. In a forked child nothing is touched."""
        if self._closed:
            return
        self._closed = True
        if self.guard.forked:
            return
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            await self._connection.close()

    async def _repeat(
        self, call: Callable[[Connection], Awaitable[R]], *, repeatable: bool, timeout_s: float | None
    ) -> R:
        self.check()
        limit_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        deadline_s = asyncio.get_running_loop().time() + limit_s
        attempt = 0
        while True:
            sent = False
            try:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self.connection()
                    sent = True
                    return await call(connection)
            except TimeoutError as error:
                if isinstance(error, MillraceError):
                    raise
                raise RequestTimeoutError(f"no answer from {self.address} within {limit_s:g} s") from None
            except MillraceError as error:
                if sent and not repeatable and isinstance(error, ConnectionLostError):
                    facts = ErrorFacts(message="the connection was lost before the answer")
                    raise OutcomeUnknownError(facts) from error
                attempt += 1
                await self.wait_before_retry(attempt, error, deadline_s)

    async def _connect(self) -> Connection:
        connection = await open_connection(self.address, self.options)
        if self._closed:
            await connection.close()
            raise ClientClosedError("the client was closed")
        self._connects += 1
        self._connection = connection
        return connection

    def _connected(self, task: "asyncio.Task[Connection]") -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # retrieved: whoever waited was told
