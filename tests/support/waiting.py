"""Waiting in a test for what must come: by a condition, never for a time."""

import asyncio
from collections.abc import Callable
from typing import Final

from millrace.server.app import Server
from millrace.server.wal import Wal

PATIENCE_S: Final = 120.0
"""How long a test waits for what must come. Only a test that hangs waits so long, however busy the machine is."""


async def until(predicate: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Let the loop, threads and other processes run until something is true, where nothing tells that it is."""
    async with asyncio.timeout(within_s):
        while not predicate():  # noqa: ASYNC110  # the one place where tests look again and again
            await asyncio.sleep(0.001)


async def at_once(predicate: Callable[[], object]) -> None:
    """Let the loop run until something is true, and return in the very turn in which it is."""
    async with asyncio.timeout(PATIENCE_S):
        while not predicate():  # noqa: ASYNC110  # an event would be heard of in a later turn
            await asyncio.sleep(0)


async def settled(server: Server) -> None:
    """Wait until the flusher has done all that it does by itself: flush, checkpoint, copy, and recycle the log."""
    opened = server.opened
    flusher, state, log = opened.flusher, opened.container.state, opened.container.log
    assert isinstance(log, Wal)

    def is_idle() -> bool:
        return not (
            state.unflushed
            or state.changed_count
            or state.garbage.waits_for_checkpoint
            or state.garbage.waits_for_copy
            or flusher._copying is not None
            or flusher._is_checkpoint_due()
            or flusher._is_copy_due()
            or log._pool._released
        )

    await until(is_idle)
