"""The contract of `ChunkStorage`, held against every implementation."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from millrace.model.checksum import Buffer
from millrace.server.errors import ChunkExistsError, ChunkNotFoundError, InvalidArgumentError, NoSpaceError
from millrace.server.host.files import OsFileSystem
from millrace.server.object_store import ObjectStore, ObjectStoreOptions, RetryingStore
from millrace.server.tier2 import ChunkInfo, ChunkStorage, LocalStorage, ObjectStorage, ScopedStorage, Tier2Options
from tests.support.clock import HastyClock
from tests.support.faulty_store import RANDOM_FAULTS, Fault, FaultyStore, random_faults
from tests.support.files import MemoryFileSystem
from tests.support.object_store import MemoryObjectStore, cloud
from tests.support.s3 import S3Server
from tests.support.storage import MemoryStorage
from tests.support.waiting import at_once

SEED = 7
SEEDS_COUNT = 10
NAME = "segments/07/chunk-1.chunk"


def memory(_folder: Path) -> ChunkStorage:
    return MemoryStorage()


def local(folder: Path) -> ChunkStorage:
    return LocalStorage(OsFileSystem(), folder / "tier2", Tier2Options())


def local_in_memory(_folder: Path) -> ChunkStorage:
    return LocalStorage(MemoryFileSystem(), Path("/data/tier2"), Tier2Options())


def scoped(_folder: Path) -> ChunkStorage:
    return ScopedStorage(MemoryStorage(), "c0003/")


def over_objects(store: ObjectStore) -> ObjectStorage:
    """Return what a server has over a store; it never waits, and never gives up on one that answers now and then."""
    retrying = RetryingStore(store, ObjectStoreOptions(patience_s=1e6), clock=HastyClock(), random=random.Random(SEED))
    return ObjectStorage(retrying, puts_count_max=16)


def objects(_folder: Path) -> ChunkStorage:
    return over_objects(MemoryObjectStore(page_size_max=3))


def faulty_objects(_folder: Path) -> ChunkStorage:
    # A change that comes late may come after a chunk of the same name was deleted; what that means has a test below.
    faults = [fault for fault in RANDOM_FAULTS if fault is not Fault.LATE]
    return over_objects(FaultyStore(MemoryObjectStore(page_size_max=3), random_faults(SEED, rate=0.3, faults=faults)))


@pytest_asyncio.fixture(
    params=[memory, local, local_in_memory, scoped, objects, faulty_objects, "moto", "versitygw"],
    ids=lambda made: made if isinstance(made, str) else made.__name__,
)
async def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ChunkStorage]:
    storage: ChunkStorage
    if isinstance(request.param, str):
        server: S3Server = request.getfixturevalue(request.param)
        storage = over_objects(await cloud(server.make_bucket(), monkeypatch))
    else:
        make: Callable[[Path], ChunkStorage] = request.param
        storage = make(tmp_path)
    yield storage
    await storage.close()


@pytest.mark.asyncio
async def test_a_published_chunk_is_read_in_any_part(storage: ChunkStorage) -> None:
    await storage.publish(NAME, [b"abc", bytearray(b"def"), memoryview(b"-ghi-")[1:4]])

    assert await storage.read(NAME, offset=0, size=9) == b"abcdefghi"
    assert await storage.read(NAME, offset=2, size=3) == b"cde"
    assert await storage.read(NAME, offset=7, size=100) == b"hi"
    assert await storage.read(NAME, offset=9, size=100) == b""
    assert await storage.read(NAME, offset=0, size=0) == b""


@pytest.mark.asyncio
async def test_many_pieces_are_one_chunk(storage: ChunkStorage) -> None:
    pieces = [b"%05d" % i for i in range(5000)]

    await storage.publish(NAME, pieces)

    assert await storage.read(NAME, offset=0, size=30_000) == b"".join(pieces)


@pytest.mark.asyncio
async def test_publishing_again_is_a_success_without_effect(storage: ChunkStorage) -> None:
    """Behaviour 46: a publish repeated after a crash stores no byte twice."""
    await storage.publish(NAME, [b"abc"])
    await storage.publish(NAME, [b"abc"])

    assert await storage.list() == [ChunkInfo(NAME, 3)]


@pytest.mark.asyncio
@pytest.mark.parametrize("pieces", [[b"abcd"], [b"ab"], [b"a", memoryview(b"bd")]], ids=["longer", "shorter", "other"])
async def test_another_chunk_is_never_replaced_nor_taken_for_it(storage: ChunkStorage, pieces: list[Buffer]) -> None:
    """Behaviour 81: also where it has the same size."""
    await storage.publish(NAME, [b"abc"])

    with pytest.raises(ChunkExistsError):
        await storage.publish(NAME, pieces)

    assert await storage.read(NAME, offset=0, size=9) == b"abc"


@pytest.mark.asyncio
async def test_chunks_are_listed_by_prefix_and_in_order(storage: ChunkStorage) -> None:
    names = [
        "segments/01/a-1.chunk",
        "segments/01/a-2.chunk",
        "segments/01/ab.chunk",
        "segments/02/a-1.chunk",
        "z.chunk",
    ]
    for size, name in enumerate(reversed(names)):
        await storage.publish(name, [bytes(size)])

    assert [info.name for info in await storage.list()] == names
    assert [info.size for info in await storage.list()] == [4, 3, 2, 1, 0]
    assert [info.name for info in await storage.list("segments/01/a-")] == names[:2]
    assert [info.name for info in await storage.list("segments/01/")] == names[:3]
    assert [info.name for info in await storage.list("segments/0")] == names[:4]
    assert [info.name for info in await storage.list("segments")] == names[:4]
    assert await storage.list("segments/03/") == []
    assert await storage.list("none/at/all") == []


@pytest.mark.asyncio
async def test_an_empty_storage_lists_nothing(storage: ChunkStorage) -> None:
    assert await storage.list() == []


@pytest.mark.asyncio
async def test_a_deleted_chunk_is_not_found_and_deleting_it_again_is_fine(storage: ChunkStorage) -> None:
    await storage.publish(NAME, [b"abc"])
    await storage.delete(NAME)
    await storage.delete(NAME)

    assert await storage.list() == []
    with pytest.raises(ChunkNotFoundError):
        await storage.read(NAME, offset=0, size=1)
    await storage.publish(NAME, [b"other"])
    assert await storage.read(NAME, offset=0, size=9) == b"other"


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["", "../a.chunk", "/etc/a.chunk", "a", "a/../../b.chunk", "A.chunk", "a\0.chunk"])
async def test_a_name_outside_the_rule_is_refused_everywhere(storage: ChunkStorage, name: str) -> None:
    """Behaviour 52: names never become paths."""
    with pytest.raises(InvalidArgumentError):
        await storage.publish(name, [b"abc"])
    with pytest.raises(InvalidArgumentError):
        await storage.read(name, offset=0, size=1)
    with pytest.raises(InvalidArgumentError):
        await storage.delete(name)
    with pytest.raises(InvalidArgumentError):
        await storage.list("../")
    assert await storage.list() == []


@pytest.mark.asyncio
async def test_everything_may_run_at_once(storage: ChunkStorage) -> None:
    names = [f"segments/{i % 4:02x}/c-{i}.chunk" for i in range(40)]

    await asyncio.gather(*[storage.publish(name, [name.encode()]) for name in names * 2])
    contents = await asyncio.gather(*[storage.read(name, offset=0, size=99) for name in names])

    assert contents == [name.encode() for name in names]
    assert len(await storage.list()) == len(names)


@pytest.mark.asyncio
async def test_a_cancelled_publish_happens_wholly_or_not_at_all(storage: ChunkStorage) -> None:
    publish = asyncio.ensure_future(storage.publish(NAME, [bytes(100_000)]))
    await asyncio.sleep(0)
    publish.cancel()
    await asyncio.wait([publish])

    await storage.publish(NAME, [bytes(100_000)])

    assert await storage.list() == [ChunkInfo(NAME, 100_000)]
    assert await storage.read(NAME, offset=0, size=100_000) == bytes(100_000)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_no_operation_blocks_the_loop(loop_never_blocks: None, tmp_path: Path) -> None:
    """Behaviour 18: a disk that is slow for one reader does not hold up the others."""
    storage = local(tmp_path)

    await storage.publish(NAME, [bytes(100_000)])
    await storage.read(NAME, offset=0, size=100_000)
    await storage.list()
    await storage.delete(NAME)
    await storage.close()


@pytest.mark.asyncio
async def test_a_full_storage_says_so_keeps_nothing_and_recovers() -> None:
    """Behaviour 44: disk full on tier 2: nothing lost, and it recovers by itself when space returns."""
    files = MemoryFileSystem(capacity_bytes=1000)
    folder = Path("/data/tier2")
    storages: list[ChunkStorage] = [
        MemoryStorage(capacity_bytes=1000),
        LocalStorage(files, folder, Tier2Options()),
        ScopedStorage(MemoryStorage(capacity_bytes=1000), "c0003/"),
    ]
    for storage in storages:
        await storage.publish(NAME, [bytes(600)])
        with pytest.raises(NoSpaceError) as caught:
            await storage.publish("b.chunk", [bytes(600)])

        assert caught.value.retriable
        assert await storage.list() == [ChunkInfo(NAME, 600)]
        assert await storage.read(NAME, offset=0, size=600) == bytes(600)
        await storage.delete(NAME)
        await storage.publish("b.chunk", [bytes(600)])
        assert await storage.list() == [ChunkInfo("b.chunk", 600)]
        await storage.close()
    assert files.list_directory(folder) == ["b.chunk", "segments"]


# --- over an object store ---


@pytest.mark.asyncio
async def test_chunks_are_published_once_and_read_whole_whatever_happens() -> None:
    """Behaviour 92: lost answers, 409, 503, late puts, cut bodies, short lists: none lost, none doubled, none fatal."""
    met: set[Fault] = set()
    for seed in range(SEEDS_COUNT):
        bucket = MemoryObjectStore(page_size_max=4)
        faulty = FaultyStore(bucket, random_faults(seed, rate=0.4))
        storage = over_objects(faulty)
        chunks = {f"segments/{number % 4:02x}/c-{number:02d}.chunk": b"%d " % number * 30 for number in range(16)}

        # Each twice, as after a crash.
        await asyncio.gather(*[storage.publish(*each) for each in [(n, [c]) for n, c in chunks.items()] * 2])
        refused = await asyncio.gather(
            *[storage.publish(name, [b"another"]) for name in chunks], return_exceptions=True
        )

        assert all(isinstance(each, ChunkExistsError) for each in refused)
        assert {info.name: info.size for info in await storage.list()} == {n: len(c) for n, c in chunks.items()}
        assert await asyncio.gather(*[storage.read(n, offset=1, size=60) for n in chunks]) == [
            content[1:61] for content in chunks.values()
        ]
        gone = [*chunks][::2]
        await asyncio.gather(*[storage.delete(name) for name in gone])
        assert [info.name for info in await storage.list()] == sorted({*chunks} - {*gone})
        await storage.close()
        assert {*bucket.objects} == {*chunks} - {*gone}, "what came late has brought nothing back"
        met |= {fault for _, fault in faulty.met}
    assert met == {*RANDOM_FAULTS}


@pytest.mark.asyncio
async def test_a_put_that_lands_after_its_chunk_was_deleted_is_an_orphan() -> None:
    """Behaviour 92: the name is never used for other bytes, so the late chunk can only be one that nobody refers to."""
    bucket = MemoryObjectStore()
    faulty = FaultyStore(bucket)
    storage = over_objects(faulty)
    faulty.fail("create", Fault.LATE)
    await storage.publish(NAME, [b"abc"])
    await storage.delete(NAME)

    assert await storage.list() == []
    await faulty.land()

    assert await storage.list() == [ChunkInfo(NAME, 3)]
    await storage.publish(NAME, [b"abc"])
    assert await storage.read(NAME, offset=0, size=9) == b"abc"
    await storage.close()


@pytest.mark.asyncio
async def test_objects_of_others_are_no_chunks() -> None:
    bucket = MemoryObjectStore()
    await bucket.create("cluster.json", [b"{}"])
    storage = over_objects(bucket)
    await storage.publish(NAME, [b"abc"])

    assert await storage.list() == [ChunkInfo(NAME, 3)]


@pytest.mark.asyncio
async def test_no_more_puts_than_said_are_under_way() -> None:
    faulty = FaultyStore(MemoryObjectStore())
    storage = ObjectStorage(RetryingStore(faulty, clock=HastyClock()), puts_count_max=3)
    faulty.fail("create", *[Fault.STALL] * 10)
    publishes = [asyncio.ensure_future(storage.publish(f"{number}.chunk", [b"x"])) for number in range(10)]
    await at_once(lambda: faulty.stalled_count == 3)
    for _ in range(20):
        await asyncio.sleep(0)

    assert faulty.stalled_count == 3
    faulty.release()
    await asyncio.gather(*publishes)
    await storage.close()
