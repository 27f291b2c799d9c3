"""Detects the use of a client in a forked child, or in another event loop.

A client's waits are woken by its own loop. In another loop they would never end, or end in an obscure asyncio error
about tasks and futures.
"""

import asyncio

from millrace.client.errors import WrongLoopError

from .fork_guard import ForkGuard


class ClientGuard(ForkGuard):
    """Checks that a client is used in the process that created it, and in the event loop that used it first."""

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
