"""A way to the server for callers without an event loop: the processes that Spark runs us in call plain functions.

The loop turns only during a call, so there is no thread to fork or to stop. Between calls the connection is silent;
when it was silent for long, it may have been closed by the server, and the next call makes a new one.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import uvloop

from millrace.client.client import Client, connect
from millrace.client.errors import AuthenticationError, ServerUnreachableError
from millrace.client.options import ClientOptions
from millrace.model.errors import MillraceError

from .errors import OptionError
from .options import SourceOptions

T = TypeVar("T")

SILENT_S_MAX: Final = 5.0
"""Below the time after which a silent connection is asked for a sign of life, which a still loop cannot give."""


class Link:
    """A client of one server. Belongs to one thread; made by the first call; not to be pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._runner: asyncio.Runner | None = None
        self._client: Client | None = None
        self._used_s = 0.0

    def call(self, act: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the client, and return its result.

        Raises:
            OptionError: no connection could be made by the first call: names the address or the token.
            MillraceError: what the coroutine raised.
        """
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        try:
            return self._runner.run(self._call(act))
        finally:
            self._used_s = time.monotonic()

    def close(self) -> None:
        """Close the connections and the loop; a later call makes new ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                runner.run(self._disconnect())
            finally:
                runner.close()

    async def _call(self, act: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        if self._client is not None and time.monotonic() - self._used_s > SILENT_S_MAX:
            await self._disconnect()
        first = not self._used_s
        if self._client is None:
            self._client = await open_client(self._options, check=first)
        return await act(self._client)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


async def open_client(options: SourceOptions, *, check: bool) -> Client:
    """Return a client; with `check` it is connected, in one attempt.

    Raises:
        OptionError: nothing answers at the address, or the token is refused.
    """
    client = connect(
        options.address,
        options=ClientOptions(token=options.token, tls=options.tls, client_name="millrace-spark"),
    )
    if check:
        try:
            client = await client
        except ServerUnreachableError as error:
            await client.close()
            raise OptionError("address", str(error)) from error
        except AuthenticationError as error:
            await client.close()
            raise OptionError("token", str(error)) from error
        except MillraceError as error:
            await client.close()
            raise OptionError("address", f"{options.address}: {error}") from error
    return client
