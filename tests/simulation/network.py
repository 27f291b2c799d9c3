"""The way from a process to the object store: each request takes a time that is drawn, and may meet a fault.

A request that was sent has a fate of its own: it happens, or not, whether or not anybody still waits for it. A put can
thus land after its caller has given it up, has sent it again, or has crashed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from millrace.model.checksum import Buffer
from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    StorageError,
    StoreBusyError,
    StoreUnavailableError,
)
from millrace.server.object_store import ObjectInfo, StoredObject
from tests.support.object_store import MemoryObjectStore

from .virtual_loop import LIFE, VirtualLoop

T = TypeVar("T")

ATTEMPT_S: Final = 0.5
"""How long a process waits for an answer."""
LATE_S_MAX: Final = 5.0
"""How long a request can be on its way."""
FAULTS: Final = ("lost", "unanswered", "reset", "late", "twice", "busy", "conflict")
"""See `Weather`."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How often requests meet faults, from 0 to 1, and how long they take, there and back each.

    Attributes:
        lost: nothing happens, and nobody answers.
        unanswered: it happens, and nobody answers.
        reset: it happens, and the answer is an error.
        late: it happens after the caller has given up.
        twice: it happens, is repeated on its way, and the answer is that of the second one.
        busy: 503, nothing happens.
        conflict: 409, nothing happens; with a claim that somebody else were first, or without.
        slow: it takes ten times as long.
    """

    lost: float = 0.0
    unanswered: float = 0.0
    reset: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    busy: float = 0.0
    conflict: float = 0.0
    slow: float = 0.0
    latency_s: float = 0.01

    @classmethod
    def drawn(cls, dice: Random) -> "Weather":
        """Return that of one schedule: calm, or bad in some ways."""
        worst = dice.choice([0.0, 0.03, 0.1, 0.2])
        rates = {fault: dice.choice([0.0, 0.3, 1.0]) * worst for fault in FAULTS}
        return cls(**rates, slow=dice.choice([0.0, 0.1]), latency_s=dice.choice([0.003, 0.01, 0.03]))


CALM: Final = Weather()


class Bucket(MemoryObjectStore):
    """The objects, and who is told of each delete before it happens."""

    def __init__(self) -> None:
        super().__init__(page_size_max=50, pause=_no_pause)
        self.before_delete: Callable[[str], None] = lambda key: None

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self.objects:
                self.before_delete(key)
        await super().delete(keys)


async def _no_pause() -> None:
    pass


class SimulatedStore:
    """An `ObjectStore` as one process reaches it.

    Attributes:
        cut_until_s: no request that is sent before that time arrives.
        requests_count: those that were sent.
    """

    def __init__(self, bucket: Bucket, loop: VirtualLoop, *, weather: Weather, dice: Random) -> None:
        self._bucket = bucket
        self._loop = loop
        self._weather = weather
        self._dice = dice
        # Requests belong to no process.
        self._wire = Context()
        self._wire.run(LIFE.set, None)
        self.cut_until_s = 0.0
        self.requests_count = 0

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        content = b"".join(pieces)
        conflict = ObjectExistsError("a conflict", subject=key)
        return await self._ask(lambda: self._bucket.create(key, [content]), conflict=conflict)

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        conflict = ObjectChangedError("a conflict", subject=key)
        return await self._ask(lambda: self._bucket.replace(key, content, tag=tag), conflict=conflict)

    async def get(self, key: str) -> StoredObject:
        return await self._ask(lambda: self._bucket.get(key))

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        return await self._ask(lambda: self._bucket.read(key, offset=offset, size=size))

    async def size(self, key: str) -> int:
        return await self._ask(lambda: self._bucket.size(key))

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        while page := await self._ask(partial(self._bucket._page, prefix, after)):
            yield page
            after = page[-1].key

    async def delete(self, keys: Sequence[str]) -> None:
        names = list(keys)
        await self._ask(lambda: self._bucket.delete(names))

    async def close(self) -> None:
        pass

    async def _ask(self, happen: Callable[[], Coroutine[Any, Any, T]], *, conflict: StorageError | None = None) -> T:
        """Send a request and wait for its answer; `happen` is what it does in the store."""
        self.requests_count += 1
        answer: asyncio.Future[T] = self._loop.create_future()
        waiting = self._loop.call_later(ATTEMPT_S, _settle, answer, StoreUnavailableError("no answer"))
        self._send(happen, answer, conflict)
        try:
            return await answer
        finally:
            waiting.cancel()

    def _send(
        self, happen: Callable[[], Coroutine[Any, Any, T]], answer: asyncio.Future[T], conflict: StorageError | None
    ) -> None:
        dice, weather = self._dice, self._weather
        there_s, back_s = (dice.uniform(0.3, 1.7) * weather.latency_s for _ in range(2))
        if dice.random() < weather.slow:
            there_s, back_s = 10 * there_s, 10 * back_s
        fault = self._fault()
        if fault == "lost" and self.cut_until_s > self._loop.time() and dice.random() < 0.2:
            fault, there_s = "unanswered", self.cut_until_s - self._loop.time() + there_s  # it waits in a queue
        if fault == "lost":
            return
        refusal: StorageError | None = None
        if fault == "busy":
            refusal = StoreBusyError("503", changed_nothing=True)
        elif fault == "conflict":
            is_claimed = conflict is not None and dice.random() < 0.5
            refusal = conflict if is_claimed else StoreUnavailableError("409", changed_nothing=True)
        elif fault == "late":
            there_s += dice.uniform(ATTEMPT_S, LATE_S_MAX)
        if refusal is not None:
            self._loop.call_later(there_s + back_s, _settle, answer, refusal)
            return

        def land() -> None:
            outcome = _outcome(happen())
            if fault == "twice":
                outcome = _outcome(happen())
            if fault == "reset":
                outcome = StoreUnavailableError("connection reset")
            if fault != "unanswered":
                self._loop.call_later(back_s, _settle, answer, outcome, context=arrival)

        # The answer reaches the process, not the task that waits for it: a frozen one finds it when it runs again.
        arrival = Context()
        arrival.run(LIFE.set, LIFE.get())
        self._loop.call_later(there_s, land, context=self._wire)

    def _fault(self) -> str:
        if self._loop.time() < self.cut_until_s:
            return "lost"
        drawn = self._dice.random()
        for name in FAULTS:
            drawn -= getattr(self._weather, name)
            if drawn < 0:
                return name
        return ""


def _settle(answer: asyncio.Future[Any], outcome: object) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _outcome(happening: Coroutine[Any, Any, object]) -> object:
    """Return what a request comes to that the store carries out at once."""
    try:
        happening.send(None)
    except StopIteration as done:
        return done.value
    except StorageError as error:
        return error
    raise AssertionError("a store in memory waits for nothing")
