"""The contract of `ObjectStore`, held against every implementation."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StoreBusyError,
    StoreUnavailableError,
)
from millrace.server.object_store import ObjectInfo, ObjectStore
from millrace.server.object_store.options import ObjectStoreOptions
from millrace.server.object_store.retrying import RetryingStore
from tests.support.clock import HastyClock, ManualClock
from tests.support.faulty_store import Fault, FaultyStore, faults_with_a_known_outcome, random_faults
from tests.support.object_store import MemoryObjectStore, cloud
from tests.support.s3 import HttpFault, MotoServer, S3Server
from tests.support.waiting import at_once

KEY = "c0000/segments/07/chunk-1.chunk"
RIVALS_COUNT = 20
SEED = 7
SEEDS_COUNT = 60


async def listed(store: ObjectStore, prefix: str = "", *, after: str = "") -> list[ObjectInfo]:
    return [info async for page in store.list(prefix, after=after) for info in page]


def retrying(store: ObjectStore, *, seed: int = 0) -> RetryingStore:
    """Return what a server has over a store; it never waits, and never gives up on one that answers now and then."""
    return RetryingStore(store, ObjectStoreOptions(patience_s=1e6), clock=HastyClock(), random=random.Random(seed))


@pytest_asyncio.fixture(params=["memory", "faulty", "moto", "versitygw"])
async def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectStore]:
    store: ObjectStore
    if request.param == "memory":
        store = MemoryObjectStore(page_size_max=5)
    elif request.param == "faulty":
        store = retrying(FaultyStore(MemoryObjectStore(page_size_max=5), faults_with_a_known_outcome(SEED)))
    else:
        server: S3Server = request.getfixturevalue(request.param)
        store = await cloud(server.make_bucket(), monkeypatch)
    yield store
    await store.close()


@pytest.mark.asyncio
async def test_a_created_object_is_read_whole_and_in_any_part(store: ObjectStore) -> None:
    tag = await store.create(KEY, [b"abc", bytearray(b"def"), memoryview(b"-ghi-")[1:4]])

    found = await store.get(KEY)
    assert (found.content, found.tag) == (b"abcdefghi", tag)
    assert await store.size(KEY) == 9
    assert await store.read(KEY, offset=0, size=9) == b"abcdefghi"
    assert await store.read(KEY, offset=2, size=3) == b"cde"
    assert await store.read(KEY, offset=7, size=100) == b"hi"
    assert await store.read(KEY, offset=9, size=100) == b""
    assert await store.read(KEY, offset=100, size=1) == b""
    assert await store.read(KEY, offset=0, size=0) == b""


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [0, 1, 6 << 20], ids=["empty", "a byte", "above the bound of parts"])
async def test_an_object_may_have_any_size(store: ObjectStore, size: int) -> None:
    content = (b"0123456789abcde\n" * (size // 16 + 1))[:size]

    await store.create(KEY, [content[: size // 3], content[size // 3 :]])

    assert (await store.get(KEY)).content == content
    assert await listed(store) == [ObjectInfo(KEY, size)]


@pytest.mark.asyncio
async def test_a_create_never_replaces_another_object(store: ObjectStore) -> None:
    await store.create(KEY, [b"abc"])

    with pytest.raises(ObjectExistsError):
        await store.create(KEY, [b"abd"])

    assert (await store.get(KEY)).content == b"abc"


@pytest.mark.asyncio
async def test_a_replace_needs_the_tag_of_what_is_there(store: ObjectStore) -> None:
    first = await store.create(KEY, [b"one"])
    second = await store.replace(KEY, b"two", tag=first)

    with pytest.raises(ObjectChangedError):
        await store.replace(KEY, b"three", tag=first)

    found = await store.get(KEY)
    assert (found.content, found.tag) == (b"two", second)
    await store.replace(KEY, memoryview(b"three"), tag=second)
    assert (await store.get(KEY)).content == b"three"


@pytest.mark.asyncio
async def test_a_replace_of_nothing_is_refused(store: ObjectStore) -> None:
    tag = await store.create(KEY, [b"one"])
    await store.delete([KEY])

    with pytest.raises(ObjectChangedError):
        await store.replace(KEY, b"two", tag=tag)

    assert await listed(store) == []


@pytest.mark.asyncio
async def test_of_creates_at_the_same_time_one_succeeds(store: ObjectStore) -> None:
    contents = [b"creator %d" % number for number in range(RIVALS_COUNT)]

    answers = await asyncio.gather(*[store.create(KEY, [each]) for each in contents], return_exceptions=True)

    winners = [content for content, answer in zip(contents, answers, strict=True) if isinstance(answer, str)]
    assert winners == [(await store.get(KEY)).content]
    assert sum(isinstance(answer, ObjectExistsError) for answer in answers) == RIVALS_COUNT - 1


@pytest.mark.asyncio
async def test_of_replaces_at_the_same_time_one_succeeds(store: ObjectStore) -> None:
    tag = await store.create(KEY, [b"first"])
    contents = [b"rival %d" % number for number in range(RIVALS_COUNT)]

    answers = await asyncio.gather(*[store.replace(KEY, each, tag=tag) for each in contents], return_exceptions=True)

    winners = [content for content, answer in zip(contents, answers, strict=True) if isinstance(answer, str)]
    assert winners == [(await store.get(KEY)).content]
    assert sum(isinstance(answer, ObjectChangedError) for answer in answers) == RIVALS_COUNT - 1


@pytest.mark.asyncio
async def test_what_is_not_there_is_not_found(store: ObjectStore) -> None:
    for reading in (store.get(KEY), store.read(KEY, offset=0, size=1), store.size(KEY)):
        with pytest.raises(ObjectNotFoundError):
            await reading


@pytest.mark.asyncio
async def test_objects_are_listed_by_any_prefix_and_in_order(store: ObjectStore) -> None:
    keys = ["a-b/1.x", "a/1.x", "a/10.x", "a/2.x", "a/b/c/1.x", "ab/1.x", "b.x"]
    for size, key in enumerate(reversed(keys)):
        await store.create(key, [bytes(size)])

    assert await listed(store) == [ObjectInfo(key, len(keys) - 1 - place) for place, key in enumerate(keys)]
    assert [info.key for info in await listed(store, "a/")] == keys[1:5]
    assert [info.key for info in await listed(store, "a/1")] == keys[1:3]
    assert [info.key for info in await listed(store, "a")] == keys[:6]
    assert [info.key for info in await listed(store, "a/1.x")] == keys[1:2]
    assert await listed(store, "c/") == []
    assert await listed(store, "a/1.x/") == []


@pytest.mark.asyncio
async def test_a_listing_continues_after_a_key(store: ObjectStore) -> None:
    keys = [f"log/{number:04d}" for number in range(20)]
    await asyncio.gather(*[store.create(key, [b"x"]) for key in [*keys, "lp/0000"]])

    assert [info.key for info in await listed(store, "log/", after=keys[7])] == keys[8:]
    assert [info.key for info in await listed(store, "log/", after="log/00075")] == keys[8:]
    assert [info.key for info in await listed(store, "log/", after="a")] == keys
    assert await listed(store, "log/", after=keys[-1]) == []


@pytest.mark.asyncio
async def test_a_listing_has_what_was_stored_and_deleted_before_it(store: ObjectStore) -> None:
    for number in range(10):
        await store.create(f"log/{number}", [b"x"])
        assert len(await listed(store, "log/")) == number + 1

    await store.delete(["log/3", "log/5"])

    assert [info.key for info in await listed(store)] == [f"log/{number}" for number in (0, 1, 2, 4, 6, 7, 8, 9)]


@pytest.mark.asyncio
async def test_deleting_what_is_not_there_is_a_success(store: ObjectStore) -> None:
    await store.create(KEY, [b"abc"])

    await store.delete(["log/1", KEY, "log/2"])
    await store.delete([KEY])
    await store.delete([])

    assert await listed(store) == []
    await store.create(KEY, [b"other"])
    assert (await store.get(KEY)).content == b"other"


@pytest.mark.asyncio
async def test_everything_may_run_at_once(store: ObjectStore) -> None:
    keys = [f"segments/{number % 4:02x}/{number}.chunk" for number in range(40)]

    await asyncio.gather(*[store.create(key, [key.encode()]) for key in keys])
    contents = await asyncio.gather(*[store.read(key, offset=0, size=99) for key in keys])

    assert contents == [key.encode() for key in keys]
    assert len(await listed(store)) == len(keys)
    await asyncio.gather(*[store.delete(keys[place : place + 8]) for place in range(0, len(keys), 8)])
    assert await listed(store) == []


@pytest.mark.asyncio
async def test_a_cancelled_create_happens_wholly_or_not_at_all(store: ObjectStore) -> None:
    create = asyncio.ensure_future(store.create(KEY, [bytes(100_000)]))
    await asyncio.sleep(0)
    create.cancel()
    await asyncio.wait([create])

    with suppress(ObjectExistsError):
        await store.create(KEY, [bytes(100_000)])

    assert await listed(store) == [ObjectInfo(KEY, 100_000)]
    assert (await store.get(KEY)).content == bytes(100_000)


# --- whatever happens on the way ---


async def race(work: Iterable[Coroutine[Any, Any, str]]) -> list[str | StorageError]:
    """Return what each comes to: a tag, or what it was told."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, str | StorageError), repr(answer)
    return [answer for answer in answers if isinstance(answer, str | StorageError)]


@pytest.mark.asyncio
async def test_one_creator_wins_and_each_learns_the_truth_whatever_happens() -> None:
    """Behaviour 92: lost answers, 409, 503, late puts: none of them makes two winners, or one who does not know it."""
    met: set[Fault] = set()
    for seed in range(SEEDS_COUNT):
        memory = MemoryObjectStore()
        faulty = [FaultyStore(memory, random_faults(seed * 10 + number, rate=0.4)) for number in range(5)]
        clients = [retrying(each, seed=seed) for each in faulty]
        contents = [b"creator %d" % number for number in range(len(clients))]

        answers = await race(client.create(KEY, [each]) for client, each in zip(clients, contents, strict=True))
        for client in clients:
            await client.close()

        winners = [content for content, answer in zip(contents, answers, strict=True) if isinstance(answer, str)]
        losers = [answer for answer in answers if isinstance(answer, ObjectExistsError)]
        assert winners == [memory.objects[KEY]], f"seed {seed}"
        assert len(losers) == len(clients) - 1, f"seed {seed}: {answers}"
        met |= {fault for each in faulty for _, fault in each.met}
    assert met >= {Fault.LOST_ANSWER, Fault.LATE, Fault.CONFLICT, Fault.BUSY, Fault.UNAVAILABLE}


@pytest.mark.asyncio
async def test_a_list_changed_by_many_has_each_change_once_whatever_happens() -> None:
    """Behaviour 92: compare-and-swap loses no change that was acknowledged, and makes none that was refused."""
    open_count = 0
    for seed in range(SEEDS_COUNT):
        memory = MemoryObjectStore()
        faulty = [FaultyStore(memory, random_faults(seed * 10 + number, rate=0.3)) for number in range(3)]
        clients = [retrying(each, seed=seed) for each in faulty]
        await memory.create(KEY, [b"[]"])
        told: dict[str, str] = {}

        async def change(client: RetryingStore, name: str, told: dict[str, str]) -> None:
            for number in range(4):
                mine = f"{name}-{number}"
                found = await client.get(KEY)
                content = json.dumps([*json.loads(found.content), mine]).encode()
                try:
                    await client.replace(KEY, content, tag=found.tag)
                    told[mine] = "done"
                except ObjectChangedError:
                    told[mine] = "refused"
                except StoreUnavailableError:
                    told[mine] = "open"

        await asyncio.gather(*[change(client, str(number), told) for number, client in enumerate(clients)])
        for client in clients:
            await client.close()

        stored = json.loads(memory.objects[KEY])
        assert len(stored) == len(set(stored)), f"seed {seed}: doubled in {stored}"
        done = {name for name, outcome in told.items() if outcome == "done"}
        refused = {name for name, outcome in told.items() if outcome == "refused"}
        assert done <= set(stored), f"seed {seed}: lost {done - set(stored)}"
        assert not refused & set(stored), f"seed {seed}: refused, and there: {refused & set(stored)}"
        open_count += list(told.values()).count("open")
    assert open_count, "no schedule had an outcome that cannot be told"


@pytest.mark.asyncio
async def test_what_is_read_and_listed_is_whole_whatever_happens() -> None:
    """Behaviour 92: cut bodies and short listings are read again."""
    contents = {f"log/{number:02d}": b"%d" % number * 50 for number in range(30)}
    met: set[Fault] = set()
    for seed in range(SEEDS_COUNT // 5):
        memory = MemoryObjectStore(page_size_max=4)
        memory.objects.update(contents)
        faulty = FaultyStore(memory, random_faults(seed, rate=0.4))
        client = retrying(faulty, seed=seed)

        assert [info.key for info in await listed(client, "log/")] == [*contents]
        for key, content in contents.items():
            assert await client.read(key, offset=3, size=40) == content[3:43]
            assert (await client.get(key)).content == content
        await client.close()
        met |= {fault for _, fault in faulty.met}
    assert met == {Fault.CUT, Fault.SHORT_LIST, Fault.BUSY, Fault.UNAVAILABLE}


@pytest.mark.asyncio
async def test_a_storm_of_503_is_never_fatal_and_each_call_ends() -> None:
    """Behaviour 92: a store that asks to come back, or is gone, is told after a while; who asks again gets there."""
    memory = MemoryObjectStore()
    faulty = FaultyStore(memory)
    client = RetryingStore(faulty, ObjectStoreOptions(patience_s=30.0), clock=HastyClock(), random=random.Random(SEED))
    faulty.fail("create", *[Fault.BUSY] * 1000, Fault.UNAVAILABLE)

    told_count = 0
    while KEY not in memory.objects:
        before = faulty.calls.get("create", 0)
        try:
            await client.create(KEY, [b"abc"])
        except StoreBusyError:
            told_count += 1
        assert faulty.calls["create"] - before < 50

    assert memory.objects == {KEY: b"abc"}
    assert told_count > 10
    faulty.fail("create", *[Fault.UNAVAILABLE] * 1000)
    with pytest.raises(StoreUnavailableError):
        await client.create("log/2", [b"abc"])
    assert faulty.calls["create"] < 1100
    await client.close()


@pytest.mark.asyncio
async def test_a_cancelled_put_is_still_brought_to_its_end() -> None:
    memory = MemoryObjectStore()
    faulty = FaultyStore(memory)
    client = RetryingStore(faulty, clock=ManualClock())
    faulty.fail("create", Fault.STALL)
    create = asyncio.ensure_future(client.create(KEY, [b"abc"]))
    await at_once(lambda: faulty.stalled_count)
    create.cancel()
    await asyncio.wait([create])

    faulty.release()
    await client.close()

    assert create.cancelled()
    assert memory.objects == {KEY: b"abc"}


@pytest.mark.asyncio
async def test_faults_on_the_wire_are_what_they_are_taken_for(
    moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 92, over HTTP: a lost answer leaves the outcome open, 503 says come back, half a body is no body."""
    store = await cloud(moto.make_bucket(), monkeypatch)
    moto.gate.fail("PUT", HttpFault.UNAVAILABLE, HttpFault.CONFLICT, HttpFault.LOST_ANSWER)

    with pytest.raises(StoreBusyError):
        await store.create(KEY, [b"abc"])
    with pytest.raises(StoreUnavailableError):
        await store.create(KEY, [b"abc"])
    assert await listed(store) == []
    with pytest.raises(StoreUnavailableError):
        await store.create(KEY, [b"abc"])
    assert await listed(store) == [ObjectInfo(KEY, 3)]
    moto.gate.fail("GET", HttpFault.CUT_BODY, HttpFault.CUT_BODY)
    for reading in (store.get(KEY), store.read(KEY, offset=0, size=3)):
        with pytest.raises(StoreUnavailableError):
            await reading
    await store.close()


@pytest.mark.asyncio
async def test_over_the_wire_each_learns_the_truth_whatever_happens(
    moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 92, over HTTP."""
    client = retrying(await cloud(moto.make_bucket(), monkeypatch))
    moto.gate.fail("PUT", HttpFault.LOST_ANSWER, HttpFault.UNAVAILABLE, HttpFault.CONFLICT, HttpFault.LOST_ANSWER)
    moto.gate.fail("GET", HttpFault.UNAVAILABLE, HttpFault.CUT_BODY)

    tag = await client.create(KEY, [b"one"])
    with pytest.raises(ObjectExistsError):
        await client.create(KEY, [b"another"])
    await client.replace(KEY, b"two", tag=tag)

    assert (await client.get(KEY)).content == b"two"
    assert len(moto.gate.met) >= 5
    await client.close()
