"""A client for callers without an event loop: the processes that Spark runs us in call plain functions.

The loop turns only during a call, so there is no thread to fork or to stop. Between calls the connection is silent;
when it was silent for long, it may have been closed by the server, and the next call makes a new client, unless it
continues something that belongs to the old one. That connects again by itself.

A process of Spark serves many tasks and batches one after the other. `shared_link` gives it one link to each server, so
that each of them finds the connection of the one before.
"""

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import uvloop

from millrace.client.client import Client, connect
from millrace.client.errors import AuthenticationError, ServerUnreachableError
from millrace.client.options import ClientOptions
from millrace.model.errors import MillraceError

from .errors import OptionError

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 30.0
SILENT_S_MAX: Final = 5.0
"""Below the time after which a silent connection is asked for a sign of life, which a still loop cannot give."""
SHARED_COUNT_MAX: Final = 4
"""Links that a process keeps; another one closes that which was made first."""


class ServerChoice(Protocol):
    """What options say of the server."""

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
        """How long what runs waits, each time, for a server that is away."""


class ClientLink:
    """A client of one server. Belongs to one thread; connects when it is first used; not to be pickled.

    Args:
        request_timeout_s: of each request, with all reconnects.
    """

    def __init__(self, server: ServerChoice, *, request_timeout_s: float) -> None:
        self._server = server
        self._request_timeout_s = request_timeout_s
        self._runner: asyncio.Runner | None = None
        self._client: Client | None = None
        self._used_s: float | None = None

    def check(self) -> None:
        """Connect, if this has never been connected, in one attempt.

        Raises:
            OptionError: nothing answers at the address, or the token is refused.
        """
        if self._used_s is None:
            self._run(self._check())

    def call(self, use: Callable[[Client], Awaitable[T]], *, is_continued: bool = False) -> T:
        """Return what is made of the client.

        Args:
            is_continued: it uses what an earlier call has made, so the client stays, however long it was silent.
        """
        return self._run(self._call(use, is_continued=is_continued))

    def close(self) -> None:
        """Close the connections and the loop; the next call makes new ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                runner.run(self._disconnect())
            finally:
                runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return self._runner.run(work)

    async def _check(self) -> None:
        self._client = await open_client(self._server, check=True, request_timeout_s=self._request_timeout_s)
        self._used_s = time.monotonic()

    async def _call(self, use: Callable[[Client], Awaitable[T]], *, is_continued: bool) -> T:
        is_silent = self._used_s is not None and time.monotonic() - self._used_s > SILENT_S_MAX
        if is_silent and not is_continued:
            await self._disconnect()
        if self._client is None:
            self._client = await open_client(self._server, check=False, request_timeout_s=self._request_timeout_s)
        try:
            return await use(self._client)
        finally:
            self._used_s = time.monotonic()

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


async def open_client(server: ServerChoice, *, check: bool, request_timeout_s: float = REQUEST_TIMEOUT_S) -> Client:
    """Return a client whose reads wait while the server is away; with `check` it is connected first, in one attempt.

    Raises:
        OptionError: nothing answers at the address, or the token is refused.
    """
    client = connect(
        server.address,
        options=ClientOptions(
            token=server.token,
            tls=server.tls,
            client_name="millrace-spark",
            request_timeout_s=request_timeout_s,
            outage_timeout_s=server.outage_timeout_s,
        ),
    )
    if check:
        try:
            client = await client
        except MillraceError as error:
            await client.close()
            if isinstance(error, AuthenticationError):
                raise OptionError("token", str(error)) from error
            place = "" if isinstance(error, ServerUnreachableError) else f"{server.address}: "
            raise OptionError("address", f"{place}{error}") from error
    return client


class _Shared(NamedTuple):
    process: int
    thread: int
    address: str
    token: str
    tls: bool
    outage_timeout_s: float


_shared: dict[_Shared, ClientLink] = {}


def shared_link(server: ServerChoice) -> ClientLink:
    """Return the link of this process and thread to a server, whose requests wait as long as its options say."""
    chosen = _Shared(
        os.getpid(), threading.get_ident(), server.address, server.token, server.tls, server.outage_timeout_s
    )
    link = _shared.get(chosen)
    if link is None:
        # What a parent has made is no use after a fork, and must not be closed either: the connections are its own.
        mine = [each for each in _shared if each[:2] == chosen[:2]]
        if len(mine) >= SHARED_COUNT_MAX:
            _shared.pop(mine[0]).close()
        link = _shared[chosen] = ClientLink(server, request_timeout_s=server.outage_timeout_s)
    return link


def close_shared_links() -> None:
    """Close those of this process and thread."""
    for chosen in [each for each in _shared if each[:2] == (os.getpid(), threading.get_ident())]:
        _shared.pop(chosen).close()


atexit.register(close_shared_links)
