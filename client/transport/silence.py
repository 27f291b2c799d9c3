"""Failure detection for a client with several addresses: a server that hangs, or a network that vanished.

Nothing resets such a connection, and the keepalive takes 20 s to notice: a busy server may be silent for that long. But
a client that knows a standby need not decide whether the silent server is dead. It tries the other addresses beside the
open connection, and drops that only when a server answers there: only the owner of the data serves, and a standby
rejects connections. So a server that stalls, or is throttled, costs a few attempts and no connection.

    1 s without a byte, while an answer is awaited     PING
    1 s more without a byte                            dial the other addresses, again and again
    a byte                                             start over
    a server at another address                        drop the silent connection
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from .clock import Clock
from .connection import Connection

logger = logging.getLogger(__name__)

SILENCE_S: Final = 1.0
"""Silence after which a server is pinged, and again as long before other addresses are dialed."""
ATTEMPTS_INTERVAL_S: Final = 0.25
"""Between attempts at the other addresses."""


async def watch_silence(
    connection: Connection, clock: Clock, find_other: Callable[[], Awaitable[float | None]]
) -> None:
    """Drop a connection once its server is silent and another one serves. Cancelling is safe.

    Args:
        find_other: returns None if a server serves at another address, otherwise the seconds until the next attempt.
    """
    while connection.is_open:
        if await _is_silent(connection, clock, asks=False) and await _is_silent(connection, clock, asks=True):
            before = connection.received_bytes
            while connection.is_open and connection.received_bytes == before:
                wait_s = await find_other()
                if wait_s is None:
                    if connection.received_bytes == before:
                        logger.warning("server is silent, another one serves address=%s", connection.address)
                        connection.abort(f"{connection.address} was silent, and another address serves")
                        return
                    break
                await clock.sleep(wait_s)


async def _is_silent(connection: Connection, clock: Clock, *, asks: bool) -> bool:
    """Return whether no byte arrives for a second while an answer is awaited."""
    before = connection.received_bytes
    if asks:
        connection.ping()
    await clock.sleep(SILENCE_S)
    return connection.is_open and connection.awaits_answer and connection.received_bytes == before
