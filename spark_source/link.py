"""A client for callers without an event loop: Spark calls plain functions in its processes.

The loop of a link runs only during a call, so there is no thread to fork or to stop. Between calls its connections are
silent; if they were silent for long, the server may have closed them, and the next call gets a new client.

A process of Spark runs tasks and commits, of the source and of the sink, one after the other. `borrowed` lends a link
to one of them at a time: so it ends an operation, for example a transaction, with the client with which it began. A
returned link waits for the next caller, with its connections and with the blocks in which ranges ended; micro-batches
follow each other in the same processes. A link whose use has failed is closed.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from millrace.client.client import Client, connect
from millrace.client.errors import AuthenticationError, ServerUnreachableError
from millrace.client.event_loop import new_event_loop
from millrace.client.options import ClientOptions
from millrace.client.read.ranges import KeptBlocks
from millrace.client.transport.clock import SYSTEM_CLOCK, Clock
from millrace.model.errors import MillraceError

from .errors import OptionError

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 30.0
SILENT_S_MAX: Final = 5.0
"""Below the keepalive of silent connections, which a stopped loop cannot answer."""
WAITING_COUNT_MAX: Final = 4
"""The most waiting links in a process, which usually runs one task at a time."""
KEPT_BLOCKS_SIZE_BYTES_MAX: Final = 64 << 20


class ServerChoice(Protocol):
    """The options of the server connection."""

    @property
    def address(self) -> str:
        """Host and port."""

    @property
    def token(self) -> str:
        """Empty for none."""

    @property
    def tls(self) -> bool:
        """Whether to use it, with the certificates of the system."""

    @property
    def outage_timeout_s(self) -> float:
        """How long a running query waits, each time, for an unreachable server."""


class Link:
    """A client of one server. Used by one caller at a time; connects on first use; cannot be pickled.

    Args:
        request_timeout_s: of each request, with all reconnects. Reads wait as long as the options allow in any case.

    Attributes:
        kept: blocks in which ranges ended. They belong to the client, and are dropped with it.
    """

    def __init__(
        self, server: ServerChoice, *, request_timeout_s: float = REQUEST_TIMEOUT_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._server = server
        self._request_timeout_s = request_timeout_s
        self._clock = clock
        self._runner: asyncio.Runner | None = None
        self._client: Client | None = None
        self._had_client = False
        self._used_s = 0.0
        self.kept = KeptBlocks(size_bytes_max=KEPT_BLOCKS_SIZE_BYTES_MAX)

    def check(self) -> None:
        """Connect in one attempt, unless there was a client before: a running query waits out an outage.

        Raises:
            OptionError: no server answers at the address, or it rejects the token.
        """
        if not self._had_client:
            self.turn(self._connect())

    def client(self) -> Client:
        """Return the client, a new one if the last was silent for too long. What began with one keeps it."""
        return self.turn(self._current_client())

    def turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until some work is done, and return its result."""
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=new_event_loop)
        try:
            return self._runner.run(work)
        finally:
            self._used_s = self._clock.monotonic_s()

    def close(self) -> None:
        """Close the connections and the loop; the next call opens new ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                runner.run(self._disconnect())
            finally:
                runner.close()

    async def _connect(self) -> None:
        client = self._new_client()
        try:
            self._client = await client
        except MillraceError as error:
            await client.close()
            if isinstance(error, AuthenticationError):
                raise OptionError("token", str(error)) from error
            place = "" if isinstance(error, ServerUnreachableError) else f"{self._server.address}: "
            raise OptionError("address", f"{place}{error}") from error
        self._had_client = True

    async def _current_client(self) -> Client:
        if self._client is not None and self._clock.monotonic_s() - self._used_s > SILENT_S_MAX:
            await self._disconnect()
        if self._client is None:
            self._client, self._had_client = self._new_client(), True
        return self._client

    def _new_client(self) -> Client:
        return connect(
            self._server.address,
            token=self._server.token,  # the same on every executor, whatever is in its environment
            tls=self._server.tls,
            options=ClientOptions(
                client_name="millrace-spark",
                request_timeout_s=self._request_timeout_s,
                outage_timeout_s=self._server.outage_timeout_s,
            ),
        )

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        self.kept.clear()  # the next one may be of another server at this address
        if client is not None:
            await client.close()


class _Place(NamedTuple):
    """The owner of a link, and the parameters of its client."""

    process: int
    address: str
    token: str
    tls: bool
    outage_timeout_s: float


class _IdleLinks:
    """The idle links, most recently used last.

    After a fork those of the parent are left alone: their sockets and loops belong to the parent, which still uses
    them, so they are neither used here nor closed nor finalized.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: list[tuple[_Place, Link]] = []

    def take(self, place: _Place) -> Link | None:
        """Return the most recently used link of a place; None if there is none."""
        with self._lock:
            for number in reversed(range(len(self._links))):
                if self._links[number][0] == place:
                    return self._links.pop(number)[1]
        return None

    def leave(self, place: _Place, link: Link) -> None:
        """Keep a link for the next caller; above the limit, close the least recently used one."""
        with self._lock:
            self._links.append((place, link))
            mine = self._mine()
            surplus = mine[0] if len(mine) > WAITING_COUNT_MAX else None
            if surplus is not None:
                self._links.remove(surplus)
        if surplus is not None:
            surplus[1].close()

    def close(self) -> None:
        """Close the links of this process."""
        with self._lock:
            mine = self._mine()
            self._links = [each for each in self._links if each not in mine]
        for _, link in mine:
            link.close()

    def _mine(self) -> list[tuple[_Place, Link]]:
        return [each for each in self._links if each[0].process == os.getpid()]


_waiting: Final = _IdleLinks()


@contextmanager
def borrowed(server: ServerChoice) -> Iterator[Link]:
    """Lend a link whose requests wait as long as the options allow, and keep it for the next caller."""
    place = _Place(os.getpid(), server.address, server.token, server.tls, server.outage_timeout_s)
    link = _waiting.take(place) or Link(server, request_timeout_s=server.outage_timeout_s)
    try:
        yield link
    except BaseException:
        link.close()
        raise
    finally:
        _waiting.leave(place, link)


def close_waiting_links() -> None:
    """Close the idle links of this process."""
    _waiting.close()


atexit.register(close_waiting_links)
