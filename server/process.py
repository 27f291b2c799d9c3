"""A server that has a process for itself: its signals, its memory, its garbage collector."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from typing import Final

from millrace.server.host.descriptors import raise_descriptor_limit
from millrace.server.host.memory import give_back_memory

from .app import DESCRIPTORS_RESERVED_COUNT, Server

logger = logging.getLogger(__name__)

GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Cyclic collection on the hot path costs a third of the throughput (measured); we make no cycles per frame."""
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""They end a server in good order. SIGHUP comes from a terminal that is closed, or that a connection to has ended."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How long the log thread waits for the interpreter when the loop is busy; the default of 5 ms is many syncs."""


async def start_as_process(server: Server, *, on_standby: Callable[[str], None] = lambda _: None) -> bool:
    """Start a server, and take the process for it alone.

    SIGTERM, SIGINT and SIGHUP end the server in good order while it stands by, and once it serves, which it logs. In
    the rest of a start they end the process at once, as a crash would: its threads work on the folder, which is locked
    until they have ended. (A server that has stood by is stopped right after its start.)

    Args:
        on_standby: called with who serves, for people, while this server stands by.

    Returns:
        Whether the server serves; False if a signal has ended it while it stood by.

    Raises:
        ServerError: as `Server.start`, or as `Server.wait_for_end` where it stood by.
    """

    def stands_by(owner: str) -> None:
        _handle_signals(server)
        on_standby(owner)

    # Not as the event loop takes it, which would cancel the start.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    starting = asyncio.create_task(server.start(on_standby=stands_by), name="start")
    ending = asyncio.create_task(server.ended.wait(), name="end of the start")
    try:
        await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
        if server.host.is_standing_by:
            starting.cancel()
        await asyncio.wait([starting])
    finally:
        for task in (starting, ending):
            task.cancel()  # of no effect, unless this was cancelled
        await asyncio.wait([starting, ending])
    if starting.cancelled():
        if server.failure is not None:
            raise server.failure
        logger.info("ended by a signal while it stood by")
        return False
    await starting
    _own_process(server)
    return True


def _own_process(server: Server) -> None:
    _handle_signals(server)
    server.connections.bound(raise_descriptor_limit() - DESCRIPTORS_RESERVED_COUNT)
    server.tasks.start(give_back_memory(server.clock), name="memory")
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    folder = server.options.data_folder
    logger.info("serving address=%s console=%s data_folder=%s", server.address, server.console_address, folder)


def _handle_signals(server: Server) -> None:
    """End by a signal, unless the caller ignores it, as `nohup` ignores SIGHUP."""

    def end(number: signal.Signals) -> None:
        logger.info("ending signal=%s", number.name)
        server.ended.set()

    loop = asyncio.get_running_loop()
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, end, number)
