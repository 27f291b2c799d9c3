"""Methods for threads, derived from coroutines: one event loop in a thread of its own, and calls that run in it.

A `Blocking[A]` is the proxy of an object `A` that belongs to the loop. Its methods are derived from those of `A`, by
one function for each way of waiting:

    class Segments(Blocking[AsyncSegments]):
        append = waited(AsyncSegments.append)      # runs the coroutine and returns its result
        tail = iterated(AsyncSegments.tail)        # an iterator that runs one step at a time

Parameters, types and the docstring are those of the coroutine, so a change there is a change here, and a type checker
sees the whole signature. As `anyio.from_thread.start_blocking_portal`, with a check for forked processes.

One thread may stop the loop while others use what belongs to it. What such a thread sees is one thing, whenever it
happens: `ClientClosedError`, from the call that waits and from every later one. Leaving `with` or an iterator never
hides an error of the body, and an iterator that is only left, not asked for more, is left quietly.
"""

import _thread
import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from millrace.client import exit_flush
from millrace.client.transport.fork_guard import ForkGuard
from millrace.model.errors import InvalidArgumentError
from millrace.model.shown import PublicNames

from .errors import ClientClosedError, ForkedClientError, GreenThreadsError, WrongLoopError
from .event_loop import new_event_loop

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")

STOP_TIMEOUT_S: Final = 10.0
_GREEN_PATCHES: Final = {"gevent": "monkey.patch_all", "eventlet": "eventlet.monkey_patch"}
"""The libraries that replace threads, by the package of what they put in their place."""


class LoopThread:
    """An event loop in a thread of its own.

    Raises:
        GreenThreadsError: gevent or eventlet has patched threads: the loop would never give the only real one back.
    """

    def __init__(self) -> None:
        _check_threads_are_real()
        self._guard = ForkGuard()
        self._loop = new_event_loop()
        # Everything is handed to the loop under this lock, and nothing after it was told to stop: what is handed over
        # later than that would wait for a loop that no longer turns. Reentrant, because an iterator that is forgotten
        # is closed by the garbage collector, which may run while the lock is held.
        self._lock = threading.RLock()
        self._is_stopped = False
        # A daemon: a program that forgets to close its client still ends. `exit_flush` ends this before.
        self._thread = threading.Thread(target=self._run, name="millrace", daemon=True)
        self._thread.start()
        exit_flush.watch_loop(self)

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await in the loop what `function` returns there, and return its result; an interrupt of the wait cancels it.

        Raises like `start`.
        """
        call = _Call(function)
        future: concurrent.futures.Future[T] | None = None
        try:
            future = self.start(call.run)
            return future.result()
        except BaseException:
            # An interrupt may come after the call has started and before this thread has its future.
            if future is None or not future.done():
                with suppress(ClientClosedError, ForkedClientError):
                    self.post(call.cancel)
            raise

    def start(self, function: Callable[[], Awaitable[T]]) -> "concurrent.futures.Future[T]":
        """Await in the loop what `function` returns there; the future holds the result.

        Raises:
            ForkedClientError: the process was forked; the thread is in the parent.
            ClientClosedError: the loop was stopped.
        """
        self.check()

        async def run() -> T:
            try:
                return await function()
            except asyncio.CancelledError:
                if self._is_stopped:
                    raise _closed() from None
                raise

        with self._lock:
            self._check_is_running()
            return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def post(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, soon; all that one thread posts, calls and starts is begun in its order.

        Raises like `start`.
        """
        self.check()
        with self._lock:
            self._check_is_running()
            self._loop.call_soon_threadsafe(function)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the loop and its thread; what still runs in it is cancelled and fails with `ClientClosedError`.

        Returns when the thread has ended, in each thread that calls it, or after `timeout_s`. In a forked child there
        is no such thread, and nothing happens.
        """
        if self._guard.forked:
            return
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def check(self) -> None:
        """Raise if nothing can be handed to the loop here.

        Raises:
            ForkedClientError: the process was forked; the thread is in the parent.
            WrongLoopError: this is the thread of the loop.
        """
        self._guard.check()
        if threading.current_thread() is self._thread:
            raise WrongLoopError("a blocking client cannot be used inside its own event loop: use millrace.connect")

    def _check_is_running(self) -> None:
        if self._is_stopped:
            raise _closed()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with self._lock:
                self._is_stopped = True  # also where a callback has ended the loop, with SystemExit
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _end(self) -> None:
        """End what was begun, as `asyncio.run` does, so that each thread that waits has its answer."""
        await asyncio.sleep(0)  # what was started last makes its first step: only then it can tell why it is cancelled
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _check_threads_are_real() -> None:
    # Debuggers replace this function, too, and start real threads.
    library = str(getattr(_thread.start_new_thread, "__module__", "")).partition(".")[0]
    if library in _GREEN_PATCHES:
        raise GreenThreadsError(
            f"{library} has replaced threads by green threads, and the client for threads needs a real one: patch with"
            f" {_GREEN_PATCHES[library]}(thread=False)"
        )


def _closed() -> ClientClosedError:
    return ClientClosedError("the client was closed")


class Blocking(PublicNames, Generic[A_co]):
    """A proxy, for threads, of `target`, which belongs to the loop."""

    def __init__(self, loop: LoopThread, target: A_co) -> None:
        self._loop = loop
        self._target = target

    def __repr__(self) -> str:
        """Return what its target says of itself."""
        return repr_for_threads(self, getattr(self, "_target", None))


class OpenProxy(Blocking[A_co]):
    """A proxy of what was entered, to be left by `with` or by `close`.

    Args:
        manager: the asynchronous context manager that was entered.
    """

    def __init__(self, loop: LoopThread, target: A_co, manager: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(loop, target)
        self._manager = manager
        self._is_left = False

    def __enter__(self) -> Self:
        """Return this, which is open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave as `async with` does; nothing happens if it was closed before.

        Raises:
            ClientClosedError: the client was closed before this, and the body did not fail.
        """
        if self._is_left:
            return
        self._is_left = True
        try:
            self._loop.call(functools.partial(self._manager.__aexit__, kind, error, trace))
        except ClientClosedError:
            if error is None:
                raise

    def close(self) -> None:
        """Close, as leaving `with` does; closing again does nothing."""
        self.__exit__(None, None, None)


def repr_for_threads(proxy: object, target: object) -> str:
    """Return what a target says of itself, as of its proxy; it is None where the proxy was not made."""
    if target is None:
        return f"<millrace.blocking.{type(proxy).__name__} not made>"
    return repr(target).replace("<millrace.", "<millrace.blocking.", 1)


def waited(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return the method that waits for a coroutine and returns its result."""

    @documented(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.call(lambda: method(self._target, *args, **kwargs))

    return call


def started(
    method: Callable[Concatenate[A, P], Awaitable[T]],
) -> "Callable[Concatenate[Blocking[A], P], concurrent.futures.Future[T]]":
    """Return the method that starts a coroutine and returns a future; calls of one thread start in their order."""

    @documented(method)
    def start(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> "concurrent.futures.Future[T]":
        return self._loop.start(lambda: method(self._target, *args, **kwargs))

    return start


def iterated(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking[A], P], Iterator[T]]:
    """Return the method that yields what an asynchronous iterator does; leaving it early closes that.

    Leaving it is quiet where another thread has closed the client; asking it for more raises `ClientClosedError`.
    """

    @documented(method)
    def iterate(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _Steps(self._loop, lambda: method(self._target, *args, **kwargs))

    return iterate


class _Call(Generic[T]):
    """A call in the loop that can be cancelled without its future. Its methods run in the loop."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def run(self) -> T:
        """Await the function.

        Raises:
            CancelledError: the call was cancelled, maybe before its first step.
        """
        if self._is_cancelled:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._function()

    def cancel(self) -> None:
        """Cancel the call; nothing happens if it has ended."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


class _Steps(Iterator[T]):
    """The steps of an asynchronous iterator, for any number of threads: one after the other takes the next one.

    It ends with the iterator, with the first error, or when it is closed or forgotten.

    Args:
        begin: returns the iterator; called with the first step.
    """

    def __init__(self, loop: LoopThread, begin: Callable[[], AsyncIterator[T]]) -> None:
        self._loop = loop
        self._begin = begin
        self._iterator: AsyncIterator[T] | None = None
        # An interrupt ends the wait for a step here before the step has ended there, and only then can it be closed.
        self._stepping = asyncio.Lock()
        self._turn = threading.Lock()
        self._has_ended = False

    def __next__(self) -> T:
        self._loop.check()  # in a forked child no thread gives the turn back
        with self._turn:
            if self._has_ended:
                raise StopIteration
            try:
                return self._loop.call(self._step)
            except StopAsyncIteration:
                self._end()
                raise StopIteration from None
            except BaseException:
                self._end()
                raise

    def __del__(self) -> None:
        """Close what was forgotten."""
        with suppress(ForkedClientError, WrongLoopError):
            self._end()

    def close(self) -> None:
        """End it and what it iterates over; closing again does nothing.

        Raises:
            InvalidArgumentError: another thread waits for its next step. Closing the client ends that.
        """
        self._loop.check()
        if not self._turn.acquire(blocking=False):
            raise InvalidArgumentError("another thread waits for the next item of this iterator: close the client")
        try:
            self._end()
        finally:
            self._turn.release()

    async def _step(self) -> T:
        async with self._stepping:
            if self._iterator is None:
                self._iterator = self._begin()
            return await anext(self._iterator)

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            if self._iterator is not None:
                with suppress(ClientClosedError):  # whose client has closed this, too
                    self._loop.call(self._close)

    async def _close(self) -> None:
        async with self._stepping:
            aclose = getattr(self._iterator, "aclose", None)
            if aclose is not None:
                await aclose()


def opened(
    method: Callable[Concatenate[A, P], AbstractAsyncContextManager[B]],
    shell: Callable[[LoopThread, B, AbstractAsyncContextManager[Any]], T],
) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return the method that enters what another one returns, and hands it to `shell`: to be closed, or for `with`."""

    @documented(method)
    def enter(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def begin() -> tuple[B, AbstractAsyncContextManager[B]]:
            manager = method(self._target, *args, **kwargs)
            return await manager.__aenter__(), manager

        return shell(self._loop, *self._loop.call(begin))

    return enter


def wrapped(
    method: Callable[Concatenate[A, P], B], shell: Callable[[LoopThread, B], T]
) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return the method that returns what another one does, without waiting, in a shell for threads."""

    @documented(method)
    def wrap(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return shell(self._loop, method(self._target, *args, **kwargs))

    return wrap


def documented(method: Callable[..., object]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that gives name, signature and docstring of a method, in the words of a thread."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        functools.update_wrapper(function, method)
        function.__doc__ = (method.__doc__ or "").replace("async with", "with").replace("await ", "")
        return function

    return decorate
