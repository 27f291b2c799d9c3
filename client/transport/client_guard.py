"""Detects that a client is used where it does not belong: in a forked child, or in another event loop.

What a client waits for is woken by its own loop. In another one a wait would never end, or end in an error of asyncio's
about tasks and futures that the caller has never seen.
"""

import asyncio

from millrace.client.errors import WrongLoopError

from .fork_guard import ForkGuard


class ClientGuard(ForkGuard):
    """Tells whether a client is used in the process that made it, and in the event loop that used it first."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raise if the client cannot be used here.

        Raises:
            ForkedClientError: in a child of the process that made the guard.
            WrongLoopError: no event loop runs in this thread, or another one than at the first check.
        """
        super().check()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongLoopError from None
        if self._loop is not running:
            if self._loop is not None:
                raise WrongLoopError
            self._loop = running
