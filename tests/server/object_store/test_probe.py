"""A store that only pretends is found out; an honest one is not, however badly it answers."""

import asyncio
import random

import pytest

from millrace.server.errors import StoreUnavailableError
from millrace.server.object_store import ObjectStoreOptions, RetryingStore, probe
from millrace.server.object_store.probe import LEFT_S
from tests.support.clock import HastyClock, ManualClock
from tests.support.faulty_store import Cheat, CheatingStore, Fault, FaultyStore, faults_with_a_known_outcome
from tests.support.object_store import MemoryObjectStore
from tests.support.tables import table
from tests.support.waiting import at_once

WORDS = {
    Cheat.IGNORES_CREATE: "accepted 20 of 20 concurrent puts that create one object",
    Cheat.CREATES_WITHOUT_LOCK: "concurrent puts that create one object; exactly 1 may succeed",
    Cheat.IGNORES_TAG: "accepted 20 of 20 concurrent puts that replace one object",
    Cheat.REPLACES_WITHOUT_LOCK: "concurrent puts that replace one object; exactly 1 may succeed",
    Cheat.LISTS_LATE: "returned a listing that differs from the stored objects",
}


@pytest.mark.asyncio
@table("cheat", Cheat)
async def test_a_store_that_pretends_is_told_in_a_sentence(cheat: Cheat) -> None:
    """Behaviour 93: it accepts the condition and ignores it, or checks it without a lock, or lists what was."""
    store = CheatingStore(cheat)

    fault = (await probe(RetryingStore(store, clock=HastyClock()))).fault

    assert WORDS[cheat] in fault
    assert "\n" not in fault


@pytest.mark.asyncio
async def test_an_honest_store_passes_and_keeps_nothing() -> None:
    store = MemoryObjectStore(page_size_max=1)

    honesty = await probe(RetryingStore(store))

    assert (honesty.created, honesty.replaced, honesty.fault) == (1, 1, "")
    assert not store.objects


@pytest.mark.asyncio
async def test_what_a_killed_probe_left_is_deleted_by_one_a_day_later() -> None:
    """Behaviour 93: and nothing else is: another probe may be under way, and what is not of a probe is not ours."""
    clock = ManualClock()
    memory = MemoryObjectStore(page_size_max=2)
    killed = asyncio.create_task(probe(RetryingStore(memory), clock=clock))
    await at_once(lambda: memory.objects)
    killed.cancel()
    left = dict(memory.objects)
    await asyncio.wait([killed])
    memory.objects.update(left | {"probe/other": b"", "probe": b"", "c0000/a.chunk": b""})
    clock.move(LEFT_S - 1.0)
    await probe(RetryingStore(memory), clock=clock)
    assert left.items() <= memory.objects.items()

    clock.move(1.0)
    await probe(RetryingStore(memory), clock=clock)

    assert [*memory.objects] == ["c0000/a.chunk", "probe", "probe/other"]


@pytest.mark.asyncio
async def test_faults_on_the_way_are_no_dishonesty() -> None:
    """Behaviour 93: it is the store that is judged."""
    for seed in range(10):
        memory = MemoryObjectStore()
        faulty = FaultyStore(memory, faults_with_a_known_outcome(seed))
        options = ObjectStoreOptions(patience_s=1e6)

        honesty = await probe(RetryingStore(faulty, options, clock=HastyClock(), random=random.Random(seed)))

        assert honesty.fault == ""
        assert not memory.objects


@pytest.mark.asyncio
@pytest.mark.parametrize("patience_s", [0.0, 1e6])
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.UNAVAILABLE])
async def test_a_put_with_an_unknown_outcome_is_judged_by_what_is_there(fault: Fault, patience_s: float) -> None:
    """Behaviour 93: a put that finds its own bytes has won, and a lost answer does not keep a server from its start."""
    memory = MemoryObjectStore()
    faulty = FaultyStore(memory)
    faulty.fail("create", fault, fault)
    faulty.fail("replace", fault, fault, *[None] * 18, fault)

    honesty = await probe(RetryingStore(faulty, ObjectStoreOptions(patience_s=patience_s), clock=HastyClock()))

    assert honesty.fault == ""
    assert not memory.objects


@pytest.mark.asyncio
async def test_a_store_that_answers_no_put_is_not_called_dishonest() -> None:
    faulty = FaultyStore(MemoryObjectStore(), lambda operation: Fault.UNAVAILABLE if operation == "replace" else None)

    with pytest.raises(StoreUnavailableError, match="nobody answers"):
        await probe(RetryingStore(faulty, ObjectStoreOptions(patience_s=0.0), clock=HastyClock()))


@pytest.mark.asyncio
async def test_the_reason_of_a_failure_is_told_and_what_is_left_is_deleted_once() -> None:
    memory = MemoryObjectStore()
    faulty = FaultyStore(memory)
    faulty.fail("get", *[Fault.UNAVAILABLE] * 1000)
    faulty.fail("delete", *[Fault.BUSY] * 1000)

    with pytest.raises(StoreUnavailableError, match="nobody answers"):
        await probe(RetryingStore(faulty, ObjectStoreOptions(patience_s=30.0), clock=HastyClock()))

    assert faulty.calls["delete"] == 1


@pytest.mark.asyncio
async def test_a_probe_that_fails_leaves_nothing_where_it_can() -> None:
    memory = MemoryObjectStore()
    faulty = FaultyStore(memory, lambda operation: Fault.UNAVAILABLE if operation == "get" else None)

    with pytest.raises(StoreUnavailableError):
        await probe(RetryingStore(faulty, ObjectStoreOptions(patience_s=30.0), clock=HastyClock()))

    assert not memory.objects
