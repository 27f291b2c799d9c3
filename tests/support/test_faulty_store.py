"""The faults that tests rely on do happen."""

import asyncio
from contextlib import suppress

import pytest

from millrace.server.errors import ObjectChangedError, ObjectExistsError, StoreUnavailableError
from tests.support.faulty_store import Cheat, CheatingStore, Fault, FaultyStore, random_faults
from tests.support.object_store import MemoryObjectStore, tag_of
from tests.support.tables import table
from tests.support.waiting import at_once

KEY = "log/1"


@pytest.fixture
def memory() -> MemoryObjectStore:
    return MemoryObjectStore(page_size_max=2)


@pytest.fixture
def faulty(memory: MemoryObjectStore) -> FaultyStore:
    return FaultyStore(memory)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "at_once_has", "later_has"),
    [
        (Fault.UNAVAILABLE, False, False),
        (Fault.BUSY, False, False),
        (Fault.LOST_ANSWER, True, True),
        (Fault.LATE, False, True),
    ],
)
async def test_the_outcome_of_a_put_is_open(
    memory: MemoryObjectStore, faulty: FaultyStore, fault: Fault, at_once_has: bool, later_has: bool
) -> None:
    faulty.fail("create", fault)

    with pytest.raises(StoreUnavailableError):
        await faulty.create(KEY, [b"ab", b"c"])

    assert (KEY in memory.objects) == at_once_has
    await faulty.land()
    assert (KEY in memory.objects) == later_has
    assert memory.objects.get(KEY, b"abc") == b"abc"
    assert faulty.met == [("create", fault)]


@pytest.mark.asyncio
async def test_what_a_seed_lets_come_late_happens_soon_and_is_refused_like_any_other(memory: MemoryObjectStore) -> None:
    faults = iter([Fault.LATE, Fault.LATE])
    faulty = FaultyStore(memory, lambda operation: next(faults, None))
    for content in (b"first", b"second"):
        with pytest.raises(StoreUnavailableError):
            await faulty.create(KEY, [content])

    for _ in range(3):
        await faulty.delete([])

    assert len(memory.objects) == 1
    with pytest.raises(ObjectExistsError):
        await faulty.create(KEY, [b"third"])


@pytest.mark.asyncio
async def test_a_conflict_changes_nothing_and_arrives_as_if_somebody_were_first(
    memory: MemoryObjectStore, faulty: FaultyStore
) -> None:
    faulty.fail("create", Fault.CONFLICT)
    faulty.fail("replace", Fault.CONFLICT)

    with pytest.raises(ObjectExistsError):
        await faulty.create(KEY, [b"abc"])
    tag = await faulty.create(KEY, [b"abc"])
    with pytest.raises(ObjectChangedError):
        await faulty.replace(KEY, b"def", tag=tag)

    assert memory.objects == {KEY: b"abc"}


@pytest.mark.asyncio
async def test_a_stalled_call_happens_when_it_is_released(memory: MemoryObjectStore, faulty: FaultyStore) -> None:
    faulty.fail("create", Fault.STALL)
    create = asyncio.ensure_future(faulty.create(KEY, [b"abc"]))
    await at_once(lambda: faulty.stalled_count)
    assert not memory.objects

    faulty.release()

    assert await create == tag_of(b"abc")


@pytest.mark.asyncio
async def test_a_stalled_call_that_is_given_up_comes_late(memory: MemoryObjectStore, faulty: FaultyStore) -> None:
    faulty.fail("create", Fault.STALL)
    create = asyncio.ensure_future(faulty.create(KEY, [b"abc"]))
    await at_once(lambda: faulty.stalled_count)
    create.cancel()
    await asyncio.wait([create])
    assert not memory.objects

    await faulty.land()

    assert memory.objects == {KEY: b"abc"}


@pytest.mark.asyncio
async def test_a_slow_answer_comes_when_it_is_released(memory: MemoryObjectStore, faulty: FaultyStore) -> None:
    faulty.fail("create", Fault.SLOW_ANSWER)
    create = asyncio.ensure_future(faulty.create(KEY, [b"abc"]))
    await at_once(lambda: faulty.stalled_count)
    assert memory.objects == {KEY: b"abc"}

    faulty.release()

    assert await create == tag_of(b"abc")


@pytest.mark.asyncio
async def test_bodies_are_cut_and_listings_end_too_soon(memory: MemoryObjectStore, faulty: FaultyStore) -> None:
    for number in range(5):
        await memory.create(f"log/{number}", [b"0123456789"])
    faulty.fail("read", Fault.CUT)
    faulty.fail("list", Fault.SHORT_LIST)

    assert await faulty.read(KEY, offset=2, size=8) == b"2345"
    pages = faulty.list("log/")
    assert [info.key for info in await anext(pages)] == ["log/0", "log/1"]
    with pytest.raises(StoreUnavailableError):
        await anext(pages)
    assert await faulty.read(KEY, offset=2, size=8) == b"23456789"


@pytest.mark.asyncio
async def test_a_seed_brings_the_same_faults_again(capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for _ in range(2):
        faulty = FaultyStore(MemoryObjectStore(), random_faults(7, rate=0.5))
        for number in range(100):
            with suppress(StoreUnavailableError, ObjectExistsError):
                await faulty.create(f"log/{number}", [b"x"])
        runs.append(faulty.met)

    assert runs[0] == runs[1]
    assert {fault for _, fault in runs[0]} >= {Fault.LOST_ANSWER, Fault.LATE, Fault.CONFLICT}
    assert "seed 7" in capsys.readouterr().out


@pytest.mark.asyncio
@table("cheat", Cheat)
async def test_a_cheat_breaks_its_promise_and_no_other(cheat: Cheat) -> None:
    store = CheatingStore(cheat)
    creates = await asyncio.gather(*[store.create(KEY, [b"%d" % each]) for each in range(9)], return_exceptions=True)
    tag = tag_of(store.objects[KEY])
    replaces = await asyncio.gather(
        *[store.replace(KEY, b"new %d" % each, tag=tag) for each in range(9)], return_exceptions=True
    )
    listed = [info.key async for page in store.list() for info in page]

    broken = {
        Cheat.IGNORES_CREATE: sum(isinstance(each, str) for each in creates) == 9,
        Cheat.CREATES_WITHOUT_LOCK: sum(isinstance(each, str) for each in creates) > 1,
        Cheat.IGNORES_TAG: sum(isinstance(each, str) for each in replaces) == 9,
        Cheat.REPLACES_WITHOUT_LOCK: sum(isinstance(each, str) for each in replaces) > 1,
        Cheat.LISTS_LATE: listed == [],
    }
    twins = {
        Cheat.IGNORES_CREATE: {Cheat.CREATES_WITHOUT_LOCK},
        Cheat.IGNORES_TAG: {Cheat.REPLACES_WITHOUT_LOCK},
        Cheat.CREATES_WITHOUT_LOCK: {Cheat.IGNORES_CREATE},
        Cheat.REPLACES_WITHOUT_LOCK: {Cheat.IGNORES_TAG},
    }
    assert broken[cheat]
    assert {each for each, is_broken in broken.items() if is_broken} <= {cheat} | twins.get(cheat, set())
