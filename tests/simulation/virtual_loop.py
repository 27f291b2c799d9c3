"""An event loop whose time jumps to the next timer when nothing is left to do, with processes that can be frozen.

A process is whatever was started in a context that names it. While it is frozen, everything that would run in that
context is held back: steps of tasks, timers, answers. A process that is never thawed has crashed. What belongs to no
process, such as a request on its way, happens meanwhile.

Equal schedules run equally: sets of tasks and futures are in the order in which these were made, not in that of their
addresses, and what other loops do in threads happens at once.
"""

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True, eq=False)
class Life:
    """A process, as the loop sees it."""

    is_frozen: bool = False
    held: list[tuple[asyncio.Handle, Callable[[], object]]] = field(default_factory=list)


LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left that could ever happen")
        self.now_s += max(0.0, timeout)
        return []


class _Task(asyncio.Task[Any]):
    _log_destroy_pending = False

    def __init__(self, serial: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._serial = serial
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._serial


class _Future(asyncio.Future[Any]):
    def __init__(self, serial: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop of one schedule.

    Attributes:
        errors: what its callbacks and tasks raised and nobody has taken.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self._serials = count(1)
        super().__init__(self._jumping)
        self.set_debug(False)
        self.errors: list[str] = []
        self.set_exception_handler(lambda _, context: self.errors.append(repr(context.get("exception", context))))
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumping.now_s

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._serials), loop=self)

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **options: Any,
    ) -> asyncio.Task[T]:
        assert asyncio.iscoroutine(coroutine)
        return _Task(next(self._serials), coroutine, loop=loop, **options)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call a function at once."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # whatever it is, it is for who waits
            done.set_exception(error)
        return done

    def start(self, life: Life, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task of a process."""
        context = contextvars.copy_context()
        context.run(LIFE.set, life)
        return self.create_task(work, context=context)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is None or not life.is_frozen:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        life.held.append((handle, handle._run))
        return handle

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is None:
            return super().call_at(when, callback, *args, context=context)
        handles: list[asyncio.TimerHandle] = []
        handles.append(super().call_at(when, _fire, life, handles, callback, args, context=context))
        return handles[0]

    def thaw(self, life: Life, *, timers_first: bool) -> None:
        """Let a process run again, beginning with what was held back.

        Args:
            timers_first: whether it looks at its timers before it looks at what has arrived.
        """
        life.is_frozen = False
        held, life.held = life.held, []
        if timers_first:
            held.sort(key=lambda each: not isinstance(each[0], asyncio.TimerHandle))
        for handle, run in held:
            self.call_soon(_run_held, handle, run)


def _fire(
    life: Life, handles: list[asyncio.TimerHandle], callback: Callable[..., object], args: tuple[Any, ...]
) -> None:
    if life.is_frozen:
        life.held.append((handles[0], partial(contextvars.copy_context().run, callback, *args)))
    else:
        callback(*args)


def _run_held(handle: asyncio.Handle, run: Callable[[], object]) -> None:
    if not handle.cancelled():
        run()


class VirtualClock:
    """The `Clock` of one machine, fed from a loop.

    Attributes:
        lost_monotonic_s, lost_elapsed_s: for how long these readings have stood still.
        ahead_us: by how much its wall time is wrong.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.lost_monotonic_s = 0.0
        self.lost_elapsed_s = 0.0
        self.ahead_us = 0

    def monotonic_s(self) -> float:
        return 1000.0 + self._loop.time() - self.lost_monotonic_s

    def elapsed_s(self) -> float:
        return 2000.0 + self._loop.time() - self.lost_elapsed_s

    def unix_us(self) -> int:
        return 1_700_000_000_000_000 + round(self._loop.time() * 1e6) + self.ahead_us

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        return asyncio.timeout(duration_s)

    def pause(self, duration_s: float) -> None:
        raise AssertionError("nothing may block in a simulation")


async def end_tasks() -> None:
    """Cancel all other tasks of the loop until they have ended; the lives of all processes go on."""
    own = asyncio.current_task()
    for _ in range(1000):
        left = sorted((each for each in asyncio.all_tasks() if each is not own), key=hash)
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.sleep(1.0)
    raise AssertionError(f"tasks do not end: {left}")
