"""Waiting for room in a full store."""

import asyncio

import pytest

from millrace.server.errors import LogClosedError, ObjectExistsError
from millrace.server.object_store.room import PAUSE_S_MAX, PAUSE_S_MIN, PatientPuts, when_there_is_room
from tests.support.clock import ManualClock
from tests.support.faulty_store import FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


def full_store() -> MemoryObjectStore:
    store = MemoryObjectStore()
    store.quota_bytes = 0
    return store


async def test_of_objects_that_wait_one_is_tried() -> None:
    """Behaviour 103: a full store gets few requests, and all objects as soon as it has room."""
    store, clock = full_store(), ManualClock()
    faulty = FaultyStore(store)
    puts = PatientPuts(faulty, clock=clock)
    waiting = [asyncio.create_task(puts.create(f"{number}", [b"x"])) for number in range(5)]
    await until(lambda: faulty.calls.get("create") == 6)
    for _ in range(4):
        await clock.advance(PAUSE_S_MAX)
    assert faulty.calls["create"] == 10
    assert puts.reason == "the object store is full: it is full (403 QuotaExceeded)"

    store.quota_bytes = None
    await clock.advance(PAUSE_S_MAX)
    await asyncio.gather(*waiting)
    assert (sorted(store.objects), puts.reason) == (["0", "1", "2", "3", "4"], "")


async def test_an_error_of_another_kind_ends_the_wait() -> None:
    store, clock = full_store(), ManualClock()
    puts = PatientPuts(store, clock=clock)
    waiting = asyncio.create_task(puts.create("a", [b"x"]))
    await until(lambda: bool(puts.reason))
    store.objects["a"] = b"another"
    await clock.advance(PAUSE_S_MIN)
    with pytest.raises(ObjectExistsError):
        await waiting
    assert puts.reason == ""


async def test_at_the_end_each_is_tried_once_more() -> None:
    store = full_store()
    puts = PatientPuts(store, clock=ManualClock())
    one, two = (asyncio.create_task(puts.create(each, [bytes(size)])) for each, size in (("a", 2), ("b", 1)))
    await until(lambda: bool(puts.reason))
    store.quota_bytes = 1
    puts.end()
    with pytest.raises(LogClosedError, match="closed while the object store is full"):
        await one
    await two
    with pytest.raises(LogClosedError):
        await puts.create("c", [b"x"])


async def test_a_start_goes_on_when_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 103: one line says why it waits."""
    store, clock = full_store(), ManualClock()
    starting = asyncio.create_task(when_there_is_room(lambda: store.create("lease", [b"x"]), name="lease", clock=clock))
    for _ in range(10):
        await clock.advance(PAUSE_S_MAX)
    assert not starting.done()
    store.quota_bytes = None
    await clock.advance(PAUSE_S_MAX)
    assert await starting
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "object store full, startup waits for space step=lease error=lease: it is full (403 QuotaExceeded)"
    ]
