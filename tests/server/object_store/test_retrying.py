"""How long it is tried; what becomes of lost answers is told by tests/contracts/test_object_store.py."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from millrace.model.checksum import Buffer
from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    StoreBusyError,
    StoreFullError,
    StoreUnavailableError,
)
from millrace.server.host.metrics import Metrics
from millrace.server.object_store import ObjectStoreOptions, RetryingStore, StoreMonitor
from millrace.server.object_store.hedging import HEDGE_S_MIN, REQUESTS_PER_HEDGE
from millrace.server.object_store.monitor import BUSY_S
from millrace.server.object_store.retrying import CLOSE_S_MAX, PAUSE_S_MAX
from tests.support.clock import HastyClock, ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.waiting import at_once

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
@pytest.mark.parametrize("is_open", [False, True])
async def test_a_full_store_is_not_asked_again_and_an_attempt_before_stays_open(*, is_open: bool) -> None:
    """Behaviour 103: the caller waits for room, or does without."""
    store = MemoryObjectStore()
    store.quota_bytes = 0
    faulty = FaultyStore(store)
    if is_open:
        faulty.fail("create", Fault.UNAVAILABLE)
    with pytest.raises(StoreFullError) as caught:
        await RetryingStore(faulty, OPTIONS, clock=HastyClock()).create("a", [b"abc"])
    assert caught.value.changed_nothing is not is_open
    assert faulty.calls == {"create": 1 + is_open}


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
    with pytest.raises(StoreUnavailableError, match="closed before it answered") as caught:
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


# --- hedged creates ---


class HeldStore(MemoryObjectStore):
    """A store whose creates wait, once they are held, until the test says what becomes of each."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[asyncio.Future[None]] | None = None

    def hold(self) -> list[asyncio.Future[None]]:
        """Hold creates; return the list of those that wait, and that have waited."""
        self._waiting = []
        return self._waiting

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        if self._waiting is not None:
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
        return await super().create(key, pieces)


class Hedging:
    """A store that hedges creates, over one with faults; it knows how long a put takes: no time."""

    def __init__(self) -> None:
        self.memory = HeldStore()
        self.faulty = FaultyStore(self.memory)
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.plain = RetryingStore(
            self.faulty, OPTIONS, clock=self.clock, monitor=StoreMonitor(self.metrics, self.clock), random=Random(7)
        )
        self.store = self.plain.with_hedged_creates()

    async def warm(self, *, hedges_count: int) -> None:
        """Make as many creates as so many hedges need."""
        for number in range(hedges_count * REQUESTS_PER_HEDGE):
            await self.store.create(f"warm/{number}", [b""])
        self.faulty.calls.clear()
        self.memory.objects.clear()

    async def create(self, *faults: Fault | None, key: str = "a") -> "asyncio.Task[str]":
        """Begin a create, each attempt of which meets a fault, and wait until it is slow."""
        self.faulty.fail("create", *faults)
        asked = self.faulty.calls.get("create", 0)
        task = asyncio.create_task(self.store.create(key, [b"abc"]))
        await at_once(lambda: self.faulty.calls.get("create", 0) > asked)
        await self.clock.advance(HEDGE_S_MIN)
        return task

    @property
    def hedges(self) -> Mapping[str, int]:
        return self.metrics.store_hedges_total.counts()


@pytest.fixture
def hedging() -> Hedging:
    return Hedging()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "faults",
    [
        [Fault.STALL, None],
        [Fault.SLOW_ANSWER, None],  # both happen: the second one finds its own bytes
        [Fault.STALL, Fault.LOST_ANSWER, None],
    ],
)
async def test_a_create_that_stalls_is_overtaken_by_its_hedge(hedging: Hedging, faults: list[Fault | None]) -> None:
    """Behaviour 95: of the first answers that prove that the object is stored, one counts."""
    await hedging.warm(hedges_count=1)
    task = await hedging.create(*faults)
    if Fault.LOST_ANSWER in faults:  # then the first one is waited for
        await hedging.clock.advance(1.0)
        assert not task.done()
        hedging.faulty.release()

    await task

    assert hedging.memory.objects == {"a": b"abc"}
    assert hedging.faulty.calls["create"] == 2
    assert hedging.hedges == {"create": 1}
    await hedging.plain.close()
    assert hedging.memory.objects == {"a": b"abc"}


@pytest.mark.asyncio
async def test_a_first_create_that_fails_waits_for_its_hedge(hedging: Hedging) -> None:
    await hedging.warm(hedges_count=1)
    waiting = hedging.memory.hold()
    task = await hedging.create()
    waiting[0].set_exception(StoreUnavailableError("connection reset"))
    await hedging.clock.advance(1.0)
    assert not task.done()
    waiting[1].set_result(None)
    await task
    assert len(waiting) == 2


@pytest.mark.asyncio
async def test_a_hedge_that_meets_the_first_one_on_its_way_waits_for_it(hedging: Hedging) -> None:
    """S3 says 409 of two puts at once, and it arrives as if there were an object."""
    await hedging.warm(hedges_count=1)
    task = await hedging.create(Fault.STALL, Fault.CONFLICT)
    await hedging.clock.advance(1.0)
    assert not task.done()
    hedging.faulty.release()
    await task
    assert hedging.faulty.calls["create"] == 2


@pytest.mark.asyncio
async def test_a_hedge_that_finds_another_object_ends_the_create(hedging: Hedging) -> None:
    await hedging.warm(hedges_count=1)
    hedging.memory.objects["a"] = b"a fence"
    task = await hedging.create(Fault.STALL, None)
    with pytest.raises(ObjectExistsError):
        await task
    hedging.faulty.release()
    await hedging.plain.close()
    assert hedging.memory.objects == {"a": b"a fence"}


@pytest.mark.asyncio
async def test_a_create_has_one_hedge(hedging: Hedging) -> None:
    """Behaviour 95: also where both fail, and what is made after that is slow, too."""
    await hedging.warm(hedges_count=3)
    waiting = hedging.memory.hold()
    task = await hedging.create()
    for each in waiting:
        each.set_exception(StoreUnavailableError("connection reset"))
    await hedging.clock.advance(0.0)
    await hedging.clock.advance(1.0)
    await hedging.clock.advance(10.0)
    assert len(waiting) == 3
    waiting[2].set_result(None)
    await task
    assert hedging.hedges == {"create": 1}


@pytest.mark.asyncio
async def test_a_store_that_asks_to_slow_down_gets_no_hedge(hedging: Hedging) -> None:
    """Behaviour 92: a second request would be one more that it has to refuse."""
    await hedging.warm(hedges_count=1)
    hedging.faulty.fail("get", Fault.BUSY)
    asking = asyncio.create_task(hedging.plain.get("warm/1"))
    task = await hedging.create(Fault.STALL)
    await hedging.clock.advance(BUSY_S)
    asking.cancel()
    assert hedging.faulty.calls["create"] == 1
    hedging.faulty.release()
    await task
    assert hedging.hedges == {}


@pytest.mark.asyncio
async def test_hedges_are_few_and_none_is_made_unasked(hedging: Hedging) -> None:
    """Behaviour 95: one for 20 creates, and only where they are wanted."""
    await hedging.warm(hedges_count=1)
    await (await hedging.create(Fault.STALL, None))
    slow = await hedging.create(Fault.STALL, key="b")
    await hedging.clock.advance(10.0)
    hedging.faulty.fail("create", Fault.STALL)
    plain = asyncio.create_task(hedging.plain.create("c", [b"abc"]))
    await hedging.clock.advance(10.0)
    assert hedging.faulty.calls["create"] == 4
    hedging.faulty.release()
    await asyncio.gather(slow, plain)


@pytest.mark.asyncio
async def test_a_create_that_was_overtaken_may_come_late(hedging: Hedging) -> None:
    """It stores the same bytes once more if they were deleted meanwhile: who names objects is prepared for that."""
    await hedging.warm(hedges_count=1)
    await (await hedging.create(Fault.STALL, None))
    await hedging.faulty.land()
    assert hedging.memory.objects == {"a": b"abc"}

    await hedging.warm(hedges_count=1)
    await (await hedging.create(Fault.STALL, None))
    await hedging.plain.delete(["a"])
    await hedging.faulty.land()
    assert hedging.memory.objects == {"a": b"abc"}
