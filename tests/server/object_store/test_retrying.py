"""How long it is tried; what becomes of lost answers is told by tests/contracts/test_object_store.py."""

import asyncio
from random import Random

import pytest

from millrace.server.errors import ObjectChangedError, StoreBusyError, StoreUnavailableError
from millrace.server.object_store import ObjectStoreOptions, RetryingStore
from millrace.server.object_store.retrying import CLOSE_S_MAX, PAUSE_S_MAX
from tests.support.clock import HastyClock, ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore

OPTIONS = ObjectStoreOptions(patience_s=20.0)


class FailingStore(MemoryObjectStore):
    """Fails each request of size while there is an error to fail with, and notes when it was asked."""

    def __init__(self, clock: ManualClock, error: StoreUnavailableError | None) -> None:
        super().__init__()
        self._clock = clock
        self.error = error
        self.asked_s: list[float] = []
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()

    async def size(self, key: str) -> int:
        self.asked_s.append(self._clock.monotonic_s())
        if self.error is not None:
            raise self.error
        return await super().size(key)

    async def create(self, key: str, pieces: object) -> str:
        self.entered.set()
        await self.gate.wait()
        return await super().create(key, pieces)  # type: ignore[arg-type]  # what it was given


def over(store: FailingStore, clock: ManualClock) -> RetryingStore:
    return RetryingStore(store, OPTIONS, clock=clock, random=Random(7))


@pytest.mark.asyncio
async def test_pauses_grow_and_end() -> None:
    """Behaviour 92: a store that does not answer is an error in the end, which says so."""
    clock = ManualClock()
    store = FailingStore(clock, StoreUnavailableError("no answer"))
    task = asyncio.create_task(over(store, clock).size("a"))
    for _ in range(1000):
        await clock.advance(0.05)

    with pytest.raises(StoreUnavailableError, match="no answer"):
        await task
    pauses = [later - before for before, later in zip(store.asked_s, store.asked_s[1:], strict=False)]
    assert 6 <= len(pauses) <= 20
    assert max(pauses) <= PAUSE_S_MAX + 0.1
    assert pauses[0] <= 0.2 < pauses[4]
    assert store.asked_s[-1] - store.asked_s[0] <= OPTIONS.patience_s


@pytest.mark.asyncio
async def test_a_store_that_asks_to_slow_down_is_busy_after_a_while_and_may_be_asked_again() -> None:
    """Behaviour 92: throttling is never fatal, and holds up nobody for as long as it lasts."""
    clock = ManualClock()
    store = FailingStore(clock, StoreBusyError("slow down"))
    await MemoryObjectStore.create(store, "a", [b"abc"])
    retrying = over(store, clock)
    task = asyncio.create_task(retrying.size("a"))
    for _ in range(1000):
        await clock.advance(0.05)

    with pytest.raises(StoreBusyError, match="slow down"):
        await task
    assert OPTIONS.patience_s - PAUSE_S_MAX <= store.asked_s[-1] - store.asked_s[0] <= OPTIONS.patience_s
    store.error = None
    assert await retrying.size("a") == 3


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("faults", "changed_nothing"),
    [
        ([Fault.BUSY], True),
        ([Fault.BUSY, Fault.LOST_ANSWER], False),
        ([Fault.LATE], False),
        ([Fault.CONFLICT], False),
    ],
)
async def test_a_store_that_is_busy_in_the_end_does_not_hide_what_came_before(
    faults: list[Fault], changed_nothing: bool
) -> None:
    """Behaviour 92: an attempt that may have happened leaves the outcome open, whatever the later ones come to."""
    faulty = FaultyStore(MemoryObjectStore())
    faulty.fail("create", *faults, *[Fault.BUSY] * 1000)
    faulty.fail("get", *[Fault.BUSY] * 1000)

    with pytest.raises(StoreBusyError) as caught:
        await RetryingStore(faulty, OPTIONS, clock=HastyClock(), random=Random(7)).create("a", [b"abc"])

    assert caught.value.changed_nothing is changed_nothing


@pytest.mark.asyncio
async def test_closing_ends_the_waits_between_attempts() -> None:
    clock = ManualClock()
    store = FailingStore(clock, StoreBusyError("slow down"))
    retrying = over(store, clock)
    task = asyncio.create_task(retrying.size("a"))
    await clock.advance(0.0)

    await retrying.close()

    with pytest.raises(StoreBusyError):
        await task


@pytest.mark.asyncio
async def test_a_close_cuts_a_put_that_does_not_end() -> None:
    """A server that stops keeps its deadline, whatever the store does; who still waits is told that it is open."""
    clock = ManualClock()
    store = FailingStore(clock, None)
    retrying = over(store, clock)
    waiting, cancelled = (asyncio.create_task(retrying.create(key, [b"abc"])) for key in "ab")
    await store.entered.wait()
    cancelled.cancel()
    closing = asyncio.create_task(retrying.close())
    await clock.advance(0.0)  # it begins to wait
    await clock.advance(CLOSE_S_MAX / 2)
    assert not closing.done()

    await clock.advance(CLOSE_S_MAX / 2)
    await clock.advance(0.0)  # some more turns

    assert closing.done()
    with pytest.raises(StoreUnavailableError, match="closed before it had answered") as caught:
        await waiting
    assert not caught.value.changed_nothing
    assert not store.objects


@pytest.mark.asyncio
async def test_a_cancelled_put_is_brought_to_its_end() -> None:
    clock = ManualClock()
    store = FailingStore(clock, None)
    retrying = over(store, clock)
    put = asyncio.create_task(retrying.create("a", [b"abc"]))
    await store.entered.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    closing = asyncio.create_task(retrying.close())
    await clock.advance(0.0)
    assert not closing.done()

    store.gate.set()
    await closing

    assert (await MemoryObjectStore.get(store, "a")).content == b"abc"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ([Fault.BUSY], ObjectChangedError),
        ([Fault.RIVAL], ObjectChangedError),
        ([Fault.UNAVAILABLE, Fault.BUSY], StoreUnavailableError),
    ],
)
async def test_only_a_put_that_may_have_happened_leaves_the_outcome_open(
    faults: list[Fault], error: type[Exception]
) -> None:
    """Behaviour 92: a store that has turned a put away has not done it."""
    memory = MemoryObjectStore()
    tag = await memory.create("a", [b"one"])
    await memory.replace("a", b"two", tag=tag)
    faulty = FaultyStore(memory)
    faulty.fail("replace", *faults)

    with pytest.raises(error):
        await RetryingStore(faulty, clock=HastyClock()).replace("a", b"three", tag=tag)
