"""Checks from the thread of the console whether the event loop of the server still runs."""

import asyncio
from concurrent.futures import Future
from typing import Final

LIVE_S: Final = 5.0
"""A loop that has not answered for this long is stuck; none of its steps takes nearly as long."""


async def loop_answers(loop: asyncio.AbstractEventLoop, *, within_s: float = LIVE_S) -> bool:
    """Return whether a loop of another thread runs a callback in time. Cancelling is safe."""
    answered: Future[None] = Future()
    try:
        loop.call_soon_threadsafe(answered.set_result, None)
    except RuntimeError:  # it is closed
        return False
    done, _ = await asyncio.wait([asyncio.wrap_future(answered)], timeout=within_s)
    return bool(done)
