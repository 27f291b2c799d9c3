"""The room that is kept for what frees room."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
import pytest_asyncio

from millrace.server.errors import StoreFullError
from millrace.server.object_store import RetryingStore
from millrace.server.object_store.reserve import PART_SIZE_BYTES, PAUSE_S_MAX, PAUSE_S_MIN, Reserve
from tests.support.clock import ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

SIZE_BYTES = 1000


class Kept:
    """A store with a reserve, whose task runs."""

    def __init__(self) -> None:
        self.bucket = MemoryObjectStore()
        self.faulty = FaultyStore(self.bucket)
        self.clock = ManualClock()
        plain = RetryingStore(self.faulty, clock=self.clock, random=Random(7))
        self.store = plain.with_reserve(SIZE_BYTES)
        assert self.store.reserve is not None
        self.reserve: Reserve = self.store.reserve
        self.task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self.task = asyncio.create_task(self.reserve.run())
        await until(lambda: self.is_held)

    @property
    def is_held(self) -> bool:
        return self.bucket.objects.get("reserve/00", b"") != b""

    async def fill(self) -> None:
        """Leave no room, and find that out."""
        self.bucket.quota_bytes = self.bucket.used_bytes
        with pytest.raises(StoreFullError):
            await self.store.create("record", [b"x"])


@pytest_asyncio.fixture
async def kept() -> AsyncIterator[Kept]:
    kept = Kept()
    yield kept
    if kept.task is not None:
        kept.task.cancel()
        await asyncio.wait([kept.task])
    await kept.store.close()


async def test_a_put_that_finds_no_room_has_that_of_the_reserve_when_it_is_made_again(kept: Kept) -> None:
    """Behaviour 103: what frees room can be stored."""
    await kept.begin()
    assert len(kept.bucket.objects["reserve/00"]) == SIZE_BYTES
    await kept.fill()
    assert not kept.is_held
    assert kept.reserve.reason == "the object store is full: it is full (403 QuotaExceeded)"
    await kept.store.create("record", [b"x"])


async def test_appends_are_refused_until_the_reserve_is_back(kept: Kept) -> None:
    """Behaviour 103."""
    await kept.begin()
    await kept.fill()
    await kept.store.create("record", [b"x"])
    for _ in range(10):
        await kept.clock.advance(PAUSE_S_MAX)
    assert not kept.is_held
    assert kept.reserve.reason
    await kept.store.delete(["record"])
    await kept.clock.advance(PAUSE_S_MAX)
    await until(lambda: not kept.reserve.reason)
    assert kept.is_held

    await kept.fill()
    assert not kept.is_held
    kept.bucket.quota_bytes = None
    await kept.clock.advance(PAUSE_S_MIN)
    await until(lambda: not kept.reserve.reason)
    assert kept.is_held


async def test_it_is_not_put_back_before_those_who_need_it_were_served(kept: Kept) -> None:
    await kept.begin()
    await kept.fill()
    for _ in range(3):
        await kept.clock.advance(PAUSE_S_MIN / 4)
    assert not kept.is_held


async def test_the_reserve_of_an_earlier_process_is_released_and_one_of_another_size_replaced(kept: Kept) -> None:
    kept.bucket.objects["reserve/00"] = bytes(SIZE_BYTES)
    await kept.fill()  # before the task runs: as a start does
    assert not kept.is_held
    kept.bucket.quota_bytes = None
    kept.bucket.objects["reserve/00"] = bytes(SIZE_BYTES - 1)
    kept.bucket.objects["reserve/01"] = bytes(SIZE_BYTES)
    kept.task = asyncio.create_task(kept.reserve.run())
    await until(lambda: not kept.reserve.reason)
    assert {key: len(content) for key, content in kept.bucket.objects.items()} == {"reserve/00": SIZE_BYTES}


async def test_one_that_is_there_is_not_stored_again(kept: Kept) -> None:
    kept.bucket.objects["reserve/00"] = bytes(SIZE_BYTES)
    await kept.begin()
    await kept.clock.advance(PAUSE_S_MAX)
    assert kept.faulty.calls == {"list": 1}


async def test_a_release_that_fails_is_made_again(kept: Kept) -> None:
    await kept.begin()
    kept.faulty.fail("delete", *[Fault.UNAVAILABLE] * 1)
    releasing = asyncio.create_task(kept.fill())
    await until(lambda: kept.faulty.calls.get("delete") == 1)
    await kept.clock.advance(PAUSE_S_MAX)
    await releasing
    assert not kept.is_held


async def test_a_large_one_has_several_objects() -> None:
    bucket = MemoryObjectStore()
    reserve = Reserve(bucket, size_bytes=2 * PART_SIZE_BYTES + 5, clock=ManualClock())
    task = asyncio.create_task(reserve.run())
    await until(lambda: len(bucket.objects) == 3)
    task.cancel()
    await asyncio.wait([task])
    assert [len(content) for content in bucket.objects.values()] == [PART_SIZE_BYTES, PART_SIZE_BYTES, 5]
