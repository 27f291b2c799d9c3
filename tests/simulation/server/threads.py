"""Threads as greenlets: the event loop resumes one at a time, and what they block on costs no time of the machine.

A thread runs until it waits, in a step of the loop that belongs to its process: if that is frozen, the thread stays
where it is. Locks are never contended, since no thread is interrupted between two waits.
"""

import contextvars
import threading
from collections.abc import Callable
from contextvars import Context
from itertools import count
from random import Random
from types import TracebackType
from typing import Final, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from millrace.server.host.wakeup import Wakeup

SWITCH_S_MAX: Final = 0.002
"""The longest time until a thread that may run has its turn. Most wait much shorter."""
_descriptors: Final = count(1 << 20)
"""Numbers of bells, which are not those of descriptors of the system."""


class Timers(Protocol):
    """The part of an event loop that threads need."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: object, context: Context) -> object:
        """Call a function in a context after a delay."""
        ...

    def make_ready(self, descriptor: int) -> None:
        """Call the reader of a descriptor, if it has one."""
        ...


class GreenThreads:
    """Fills the `Threads` seam for all processes of a loop. Made in the thread of the loop."""

    def __init__(self, loop: Timers, dice: Random) -> None:
        self.loop = loop
        self._dice = dice
        self._hub = getcurrent()
        self._alive: dict[greenlet, None] = {}

    def thread(self, work: Callable[[], None], *, name: str, niceness: int = 0) -> threading.Thread:
        return _Thread(self, work, name=name)

    def bell(self, *, blocking: bool) -> Wakeup:
        return _Bell(self)

    def condition(self) -> threading.Condition:
        return _Condition(self)

    @property
    def in_loop(self) -> bool:
        """Whether the caller is the event loop rather than a thread."""
        return getcurrent() is self._hub

    def start(self, work: Callable[[], None]) -> None:
        """Run a function in a thread of its own, in the context of the caller."""
        waiting = _Waiting(self, greenlet(work, parent=self._hub), contextvars.copy_context())
        waiting.thread.gr_context = waiting.context
        self._alive[waiting.thread] = None
        waiting.resume()

    def wait(self, waiting: "_Waiting") -> None:
        """Return when the calling thread, of which this is, is resumed."""
        assert not self.in_loop, "the event loop must not wait for a thread"
        self._hub.switch()

    def pause(self, duration_s: float) -> None:
        """Hold up the calling thread."""
        waiting = self.current()
        self.loop.call_later(duration_s, waiting.switch, context=waiting.context)
        self.wait(waiting)

    def current(self) -> "_Waiting":
        """Return the calling thread, which is about to wait."""
        return _Waiting(self, getcurrent(), contextvars.copy_context())

    def delay_s(self) -> float:
        """Draw a time until a thread has its turn."""
        return SWITCH_S_MAX * self._dice.random() ** 8

    def switch(self, thread: greenlet) -> None:
        """Let a thread run until it waits again."""
        thread.switch()
        if thread.dead:
            self._alive.pop(thread, None)

    def end(self) -> None:
        """End all threads where they wait."""
        for thread in list(self._alive):
            if thread:  # it has begun
                thread.throw(GreenletExit)
        self._alive.clear()


class _Waiting:
    """A thread that waits."""

    def __init__(self, threads: GreenThreads, thread: greenlet, context: Context) -> None:
        self._threads = threads
        self.thread = thread
        self.context = context

    def resume(self) -> None:
        """Let it run when it has its turn."""
        self._threads.loop.call_later(self._threads.delay_s(), self.switch, context=self.context)

    def switch(self) -> None:
        """Let it run now."""
        if not self.thread.dead:
            self._threads.switch(self.thread)


class _Thread(threading.Thread):
    def __init__(self, threads: GreenThreads, work: Callable[[], None], *, name: str) -> None:
        super().__init__(name=name)
        self._threads = threads
        self._work = work
        self._has_ended = False
        self._joining: list[_Waiting] = []

    def start(self) -> None:
        self._threads.start(self._run_to_end)

    def join(self, timeout: float | None = None) -> None:
        assert timeout is None
        if not self._has_ended:
            self._joining.append(self._threads.current())
            self._threads.wait(self._joining[-1])

    def _run_to_end(self) -> None:
        try:
            self._work()
        finally:
            self._has_ended = True
            for waiting in self._joining:
                waiting.resume()


class _Bell(Wakeup):
    def __init__(self, threads: GreenThreads) -> None:
        self.descriptor = next(_descriptors)
        self._threads = threads
        self._is_rung = False
        self._waiting: _Waiting | None = None

    def ring(self) -> None:
        if self._is_rung:
            return
        self._is_rung = True
        if self._waiting is None:
            self._threads.loop.make_ready(self.descriptor)
        else:
            waiting, self._waiting = self._waiting, None
            waiting.resume()

    def wait(self) -> None:
        if not self._is_rung:
            self._waiting = self._threads.current()
            self._threads.wait(self._waiting)
        self._is_rung = False

    def clear(self) -> None:
        self._is_rung = False

    def close(self) -> None:
        pass


class _Condition(threading.Condition):
    def __init__(self, threads: GreenThreads) -> None:
        super().__init__()
        self._threads = threads
        self._waiting: dict[_Waiting, None] = {}

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        waiting = self._threads.current()
        self._waiting[waiting] = None
        is_notified = True

        def expire() -> None:
            nonlocal is_notified
            if waiting in self._waiting:
                del self._waiting[waiting]
                is_notified = False
                waiting.switch()

        if timeout is not None:
            self._threads.loop.call_later(timeout, expire, context=waiting.context)
        self._threads.wait(waiting)
        return is_notified

    def notify_all(self) -> None:
        notified, self._waiting = self._waiting, {}
        for waiting in notified:
            waiting.resume()
