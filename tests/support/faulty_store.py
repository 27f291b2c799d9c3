"""Object stores with the faults of real ones: between caller and store, or in the store itself."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from millrace.model.checksum import Buffer
from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    StorageError,
    StoreBusyError,
    StoreUnavailableError,
)
from millrace.server.object_store import ObjectInfo, ObjectStore, StoredObject
from tests.support.object_store import MemoryObjectStore, tag_of

T = TypeVar("T")


class Fault(Enum):
    """What happens to one call."""

    UNAVAILABLE = "nobody answers, and nothing happens"
    BUSY = "the store says 503: nothing happens"
    CONFLICT = "the store says 409, as if somebody else were first: nothing happens"
    RIVAL = "the store says 409, as another put is under way, and to try again: nothing happens"
    LOST_ANSWER = "it happens, and nobody hears of it"
    LATE = "the caller gives up, and it happens afterwards"
    STALL = "it happens when the test lets it"
    SLOW_ANSWER = "it happens, and the answer comes when the test lets it"
    CUT = "half of the bytes arrive"
    SHORT_LIST = "the listing ends with an error after its first page"


CHANGES: Final = frozenset({"create", "replace", "delete"})
APPLICABLE: Final[dict[Fault, frozenset[str]]] = {
    Fault.UNAVAILABLE: CHANGES | {"get", "read", "size", "list"},
    Fault.BUSY: CHANGES | {"get", "read", "size", "list"},
    Fault.CONFLICT: frozenset({"create", "replace"}),
    Fault.RIVAL: frozenset({"create", "replace"}),
    Fault.LOST_ANSWER: CHANGES,
    Fault.LATE: CHANGES,
    Fault.STALL: CHANGES | {"get", "read", "size"},
    Fault.SLOW_ANSWER: CHANGES,
    Fault.CUT: frozenset({"read"}),
    Fault.SHORT_LIST: frozenset({"list"}),
}
"""What each fault can happen to."""

RANDOM_FAULTS: Final = (
    Fault.UNAVAILABLE,
    Fault.BUSY,
    Fault.CONFLICT,
    Fault.LOST_ANSWER,
    Fault.LATE,
    Fault.CUT,
    Fault.SHORT_LIST,
)
"""Those that pass by themselves."""

TURNED_AWAY: Final = (Fault.CONFLICT, Fault.RIVAL, Fault.BUSY)
"""Those after which a client knows that nothing happens."""

Schedule = Callable[[str], Fault | None]
"""Called with the name of the operation, for each call."""


def random_faults(seed: int, *, rate: float, faults: Sequence[Fault] = RANDOM_FAULTS) -> Schedule:
    """Return a schedule drawn from a seed, which is printed.

    Args:
        rate: of the calls that meet a fault, 0 to 1.
        faults: those to draw from.
    """
    print(f"faults are drawn from seed {seed}")
    draws = random.Random(seed)

    def draw(operation: str) -> Fault | None:
        possible = [fault for fault in faults if operation in APPLICABLE[fault]]
        return draws.choice(possible) if possible and draws.random() < rate else None

    return draw


def faults_with_a_known_outcome(seed: int) -> Schedule:
    """Return a schedule, drawn from a seed, of faults that a client which repeats has got over when its call returns.

    What comes late may come after that, and a replace that found another object after no answer cannot tell.
    """
    faults = [fault for fault in RANDOM_FAULTS if fault is not Fault.LATE]
    of_any, of_replace = (random_faults(seed, rate=0.3, faults=each) for each in (faults, TURNED_AWAY))
    return lambda operation: of_replace(operation) if operation == "replace" else of_any(operation)


@dataclass(slots=True)
class FaultyStore:
    """An `ObjectStore` over any other one, whose calls meet faults: those that `fail` names first, then the schedule's.

    Several clients of one store have each their own. Nothing depends on a clock. What comes late by name happens when
    `land` is called; what the schedule lets come late, before one of the next three calls to this object at the latest.
    A stalled call happens when `release` is called; one whose caller went away before that comes late by name.
    """

    store: ObjectStore
    schedule: Schedule = lambda operation: None
    # How often each operation was asked for.
    calls: dict[str, int] = field(default_factory=dict)
    # The faults that there were, in their order.
    met: list[tuple[str, Fault]] = field(default_factory=list)
    _script: dict[str, deque[Fault | None]] = field(default_factory=dict)
    # Calls that have not happened, and how many calls are left until they do; None if the test says when.
    _late: list[tuple[int | None, Callable[[], Coroutine[Any, Any, Any]]]] = field(default_factory=list)
    _gate: asyncio.Event = field(default_factory=asyncio.Event)
    _stalled_count: int = 0

    def fail(self, operation: str, *faults: Fault | None) -> None:
        """Let the next calls of an operation meet these faults, one each; None is a call without one."""
        for fault in faults:
            assert fault is None or operation in APPLICABLE[fault]
        self._script.setdefault(operation, deque()).extend(faults)

    @property
    def stalled_count(self) -> int:
        """How many calls wait for `release`."""
        return self._stalled_count

    def release(self) -> None:
        """Let stalled calls happen, those of later, too."""
        self._gate.set()

    async def land(self) -> None:
        """Let everything happen that comes late, whatever it comes to."""
        late, self._late = self._late, []
        for _, happen in late:
            await _ignoring_refusal(happen())

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        """Store an object under a free key, or fail."""
        content = b"".join(pieces)
        return await self._change(
            "create", key, lambda: self.store.create(key, [content]), conflict=ObjectExistsError("409", subject=key)
        )

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        """Store an object in place of another, or fail."""
        taken = bytes(content)
        return await self._change(
            "replace",
            key,
            lambda: self.store.replace(key, taken, tag=tag),
            conflict=ObjectChangedError("409", subject=key),
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, or fail."""
        given = [*keys]
        await self._change("delete", ", ".join(given), lambda: self.store.delete(given))

    async def get(self, key: str) -> StoredObject:
        """Return a whole object, or fail."""
        await self._arrive("get", key)
        return await self.store.get(key)

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        """Return a part of an object, or half of it, or fail."""
        fault = await self._arrive("read", key)
        part = await self.store.read(key, offset=offset, size=size)
        return part[: len(part) // 2] if fault is Fault.CUT else part

    async def size(self, key: str) -> int:
        """Return the size of an object, or fail."""
        await self._arrive("size", key)
        return await self.store.size(key)

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages of objects by key, or fail before the first or after it."""
        fault = await self._arrive("list", prefix)
        async for page in self.store.list(prefix, after=after):
            yield page
            if fault is Fault.SHORT_LIST:
                raise StoreUnavailableError(fault.value, subject=prefix)

    async def close(self) -> None:
        """Let everything happen that has not, and close the store."""
        self.release()
        await self.land()
        await self.store.close()

    async def _change(
        self,
        operation: str,
        key: str,
        happen: Callable[[], Coroutine[Any, Any, T]],
        *,
        conflict: StorageError | None = None,
    ) -> T:
        is_drawn = not self._script.get(operation)
        fault = await self._arrive(operation, key)
        if fault is Fault.STALL:
            try:
                await self._stall()
            except asyncio.CancelledError:
                self._late.append((None, happen))
                raise
        if fault is Fault.CONFLICT:
            assert conflict is not None
            raise conflict
        if fault is Fault.LATE:
            self._late.append((1 + sum(self.calls.values()) % 3 if is_drawn else None, happen))
            raise StoreUnavailableError(fault.value, subject=key)
        answer = await happen()
        if fault is Fault.LOST_ANSWER:
            raise StoreUnavailableError(fault.value, subject=key)
        if fault is Fault.SLOW_ANSWER:
            await self._stall()
        return answer

    async def _arrive(self, operation: str, key: str) -> Fault | None:
        """Return the fault that a call meets after it has come to the store."""
        self.calls[operation] = self.calls.get(operation, 0) + 1
        await self._land_some()
        script = self._script.get(operation)
        fault = script.popleft() if script else self.schedule(operation)
        if fault is not None:
            self.met.append((operation, fault))
        if fault is Fault.UNAVAILABLE:
            raise StoreUnavailableError(fault.value, subject=key)
        if fault is Fault.BUSY:
            raise StoreBusyError(fault.value, subject=key, changed_nothing=True)
        if fault is Fault.RIVAL:
            raise StoreUnavailableError(fault.value, subject=key, changed_nothing=True)
        if fault is Fault.STALL and operation not in CHANGES:
            await self._stall()
        return fault

    async def _stall(self) -> None:
        self._stalled_count += 1
        try:
            await self._gate.wait()
        finally:
            self._stalled_count -= 1

    async def _land_some(self) -> None:
        due = [happen for left, happen in self._late if left == 1]
        self._late = [(left and left - 1, happen) for left, happen in self._late if left != 1]
        for happen in due:
            await _ignoring_refusal(happen())


async def _ignoring_refusal(late: Coroutine[Any, Any, Any]) -> None:
    try:
        await late
    except (ObjectExistsError, ObjectChangedError):
        pass  # nobody is there to hear it


class Cheat(Enum):
    """How a store only pretends to keep the contract. Each was seen in a real one."""

    IGNORES_CREATE = "a create replaces what is there"
    IGNORES_TAG = "a replace does not look at the tag"
    CREATES_WITHOUT_LOCK = "of creates at the same time several succeed"
    REPLACES_WITHOUT_LOCK = "of replaces at the same time several succeed"
    LISTS_LATE = "a listing does not have what was stored just now"


class CheatingStore(MemoryObjectStore):
    """An `ObjectStore` in memory that breaks one promise, and keeps the others."""

    def __init__(self, cheat: Cheat) -> None:
        super().__init__()
        self._cheat = cheat
        self._listed_keys: set[str] = set()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        """Store an object under a key that is free, was free a moment ago, or is not."""
        await asyncio.sleep(0)
        if key in self.objects and self._cheat is not Cheat.IGNORES_CREATE:
            raise ObjectExistsError("the key has an object", subject=key)
        if self._cheat is Cheat.CREATES_WITHOUT_LOCK:
            await asyncio.sleep(0)
        return self._put(key, b"".join(pieces))

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        """Store an object in place of one that has this tag, had it a moment ago, or has another."""
        await asyncio.sleep(0)
        is_other = key not in self.objects or tag_of(self.objects[key]) != tag
        if is_other and self._cheat is not Cheat.IGNORES_TAG:
            raise ObjectChangedError("the object has another tag, or there is none", subject=key)
        if self._cheat is Cheat.REPLACES_WITHOUT_LOCK:
            await asyncio.sleep(0)
        return self._put(key, bytes(content))

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages of objects by key, or of those that were there when the listing before this one began."""
        hidden = {*self.objects} - self._listed_keys if self._cheat is Cheat.LISTS_LATE else set[str]()
        self._listed_keys = {*self.objects}
        async for page in super().list(prefix, after=after):
            if shown := [info for info in page if info.key not in hidden]:
                yield shown

    def _put(self, key: str, content: bytes) -> str:
        self.objects[key] = content
        return tag_of(content)
