"""Calls from threads into a loop, without a server."""

import _thread
import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

import millrace
from millrace.client.loop_thread import Blocking, LoopThread, OpenProxy, iterated, opened, started, waited, wrapped
from tests.support.waiting import PATIENCE_S


class Counter:
    """Lives in the loop, and remembers what was done to it."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def add(self, left: int, *, right: int = 1) -> int:
        """Return the sum; `await` it."""
        await asyncio.sleep(0)
        if left < 0:
            raise ValueError("below 0")
        return left + right

    async def count(self, end: int) -> AsyncIterator[int]:
        """Count up to `end`."""
        try:
            for number in range(end):
                yield number
        finally:
            self.log.append("closed")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        """Open something, with `async with`."""
        self.log.append("opened")
        try:
            yield "it"
        except ValueError:
            self.log.append("failed")
            raise
        finally:
            self.log.append("closed")

    async def wait(self) -> None:
        """Wait until cancelled."""
        self.log.append("waiting")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise

    async def wait_for_numbers(self) -> AsyncIterator[int]:
        """Wait for a number until cancelled, which takes some turns of the loop."""
        try:
            await self.wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.log.append("closed")
        yield 0

    def plain(self) -> "Counter":
        """Return the counter."""
        return self


class Item(OpenProxy[str]):
    def upper(self) -> str:
        return self._target.upper()


class BlockingCounter(Blocking[Counter]):
    add = waited(Counter.add)
    add_soon = started(Counter.add)
    count = iterated(Counter.count)
    opened = opened(Counter.opened, Item)
    wait = waited(Counter.wait)
    wait_for_numbers = iterated(Counter.wait_for_numbers)
    plain = wrapped(Counter.plain, lambda loop, counter: (loop, counter))


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


@pytest.fixture
def counter(loop: LoopThread) -> BlockingCounter:
    return BlockingCounter(loop, Counter())


def test_a_call_returns_the_result_or_raises_the_error(counter: BlockingCounter) -> None:
    assert counter.add(2) == 3
    assert counter.add(2, right=3) == 5
    assert counter.add_soon(4).result() == 5
    with pytest.raises(ValueError, match="below 0"):
        counter.add(-1)


def test_the_docstring_speaks_to_threads() -> None:
    assert BlockingCounter.add.__doc__ == "Return the sum; `await` it."
    assert BlockingCounter.opened.__doc__ == "Open something, with `with`."
    assert BlockingCounter.add.__name__ == "add"


def test_an_iterator_that_is_left_early_is_closed(counter: BlockingCounter, loop: LoopThread) -> None:
    target = counter.plain()[1]
    assert list(counter.count(3)) == [0, 1, 2]
    numbers = counter.count(3)
    assert next(numbers) == 0
    numbers.close()  # type: ignore[attr-defined]  # an iterator for the caller
    assert target.log == ["closed", "closed"]
    assert counter.plain()[0] is loop


def test_what_is_entered_has_its_shell(counter: BlockingCounter) -> None:
    with counter.opened() as item:
        assert item.upper() == "IT"
    assert counter.plain()[1].log == ["opened", "closed"]
    item.close()
    assert counter.plain()[1].log == ["opened", "closed"]


def test_what_is_opened_without_with_is_closed_by_hand(counter: BlockingCounter) -> None:
    item = counter.opened()
    assert counter.plain()[1].log == ["opened"]
    assert item.upper() == "IT"
    item.close()
    item.close()
    with item:
        pass
    assert counter.plain()[1].log == ["opened", "closed"]


@pytest.mark.parametrize("error", [ValueError("x"), StopIteration("x"), KeyboardInterrupt()])
def test_a_context_is_left_with_the_error_of_its_body(counter: BlockingCounter, error: BaseException) -> None:
    with pytest.raises(type(error)), counter.opened():
        raise error
    expected = ["opened", "failed", "closed"] if isinstance(error, ValueError) else ["opened", "closed"]
    assert counter.plain()[1].log == expected


@contextmanager
def interrupted(log: list[str]) -> Iterator[None]:
    """Press Ctrl-C once the log says "waiting"."""
    was_interrupted = threading.Event()

    def raise_once(_signal: int, _frame: object) -> None:
        if not was_interrupted.is_set():
            was_interrupted.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        # A signal between the last look of the interpreter and the wait does not end the wait; the next one does.
        while "waiting" not in log or not was_interrupted.wait(0.01):
            if "waiting" in log:
                os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, raise_once)
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        interrupter.join()
        signal.signal(signal.SIGINT, previous)


def test_an_interrupt_of_the_wait_cancels_the_call(counter: BlockingCounter) -> None:
    log = counter.plain()[1].log
    with interrupted(log):
        counter.wait()
    counter.add(1)  # after the cancellation in the loop
    counter.add(1)
    assert log == ["waiting", "cancelled"]


def test_an_interrupt_of_an_iterator_closes_it_once_its_step_has_ended(counter: BlockingCounter) -> None:
    log = counter.plain()[1].log
    with interrupted(log):
        next(counter.wait_for_numbers())
    assert log == ["waiting", "cancelled", "closed"]


def test_an_interrupt_before_the_wait_cancels_the_call(
    counter: BlockingCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has the call already, and this thread does not have its future yet."""
    log = counter.plain()[1].log
    start = asyncio.run_coroutine_threadsafe

    def start_and_interrupt(*arguments: Any) -> None:
        monkeypatch.undo()
        start(*arguments)
        raise KeyboardInterrupt

    for step in (counter.wait, lambda: next(counter.wait_for_numbers())):
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", start_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            step()
    counter.add(1)  # after the cancellation in the loop
    counter.add(1)

    # A call that had not begun has left no trace.
    assert log.count("waiting") == log.count("cancelled")


@pytest.mark.parametrize(
    ("library", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
def test_green_threads_are_refused_by_name(library: str, patch: str) -> None:
    pytest.importorskip(library)
    program = f"{patch}\nfrom millrace import blocking\nblocking.connect('127.0.0.1:1')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"GreenThreadsError: {library} has replaced threads" in ended.stderr.splitlines()[-1]


def test_threads_of_a_debugger_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger starts each thread by a function of its own, which traces the thread."""
    start_thread = _thread.start_new_thread

    def start_traced(*arguments: Any) -> int:
        return start_thread(*arguments)

    monkeypatch.setattr(_thread, "start_new_thread", start_traced)
    loop = LoopThread()
    loop.stop()


def test_threads_share_an_iterator(loop: LoopThread, counter: BlockingCounter) -> None:
    """Behaviour 100: each item goes to one of them, and all see the end. No thread closes it under one that waits."""
    target = counter.plain()[1]
    numbers = counter.count(1000)
    with ThreadPoolExecutor(4) as pool:
        parts = [each.result(PATIENCE_S) for each in [pool.submit(list, numbers) for _ in range(4)]]
        assert sorted(number for part in parts for number in part) == list(range(1000))
        assert target.log == ["closed"]
        waits = counter.wait_for_numbers()
        waiting = [pool.submit(next, waits) for _ in range(2)]
        while target.log != ["closed", "waiting"]:
            counter.add(1)
        with pytest.raises(millrace.InvalidArgumentError, match="another thread waits"):
            waits.close()  # type: ignore[attr-defined]  # an iterator for the caller
        loop.stop()
        errors = {type(each.exception(PATIENCE_S)) for each in waiting}
    assert errors == {millrace.ClientClosedError, StopIteration}


def test_a_stopped_loop_refuses(loop: LoopThread, counter: BlockingCounter) -> None:
    loop.stop()
    loop.stop()
    with pytest.raises(millrace.ClientClosedError):
        counter.add(1)


def test_what_waits_when_the_loop_is_stopped_raises(loop: LoopThread, counter: BlockingCounter) -> None:
    target = counter.plain()[1]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(counter.wait) for _ in range(4)]
        while target.log != ["waiting"] * 4:
            counter.add(1)
        loop.stop()
        errors = [future.exception(timeout=30) for future in waiting]
    assert [type(error) for error in errors] == [millrace.ClientClosedError] * 4
    assert target.log == ["waiting"] * 4 + ["cancelled"] * 4


def test_a_call_that_was_only_handed_over_when_the_loop_is_stopped_raises(loop: LoopThread) -> None:
    counter = Counter()
    entered = threading.Event()
    released = threading.Event()

    def hold() -> None:
        entered.set()
        released.wait(10)

    loop.post(hold)
    assert entered.wait(10)
    waiting = loop.start(counter.wait)  # the loop has not turned since
    stopping = threading.Thread(target=loop.stop)
    stopping.start()
    try:
        while not waiting.done():
            loop.post(released.is_set)  # until the loop takes no more
    except millrace.ClientClosedError:
        released.set()
    with pytest.raises(millrace.ClientClosedError):
        waiting.result(10)
    stopping.join()


def test_an_iterator_is_left_quietly_after_the_loop_is_stopped(loop: LoopThread, counter: BlockingCounter) -> None:
    target = counter.plain()[1]
    left, asked = counter.count(3), counter.count(3)
    assert (next(left), next(asked)) == (0, 0)
    loop.stop()
    left.close()  # type: ignore[attr-defined]  # an iterator for the caller
    with pytest.raises(millrace.ClientClosedError):
        next(asked)
    assert target.log == ["closed", "closed"]  # by the end of the loop


def test_a_context_that_is_left_after_the_loop_is_stopped(loop: LoopThread, counter: BlockingCounter) -> None:
    with pytest.raises(millrace.ClientClosedError), counter.opened():
        loop.stop()


def test_the_error_of_a_body_is_not_hidden_by_a_stopped_loop(loop: LoopThread, counter: BlockingCounter) -> None:
    def fail() -> None:
        loop.stop()
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"), counter.opened():
        fail()


def test_a_call_inside_the_loop_is_refused(loop: LoopThread, counter: BlockingCounter) -> None:
    async def call() -> int:
        return counter.add(1)

    with pytest.raises(RuntimeError, match="inside its own event loop"):
        loop.call(call)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Python says nothing of SystemExit
def test_a_loop_that_a_callback_has_ended_is_closed_for_all() -> None:
    """Such as `on_waiting`, which a program may leave with SystemExit."""
    loop = LoopThread()
    started = loop.start(asyncio.Event().wait)
    loop.post(sys.exit)

    with pytest.raises(millrace.ClientClosedError):
        started.result(PATIENCE_S)
    with pytest.raises(millrace.ClientClosedError):
        loop.post(sys.exit)
    with pytest.raises(millrace.ClientClosedError):
        loop.call(lambda: asyncio.sleep(0))
    loop.stop()
