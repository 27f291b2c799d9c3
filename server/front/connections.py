"""The connections of a server: clients, and unauthenticated connections, whose HELLO is not finished.

Both have bounds of their own, so unauthenticated connections cannot use up the connections of clients. Addresses share
each bound (`shares`): one address gets at most half, and an address without connections finds a place.

An unauthenticated connection with a place may use the whole handshake timeout. The others are on *probation*: if there
are too many of them, the server sheds the connection that has waited longest, of the address with the most. A client
sends its HELLO at once, so it gets in, even from the address of a flood. Connections whose token was wrong wait for
their rejection; they are shed before all others.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Final, Protocol, cast

from millrace.server.errors import LeaseLapsedError, ServerError, ShuttingDownError, ThrottledError
from millrace.server.host.proxy_protocol import TrustedProxies
from millrace.server.shares import Shares
from millrace.wire.framing import encode

from .counters import FrontCounters
from .options import FrontOptions
from .replies import error_reply

SHED_FRAME: Final = encode(
    error_reply(ThrottledError("the server has reached its connection limit", retry_after_ms=1000))
)
STOPPING: Final = ShuttingDownError("the server is shutting down", retry_after_ms=1000)
LAPSED: Final = LeaseLapsedError(
    "the server could not renew its lease in the object store, so another server may own the data: try the addresses of"
    " the others, and this one again",
    retry_after_ms=1000,
)
UNAUTHENTICATED_SHARE_OF_DESCRIPTORS: Final = 4
"""Unauthenticated connections get at most one in so many of the descriptors of connections."""


class Shedable(Protocol):
    """A connection that can be ended in favour of others."""

    def shed(self) -> None:
        """Report that there are too many connections, and close."""
        ...


class Connections:
    """All connections of a server, with limits of their numbers.

    Attributes:
        proxies: the proxies that report the addresses of their clients.
        heard_last: the connection that sent bytes last; None if it is gone.
    """

    def __init__(self, options: FrontOptions, *, counters: FrontCounters) -> None:
        self._options = options
        self._counters = counters
        self._per_address_count_max = options.unauthenticated_connections_per_address_count_max
        # Connections that do not have their sockets yet.
        self._expected: set[Any] = set()
        # The address of each client, and of each unauthenticated connection that has a place.
        self._clients: dict[Any, str] = {}
        self._client_shares = Shares[str](options.connections_count_max)
        self._unauthenticated: dict[Any, str] = {}
        self._unauthenticated_shares = Shares[str](options.unauthenticated_connections_count_max)
        self._probation = _Probation()
        self.proxies = TrustedProxies(options.trusted_proxies)
        self.heard_last: Any = None
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._expected) + len(self._clients) + self.unauthenticated_count

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._expected, *self._clients, *self._unauthenticated, *self._probation])

    @property
    def unauthenticated_count(self) -> int:
        """The number of connections without a finished HELLO."""
        return len(self._unauthenticated) + len(self._probation)

    @property
    def count_max(self) -> int:
        """The most connections that there can be."""
        places_count = self._client_shares.places_count + self._unauthenticated_shares.places_count
        return places_count + self._per_address_count_max

    async def emptied(self) -> None:
        """Return when no connection is left. Safe to cancel."""
        await self._emptied.wait()

    def bound(self, count_max: int) -> None:
        """Limit the number of connections below the options: the process lacks descriptors for more."""
        options = self._options
        places_max = max(2, count_max // UNAUTHENTICATED_SHARE_OF_DESCRIPTORS)
        self._per_address_count_max = min(options.unauthenticated_connections_per_address_count_max, places_max // 2)
        rest = places_max - self._per_address_count_max
        self._unauthenticated_shares.places_count = min(options.unauthenticated_connections_count_max, rest)
        rest = count_max - self._unauthenticated_shares.places_count - self._per_address_count_max
        self._client_shares.places_count = max(1, min(options.connections_count_max, rest))

    def expect(self, connection: Shedable) -> None:
        """Add a connection that is about to get its socket; `arrived`, or `left`, is called next."""
        self._expected.add(connection)
        self._emptied.clear()

    def arrived(self, connection: Shedable, address: str) -> bool:
        """Add an unauthenticated connection, or change the address for which it counts.

        Returns:
            False if the address has no place for a client; the connection is not added then.
        """
        self._expected.discard(connection)
        self._forget_unauthenticated(connection)
        if not self._client_shares.has_room(address):
            return False
        shares = self._unauthenticated_shares
        if shares.has_room(address) and shares.count_of(address) < self._per_address_count_max:
            self._unauthenticated[connection] = address
            shares.take(address)
        else:
            self._probation.add(connection, address)
            self._shed_probation()
        return True

    def refused(self, connection: Shedable) -> None:
        """Shed a connection before all others from now on: its token was wrong, and it only waits for the rejection."""
        self._forget_unauthenticated(connection)
        self._probation.add_refused(connection)
        self._shed_probation()

    def greeted(self, connection: Shedable, address: str) -> bool:
        """Move a connection that has finished its HELLO to the clients; return False if it gets no place."""
        assert connection not in self._clients, "a connection finishes its HELLO once"
        if not self._client_shares.has_room(address):
            return False
        self._forget_unauthenticated(connection)
        self._clients[connection] = address
        self._client_shares.take(address)
        return True

    def left(self, connection: Shedable) -> None:
        """Forget a connection; one that is not here is fine."""
        self._expected.discard(connection)
        self._forget_unauthenticated(connection)
        address = self._clients.pop(connection, None)
        if address is not None:
            self._client_shares.release(address)
        if self.heard_last is connection:
            self.heard_last = None
        if not len(self):
            self._emptied.set()

    def _shed_probation(self) -> None:
        if len(self._probation) > self._per_address_count_max:
            self._counters.unauthenticated_connections_shed_total += 1
            self._probation.pop().shed()

    def _forget_unauthenticated(self, connection: Shedable) -> None:
        self._probation.discard(connection)
        address = self._unauthenticated.pop(connection, None)
        if address is not None:
            self._unauthenticated_shares.release(address)


class _Probation:
    """Unauthenticated connections without a place, in the order in which they are shed."""

    def __init__(self) -> None:
        self._addresses: dict[Shedable, str] = {}
        # By address, the connection that has waited longest first.
        self._waiting: dict[str, dict[Shedable, None]] = {}
        self._refused: dict[Shedable, None] = {}

    def __len__(self) -> int:
        return len(self._addresses) + len(self._refused)

    def __iter__(self) -> Iterator[Shedable]:
        return iter([*self._addresses, *self._refused])

    def add(self, connection: Shedable, address: str) -> None:
        self._addresses[connection] = address
        self._waiting.setdefault(address, {})[connection] = None

    def add_refused(self, connection: Shedable) -> None:
        self._refused[connection] = None

    def discard(self, connection: Shedable) -> None:
        self._refused.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            del self._waiting[address][connection]
            if not self._waiting[address]:
                del self._waiting[address]

    def pop(self) -> Shedable:
        """Remove and return the connection that is shed next."""
        of_address = self._refused or max(self._waiting.values(), key=len)
        connection = next(iter(of_address))
        self.discard(connection)
        return connection


class RejectedConnection(asyncio.Protocol):
    """A connection to a server that serves no clients now.

    Args:
        reason: why, for the client.
    """

    def __init__(self, reason: ServerError, *, counters: FrontCounters) -> None:
        self._reason = reason
        self._counters = counters

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the reason, and close."""
        self._counters.refused_total += 1
        # Not an isinstance check: the transports of uvloop do not inherit from those of asyncio.
        refused = cast("asyncio.Transport", transport)
        refused.write(encode(error_reply(self._reason)))
        refused.close()
