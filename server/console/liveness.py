"""Whether the event loop of the server still takes its turns, asked from the thread of the console."""

import asyncio
from concurrent.futures import Future
from typing import Final

LIVE_S: Final = 5.0
"""A loop that has not answered for so long is stuck; nothing that it does takes nearly as long."""


async def loop_answers(loop: asyncio.AbstractEventLoop, *, within_s: float = LIVE_S) -> bool:
    """Return whether a loop, which runs in another thread, runs what it is given. Cancelling is safe."""
    answered: Future[None] = Future()
    try:
        loop.call_soon_threadsafe(answered.set_result, None)
    except RuntimeError:  # it is closed
        return False
    done, _ = await asyncio.wait([asyncio.wrap_future(answered)], timeout=within_s)
    return bool(done)
