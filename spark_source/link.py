"""A way to the server for callers without an event loop: the processes that Spark runs us in call plain functions.

The loop turns only during a call, so there is no thread to fork or to stop. Between calls the connection is silent;
when it was silent for long, it may have been closed by the server, and the next call makes a new one.

On the driver, the first call fails at once where no server answers. From then on a call of a query that runs waits
while the server is away, as long as the option `outageTimeout` says. What only prepares a query gives up as any request
does.

A task borrows a link, and leaves it to the next task of its process, with its connections and with the blocks that its
range ended inside of: micro-batches follow each other in the same processes.
"""

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import uvloop

from millrace.client.client import Client
from millrace.client.errors import SegmentNotFoundError, SegmentTruncatedError
from millrace.client.read.ranges import KeptBlocks

from .client_link import REQUEST_TIMEOUT_S, SILENT_S_MAX, open_client
from .options import SourceOptions
from .planning import Planner

T = TypeVar("T")

RUNS_COUNT_MAX: Final = 3
"""Of one plan."""
LINKS_KEPT_COUNT_MAX: Final = 4
"""Of those that wait for the next task of a process, which runs one task at a time."""
KEPT_BLOCKS_SIZE_BYTES_MAX: Final = 64 << 20


class Link:
    """A client of one server. Used by one thread at a time; made by the first call; not to be pickled.

    Args:
        is_running: whether the plans are those of a query that runs, and wait for a server that is away.
    """

    def __init__(self, options: SourceOptions, *, is_running: bool = False) -> None:
        self._options = options
        self._request_timeout_s = options.outage_timeout_s if is_running else REQUEST_TIMEOUT_S
        self._runner: asyncio.Runner | None = None
        self._client: Client | None = None
        self._used_s: float | None = None
        self.kept = KeptBlocks(size_bytes_max=KEPT_BLOCKS_SIZE_BYTES_MAX)

    def call(self, plan: Callable[[Planner], Awaitable[T]]) -> T:
        """Return what a plan returns; run it again where a truncation came between its questions.

        Raises:
            OptionError: no connection could be made by the first call: names the address or the token.
            MillraceError: what the plan raised; what its last run raised where truncations do not end.
        """

        async def run() -> T:
            client = await self.client(check=self._used_s is None)
            planner = Planner(client, self._options)
            for _ in range(RUNS_COUNT_MAX - 1):
                # The next run knows of the truncation.
                with suppress(SegmentTruncatedError, SegmentNotFoundError):
                    return await plan(planner)
            return await plan(planner)

        try:
            return self._running().run(run())
        finally:
            self._used_s = time.monotonic()

    def turn(self, work: Awaitable[T]) -> T:
        """Turn the loop until some work is done, and return what it returns; for each batch of a task."""
        try:
            return self._running().get_loop().run_until_complete(work)
        finally:
            self._used_s = time.monotonic()

    async def client(self, *, check: bool) -> Client:
        """Return the client, a new one if the last was silent for too long.

        Args:
            check: connect it first, in one attempt.

        Raises:
            OptionError: nothing answers at the address, or the token is refused.
        """
        if self._used_s is not None and time.monotonic() - self._used_s > SILENT_S_MAX:
            await self._disconnect()
        if self._client is None:
            self._client = await open_client(self._options, check=check, request_timeout_s=self._request_timeout_s)
        return self._client

    def close(self) -> None:
        """Close the connections and the loop; the next call makes new ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                runner.run(self._disconnect())
            finally:
                runner.close()

    def _running(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return self._runner

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        self.kept.clear()  # the next one may be of another server at this address
        if client is not None:
            await client.close()


class _Waiting:
    """The links of this process that wait for its next task, those used last at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: list[tuple[int, SourceOptions, Link]] = []

    def take(self, options: SourceOptions) -> Link:
        """Return a link to the server of some options: one that was left by a task, or a new one."""
        with self._lock:
            # What was left in the process that this one was forked from is that one's.
            self._links = [each for each in self._links if each[0] == os.getpid()]
            for place in reversed(range(len(self._links))):
                _, others, link = self._links[place]
                if _to_server(others) == _to_server(options):
                    del self._links[place]
                    return link
        return Link(options)

    def leave(self, options: SourceOptions, link: Link) -> None:
        """Keep a link for the next task; of too many, close the one used longest ago."""
        with self._lock:
            self._links.append((os.getpid(), options, link))
            surplus = self._links.pop(0) if len(self._links) > LINKS_KEPT_COUNT_MAX else None
        if surplus is not None:
            surplus[2].close()

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            links, self._links = self._links, []
        for process, _, link in links:
            if process == os.getpid():
                link.close()


_waiting: Final = _Waiting()
atexit.register(_waiting.close)


@contextmanager
def borrowed(options: SourceOptions) -> Iterator[Link]:
    """Lend a link to a task, and keep it for the next one unless the task fails."""
    link = _waiting.take(options)
    try:
        yield link
    except BaseException:
        link.close()
        raise
    _waiting.leave(options, link)


def _to_server(options: SourceOptions) -> tuple[object, ...]:
    """Return those of the options that make a client what it is."""
    return options.address, options.token, options.tls, options.outage_timeout_s
