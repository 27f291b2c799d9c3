"""Writers that are still open when the program ends.

At the end of the interpreter, after the last thread of the program, each open writer whose event loop still runs is
flushed, all of them together within `FLUSH_TIMEOUT_S`: those of the client for threads, whose loop runs in a daemon
thread. Then one log line counts the events that are not known to be stored. Where logging is not configured, Python
prints it to standard error. A writer whose loop has ended, as after `asyncio.run`, can only be counted; if it is
garbage collected before the program ends, it is counted then.

A forked child leaves the writers of its parent alone. A process that `os._exit` or a signal ends runs none of this.
"""

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

from millrace.client.transport.fork_guard import ForkGuard

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_S: Final = 5.0
"""Time limit at exit for the flush of all open writers together."""
STOP_TIMEOUT_S: Final = 1.0
"""Further time limit at exit for each thread of a client."""

# Both are changed by the threads of several loops.
_lock = threading.Lock()
_writers: "WeakSet[UnclosedWriter]" = WeakSet()
_loops: "WeakSet[RunningLoop]" = WeakSet()
_has_finalizer = False


class WriterBacklog(NamedTuple):
    """Events, or bytes of a byte stream, that a writer accepted and that are not acknowledged."""

    events: int = 0
    bytes: int = 0


class UnclosedWriter:
    """A writer that its program may forget to close. Owned by what sends its events.

    Args:
        guard: of its client.
        unstored: returns what is not known to be stored, without that for which a caller has seen an error.
        settle: waits until everything that was taken is stored or lost.
    """

    def __init__(
        self,
        stream: str,
        guard: ForkGuard,
        *,
        unstored: Callable[[], WriterBacklog],
        settle: Callable[[], Awaitable[object]],
    ) -> None:
        self.stream = stream
        self.guard = guard
        self.loop = asyncio.get_running_loop()
        self.unstored = unstored
        self.settle = settle
        self.is_reported = False
        _add_finalizer()
        with _lock:
            _writers.add(self)

    def __del__(self) -> None:
        """Log what is lost with a writer that was never closed, and that nothing can end any more."""
        if self.is_reported or self.guard.forked:
            return
        events, size_bytes = self.unstored()
        if events or size_bytes:
            logger.error(
                "writer was never closed stream=%s unacknowledged_events=%d unacknowledged_bytes=%d",
                self.stream,
                events,
                size_bytes,
            )


class RunningLoop(Protocol):
    """An event loop in a thread of a client."""

    def stop(self, timeout_s: float) -> None:
        """End it; what waits for it, now or later, fails with `ClientClosedError`."""
        ...


def watch_loop(loop: RunningLoop) -> None:
    """Stop a loop when the program ends: what would wait for a daemon thread later than that waits forever."""
    with _lock:
        _loops.add(loop)


def end() -> None:
    """Flush the open writers, log what is not stored, and stop the loops. The program ends after this."""
    with _lock:
        writers = [writer for writer in _writers if not writer.guard.forked]
        loops = list(_loops)
        _writers.clear()
        _loops.clear()
    try:
        _flush(writers)
    finally:  # also after Ctrl-C
        try:
            for loop in loops:
                loop.stop(STOP_TIMEOUT_S)
        finally:
            _report(writers)


def _flush(writers: Iterable[UnclosedWriter]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[UnclosedWriter]] = {}
    for writer in writers:
        if writer.loop.is_running():  # in a daemon thread: all others have ended
            by_loop.setdefault(writer.loop, []).append(writer)
    flushes = [asyncio.run_coroutine_threadsafe(_settle(each), loop) for loop, each in by_loop.items()]
    concurrent.futures.wait(flushes, FLUSH_TIMEOUT_S)


async def _settle(writers: Iterable[UnclosedWriter]) -> None:
    await asyncio.gather(*(writer.settle() for writer in writers), return_exceptions=True)


def _report(writers: Iterable[UnclosedWriter]) -> None:
    events, size_bytes, streams = 0, 0, set()
    for writer in writers:
        unstored, writer.is_reported = writer.unstored(), True
        if any(unstored):
            events += unstored.events
            size_bytes += unstored.bytes
            streams.add(writer.stream)
    if streams:
        logger.error(
            "writes not acknowledged at exit events=%d bytes=%d streams=%s: close each writer before the program ends",
            events,
            size_bytes,
            ",".join(sorted(streams)),
        )


def _add_finalizer() -> None:
    """See that `end` runs in a child of `multiprocessing`, too: one that was forked ends without `atexit`."""
    global _has_finalizer
    if not _has_finalizer:
        _has_finalizer = True
        from multiprocessing.process import parent_process

        if parent_process() is not None:
            from multiprocessing.util import Finalize

            # Called before the last thread of the child has ended. The child waits for this thread as for the others.
            thread = threading.Thread(target=_end_after_threads, name="millrace at exit", daemon=False)
            Finalize(None, thread.start, exitpriority=0)


def _end_after_threads() -> None:
    kept = {threading.main_thread(), threading.current_thread()}
    while left := [thread for thread in threading.enumerate() if not (thread.daemon or thread in kept)]:
        for thread in left:
            thread.join()
    end()


def _forked() -> None:
    global _lock, _has_finalizer
    _lock, _has_finalizer = threading.Lock(), False


atexit.register(end)
os.register_at_fork(after_in_child=_forked)
