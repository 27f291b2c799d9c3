"""The threads that the log runs beside the event loop, and their conditions.

The server creates them here, so that a simulation can run them one at a time, in a random order, in virtual time. Short
work, by `asyncio.to_thread`, needs no such interface: the event loop already chooses where it runs.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Final, Protocol

from .wakeup import Wakeup


class Threads(Protocol):
    """Creates threads and the conditions that threads wait for."""

    def thread(self, work: Callable[[], None], *, name: str, niceness: int = 0) -> threading.Thread:
        """Return a thread that is not started; where supported, it yields to threads of a lower niceness."""
        ...

    def bell(self, *, blocking: bool) -> Wakeup:
        """Return a bell, see `Wakeup`."""
        ...

    def condition(self) -> threading.Condition:
        """Return a condition with a lock of its own."""
        ...


class SystemThreads:
    """The threads of the process."""

    def thread(self, work: Callable[[], None], *, name: str, niceness: int = 0) -> threading.Thread:
        """Return a daemon thread."""

        def run() -> None:
            if niceness and sys.platform == "linux":
                # Linux has a niceness for each thread.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
            work()

        return threading.Thread(target=run, name=name, daemon=True)

    def bell(self, *, blocking: bool) -> Wakeup:
        """Return a bell of the system."""
        return Wakeup(blocking=blocking)

    def condition(self) -> threading.Condition:
        """Return a condition of the interpreter."""
        return threading.Condition()


SYSTEM_THREADS: Final[Threads] = SystemThreads()
