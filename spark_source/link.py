"""A way to the server for callers without an event loop: the processes that Spark runs us in call plain functions.

The loop turns only during a call, so there is no thread to fork or to stop. Between calls the connection is silent;
when it was silent for long, it may have been closed by the server, and the next call makes a new one.

The first call fails at once where no server answers. From then on a call of a query that runs waits while the server is
away, as long as the option `outageTimeout` says. What only prepares a query gives up as any request does.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import uvloop

from millrace.client.client import Client, connect
from millrace.client.errors import (
    AuthenticationError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    ServerUnreachableError,
)
from millrace.client.options import ClientOptions
from millrace.model.errors import MillraceError

from .errors import OptionError
from .options import SourceOptions
from .planning import Planner

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 30.0
RUNS_COUNT_MAX: Final = 3
"""Of one plan."""
SILENT_S_MAX: Final = 5.0
"""Below the time after which a silent connection is asked for a sign of life, which a still loop cannot give."""


class Link:
    """A client of one server, for plans. Belongs to one thread; made by the first call; not to be pickled.

    Args:
        is_running: whether the plans are those of a query that runs, and wait for a server that is away.
    """

    def __init__(self, options: SourceOptions, *, is_running: bool = False) -> None:
        self._options = options
        self._request_timeout_s = options.outage_timeout_s if is_running else REQUEST_TIMEOUT_S
        self._runner: asyncio.Runner | None = None
        self._client: Client | None = None
        self._used_s: float | None = None

    def call(self, plan: Callable[[Planner], Awaitable[T]]) -> T:
        """Return what a plan returns; run it again where a truncation came between its questions.

        Raises:
            OptionError: no connection could be made by the first call: names the address or the token.
            MillraceError: what the plan raised; what its last run raised where truncations do not end.
        """
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        try:
            return self._runner.run(self._call(plan))
        finally:
            self._used_s = time.monotonic()

    def close(self) -> None:
        """Close the connections and the loop; the next call makes new ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                runner.run(self._disconnect())
            finally:
                runner.close()

    async def _call(self, plan: Callable[[Planner], Awaitable[T]]) -> T:
        if self._used_s is not None and time.monotonic() - self._used_s > SILENT_S_MAX:
            await self._disconnect()
        if self._client is None:
            self._client = await open_client(
                self._options, check=self._used_s is None, request_timeout_s=self._request_timeout_s
            )
        planner = Planner(self._client, self._options)
        for _ in range(RUNS_COUNT_MAX - 1):
            # The next run knows of the truncation.
            with suppress(SegmentTruncatedError, SegmentNotFoundError):
                return await plan(planner)
        return await plan(planner)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


async def open_client(options: SourceOptions, *, check: bool, request_timeout_s: float = REQUEST_TIMEOUT_S) -> Client:
    """Return a client whose reads wait while the server is away; with `check` it is connected first, in one attempt.

    Raises:
        OptionError: nothing answers at the address, or the token is refused.
    """
    client = connect(
        options.address,
        options=ClientOptions(
            token=options.token,
            tls=options.tls,
            client_name="millrace-spark",
            request_timeout_s=request_timeout_s,
            outage_timeout_s=options.outage_timeout_s,
        ),
    )
    if check:
        try:
            client = await client
        except MillraceError as error:
            await client.close()
            if isinstance(error, AuthenticationError):
                raise OptionError("token", str(error)) from error
            place = "" if isinstance(error, ServerUnreachableError) else f"{options.address}: "
            raise OptionError("address", f"{place}{error}") from error
    return client
