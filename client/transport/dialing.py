"""Connections to a server that may be at one of several addresses, one of which serves at a time.

A client with several addresses dials them as RFC 8305 does. An address that hangs, such as a stopped process whose
kernel accepts connections, or a machine that drops them, costs a second and not the whole `connect_timeout_s`:

    an address fails                        the next one is dialed at once
    1 s without a completed handshake       the next one is dialed in parallel
    an address failed, and another hangs    the failed one is dialed every 250 ms: its standby may have taken over
    a handshake completes                   that connection wins, all others are closed
    each address failed                     the errors of all, in their order
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from millrace.client.errors import ServerUnreachableError
from millrace.client.options import ClientOptions
from millrace.model.address import Address, Addresses
from millrace.model.errors import RequestError

from .clock import SYSTEM_CLOCK, Clock
from .connection import Connection, open_connection
from .silence import ATTEMPTS_INTERVAL_S, SILENCE_S

logger = logging.getLogger(__name__)


class Dialer:
    """Connects to the address that serves, beginning with the last successful one. Shared by the channels of a client.

    Args:
        connect: opens a connection to one address; raises like `open_connection`.
    """

    def __init__(
        self,
        connect: Callable[[Address, ClientOptions, bytes], Awaitable[Connection]] = open_connection,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._served_last: Address | None = None
        # Why no server was found beside a silent one, the last time.
        self._found_none = ""

    async def dial(self, addresses: Addresses, options: ClientOptions, session_id: bytes) -> Connection:
        """Return a connection to the first address that completes a handshake. Cancelling closes all connections.

        Raises:
            ServerUnreachableError: no address serves; the text has the reason of each.
            RequestError: a server rejected the handshake for good; or for now, and no other serves.
        """
        order = addresses.beginning_with(self._served_last or addresses.members[0])
        connection = await self._race(order, options, session_id)
        if self._served_last not in (None, connection.address):
            logger.info("server found at another address address=%s before=%s", connection.address, self._served_last)
        self._served_last = connection.address
        return connection

    async def find_other(
        self, addresses: Addresses, options: ClientOptions, session_id: bytes, *, silent: Address
    ) -> float | None:
        """Return None if a server serves at another address than the silent one, with which `dial` begins from then on.

        Cancelling closes all connections.

        Returns:
            Otherwise the seconds until the next attempt, at least as requested by a server that rejects for now.
        """
        others = [address for address in addresses.members if address != silent]
        try:
            connection = await self._race(others, options, session_id)
        except (ServerUnreachableError, RequestError) as error:
            if str(error) != self._found_none:  # one line for each change, not for each attempt
                self._found_none = str(error)
                logger.debug("no other server answers silent=%s error=%s", silent, error)
            retry_after_s = error.retry_after_s if isinstance(error, RequestError) else 0.0
            return max(ATTEMPTS_INTERVAL_S, retry_after_s)
        self._found_none = ""
        self._served_last = connection.address
        await connection.close()
        return None

    async def _race(self, order: Sequence[Address], options: ClientOptions, session_id: bytes) -> Connection:
        race = _Race(order, lambda address: self._connect(address, options, session_id), self._clock)
        return await race.run()


class _Race:
    """Parallel attempts at several addresses; the first to complete a handshake wins."""

    def __init__(
        self, order: Sequence[Address], connect: Callable[[Address], Awaitable[Connection]], clock: Clock
    ) -> None:
        self._order = order
        self._connect = connect
        self._clock = clock
        self._failures: dict[Address, ServerUnreachableError | RequestError] = {}
        # An attempt failed, or the race is decided.
        self._progress = asyncio.Event()

    async def run(self) -> Connection:
        """Return the winning connection. Raises like `Dialer.dial`; cancelling closes all connections."""
        attempts: list[asyncio.Task[Connection]] = []
        winner: asyncio.Task[Connection] | None = None
        try:
            for address in self._order:
                attempt = asyncio.create_task(self._dial_until_decided(address), name=f"connect to {address}")
                attempt.add_done_callback(lambda _: self._progress.set())
                attempts.append(attempt)
                with suppress(TimeoutError):
                    async with self._clock.timeout(SILENCE_S):
                        await self._progress.wait()
                self._progress.clear()
                if any(each.done() for each in attempts):
                    break
            decided, _ = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            winner = min(decided, key=lambda attempt: attempt.exception() is not None)
            return winner.result()
        finally:
            for each in attempts:
                if each is not winner:
                    each.cancel()
                    each.add_done_callback(_discard)

    async def _dial_until_decided(self, address: Address) -> Connection:
        """Dial one address until it serves, rejects for good, or each address has failed."""
        while True:
            pause_s = ATTEMPTS_INTERVAL_S
            try:
                return await self._connect(address)
            except ServerUnreachableError as error:
                self._failures[address] = error
            except RequestError as error:
                if not error.retriable:
                    raise
                self._failures[address] = error
                pause_s = max(pause_s, error.retry_after_s)
            if len(self._failures) == len(self._order):
                raise self._failure()
            self._progress.set()
            await self._clock.sleep(pause_s)

    def _failure(self) -> ServerUnreachableError | RequestError:
        """Return the error of a race in which each address failed: the answer of a server, if there was one."""
        failures = [self._failures[address] for address in self._order]
        unreachable = [error for error in failures if isinstance(error, ServerUnreachableError)]
        if len(unreachable) < len(failures):
            return next(error for error in failures if isinstance(error, RequestError))
        if len(failures) == 1:
            return failures[0]
        return ServerUnreachableError(
            ",".join(map(str, self._order)), "; ".join(f"{error.address}: {error.reason}" for error in unreachable)
        )


def _discard(attempt: asyncio.Task[Connection]) -> None:
    """Close the connection of an attempt that completed when the race was decided already."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().abort("another address was faster")
