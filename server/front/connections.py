"""Who is connected: clients, and strangers who have not finished their HELLO.

The two have shares of their own, so that strangers cannot use up the connections of clients. Of strangers, a number in
all and a number of each address may take the time that a handshake may take. Those above, the newest, are on
*probation*: one of them is shed for each that comes after, the one that has been there longest first. A client sends
its HELLO at once, and so gets in however many are there that never do.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any, Final, Protocol, cast

from millrace.server.errors import LeaseLapsedError, ServerError, ShuttingDownError, ThrottledError
from millrace.wire.framing import encode

from .counters import FrontCounters
from .options import FrontOptions
from .replies import error_reply

SHED_FRAME: Final = encode(error_reply(ThrottledError("the server takes no more connections now", retry_after_ms=1000)))
STOPPING: Final = ShuttingDownError("the server is shutting down", retry_after_ms=1000)
LAPSED: Final = LeaseLapsedError(
    "the server could not renew its lease in the object store, so another one may have taken over: try the addresses of"
    " the others, and this one again",
    retry_after_ms=1000,
)
STRANGERS_SHARE_OF_DESCRIPTORS: Final = 4
"""At most one in so many of the descriptors that connections may have is a stranger's."""


class Shedable(Protocol):
    """A connection that can be ended in favour of others."""

    def shed(self) -> None:
        """Say that there are too many, and end."""
        ...


class Connections:
    """All connections of a server, with the bounds of their numbers.

    Attributes:
        heard_last: the connection from which bytes came last; None if that is gone.
    """

    def __init__(self, options: FrontOptions, *, counters: FrontCounters) -> None:
        self._options = options
        self._counters = counters
        self._clients_count_max = options.connections_count_max
        self._strangers_count_max = options.strangers_count_max
        self._per_address_count_max = options.strangers_per_address_count_max
        # Those whose sockets are not theirs yet.
        self._expected: set[Any] = set()
        self._clients: set[Any] = set()
        # Strangers who may take their time, with their addresses; and how many there are of each.
        self._strangers: dict[Any, str] = {}
        self._addresses: Counter[str] = Counter()
        # The oldest first.
        self._probation: OrderedDict[Any, None] = OrderedDict()
        self.heard_last: Any = None
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._expected) + len(self._clients) + self.strangers_count

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._expected, *self._clients, *self._strangers, *self._probation])

    @property
    def strangers_count(self) -> int:
        """How many have not finished their HELLO."""
        return len(self._strangers) + len(self._probation)

    @property
    def count_max(self) -> int:
        """The most connections that there can be."""
        return self._clients_count_max + self._strangers_count_max + self._per_address_count_max

    async def emptied(self) -> None:
        """Return when there are none. Safe to cancel."""
        await self._emptied.wait()

    def bound(self, count_max: int) -> None:
        """Stay below a number of connections, whatever the options say: there are no descriptors for more."""
        options = self._options
        strangers_max = max(2, count_max // STRANGERS_SHARE_OF_DESCRIPTORS)
        self._per_address_count_max = min(options.strangers_per_address_count_max, strangers_max // 2)
        self._strangers_count_max = min(options.strangers_count_max, strangers_max - self._per_address_count_max)
        rest = count_max - self._strangers_count_max - self._per_address_count_max
        self._clients_count_max = max(1, min(options.connections_count_max, rest))

    def expect(self, connection: Shedable) -> None:
        """Take in a connection that is about to get its socket; `arrived`, or `left`, comes next."""
        self._expected.add(connection)
        self._emptied.clear()

    def arrived(self, connection: Shedable, address: str) -> bool:
        """Take a connection that was expected for a stranger; return False if there is no place."""
        self._expected.discard(connection)
        if len(self._clients) >= self._clients_count_max:
            return False
        if len(self._strangers) < self._strangers_count_max and self._addresses[address] < self._per_address_count_max:
            self._strangers[connection] = address
            self._addresses[address] += 1
        else:
            self._probation[connection] = None
            if len(self._probation) > self._per_address_count_max:
                oldest, _ = self._probation.popitem(last=False)
                self._counters.strangers_shed_total += 1
                oldest.shed()
        return True

    def greeted(self, connection: Shedable) -> bool:
        """Take a stranger who has finished the HELLO for a client; return False if there is no place."""
        if len(self._clients) >= self._clients_count_max:
            return False
        self._forget_stranger(connection)
        self._clients.add(connection)
        return True

    def left(self, connection: Shedable) -> None:
        """Forget a connection; one that is not here is fine."""
        self._expected.discard(connection)
        self._forget_stranger(connection)
        self._clients.discard(connection)
        if self.heard_last is connection:
            self.heard_last = None
        if not len(self):
            self._emptied.set()

    def _forget_stranger(self, connection: Shedable) -> None:
        self._probation.pop(connection, None)
        address = self._strangers.pop(connection, None)
        if address is not None:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]


class Refusal(asyncio.Protocol):
    """A connection to a server that serves nobody now.

    Args:
        reason: why, for the client.
    """

    def __init__(self, reason: ServerError, *, counters: FrontCounters) -> None:
        self._reason = reason
        self._counters = counters

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say why, and close."""
        self._counters.refused_total += 1
        # Not an isinstance check: the transports of uvloop do not inherit from those of asyncio.
        refused = cast("asyncio.Transport", transport)
        refused.write(encode(error_reply(self._reason)))
        refused.close()
