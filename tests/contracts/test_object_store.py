"""The contract of `ObjectStore`, held against every implementation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from millrace.server.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from millrace.server.object_store import ObjectInfo, ObjectStore
from tests.support.object_store import MemoryObjectStore

KEY = "c0000/segments/07/chunk-1.chunk"
RIVALS_COUNT = 20


async def listed(store: ObjectStore, prefix: str = "", *, after: str = "") -> list[ObjectInfo]:
    return [info async for page in store.list(prefix, after=after) for info in page]


@pytest_asyncio.fixture(params=["memory"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ObjectStore]:
    store = MemoryObjectStore()
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
