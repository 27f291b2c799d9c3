"""Servers whose log is in a bucket that is full: its bytes are counted, those of the reserve included."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from millrace.server.container.flush.flusher import Flusher
from millrace.server.ownership import decode_manifest
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.support.folders import tmp_path
from tests.support.object_store import MemoryObjectStore
from tests.support.protocol import Peer
from tests.support.servers import BUSY, SMALL_WAL
from tests.support.sites import LEASE_S, RESERVE_BYTES, Site, pass_time

__all__ = ["tmp_path"]

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

REMOTE: Final = replace(SMALL_WAL, place="object", puts_per_s_max=0.0)
HISTORY_BYTES: Final = 600 * KIB
"""Above the reserve, which returns when the history is deleted."""
QUOTA_BYTES: Final = HISTORY_BYTES + RESERVE_BYTES
"""Exceeded by history, checkpoint copies and reserve together: no reserve fits before the history is deleted."""
MANIFEST: Final = "c0000/manifest"
FULL: Final = "the object store is full: it is full (403 QuotaExceeded)"


def site(folder: Path, store: MemoryObjectStore, *, standby: bool = False) -> Site:
    return Site(folder, store, wal=REMOTE, container=BUSY, standby=standby)


def has_reserve(store: MemoryObjectStore) -> bool:
    return "reserve/00" in store.objects


def bytes_in(store: MemoryObjectStore, part: str) -> int:
    return sum(len(content) for key, content in store.objects.items() if part in key)


@pytest_asyncio.fixture
async def one(tmp_path: Path) -> AsyncIterator[Site]:
    """A server that has flushed raw/a and has a reserve, in a bucket that is full from then on.

    The server recycles the log of raw/a first: its bytes would otherwise leave no space for records and copies, or
    their deletion would make space for the reserve during a test.
    """
    store = MemoryObjectStore()
    one = site(tmp_path / "one", store)
    await one.start()
    async with await Peer.connect(one.server.address) as peer:
        history, _ = [await peer.create_segment(name) for name in ("raw/a", "raw/b")]
        await peer.store(history, *[bytes(10 * KIB)] * (HISTORY_BYTES // (10 * KIB)))
    await one.until(lambda: bytes_in(store, "/segments/") > HISTORY_BYTES and has_reserve(store))
    flusher = one.server.opened.flusher
    await one.passing(recycle_log(flusher))
    await one.until(lambda: bytes_in(store, "/log/") < 10 * KIB and flusher._copying is None)
    store.quota_bytes = QUOTA_BYTES
    yield one
    store.quota_bytes = None
    if one.server.is_open:
        await one.stop()


async def recycle_log(flusher: Flusher) -> None:
    """Publish two copies of a checkpoint that has everything: the log is kept for the older of the two."""
    await flusher.flush()
    await flusher.checkpoint()
    for _ in range(2):
        await flusher.copy()


async def segment(peer: Peer, name: str) -> int:
    return (await peer.ask(m.GetSegment(0, name), m.SegmentInfo)).segment_id


async def fill(one: Site) -> None:
    """Find the bucket full."""
    async with await Peer.connect(one.server.address) as peer:
        events = await segment(peer, "raw/b")
        await peer.store(events, b"under way")
        assert await peer.settled(await peer.append(events, b"refused")) == [ErrorCode.NO_SPACE]
    assert one.server.health() == FULL


async def test_a_deletion_frees_the_room_for_appends(one: Site, tmp_path: Path) -> None:
    """Behaviour 103: the append under way is acknowledged, the next is refused, reads and deletions continue."""
    await fill(one)
    async with await Peer.connect(one.server.address) as peer:
        history, events = await segment(peer, "raw/a"), await segment(peer, "raw/b")
        assert len(await peer.read_all(history)) == HISTORY_BYTES
        await peer.ask(m.TruncateSegment(history, 590 * KIB), m.SegmentInfo)
        await one.until(lambda: not one.server.health())
        await peer.store(events, b", and after")
        assert await peer.read_all(events) == b"under way, and after"
        assert await peer.read_all(history, start=590 * KIB) == bytes(10 * KIB)
    assert has_reserve(one.store)  # type: ignore[arg-type]  # what it was given


async def test_appends_return_when_somebody_else_makes_room(one: Site) -> None:
    """Behaviour 103."""
    await fill(one)
    assert isinstance(one.store, MemoryObjectStore)
    one.store.quota_bytes = None
    await one.until(lambda: not one.server.health())
    async with await Peer.connect(one.server.address) as peer:
        await peer.store(await segment(peer, "raw/b"), b", and after")


async def test_a_restart_and_a_takeover_serve_from_a_full_bucket(one: Site, tmp_path: Path) -> None:
    """Behaviour 103: the reserve has room for lease, claim and fence."""
    store = one.store
    assert isinstance(store, MemoryObjectStore)
    await fill(one)
    await one.killed()
    await one.start()
    async with await Peer.connect(one.server.address) as peer:
        assert await peer.read_all(await segment(peer, "raw/b")) == b"under way"

    two = site(tmp_path / "two", store, standby=True)
    starting = asyncio.ensure_future(two.start(one.clock))
    await pass_time(lambda: two.server.host.is_standing_by, one.clock)
    await one.killed()
    await starting
    async with await Peer.connect(two.server.address) as peer:
        events = await segment(peer, "raw/b")
        assert await peer.read_all(events) == b"under way"
        await peer.ask(m.DeleteSegment(await segment(peer, "raw/a")), m.Done)
        await two.until(lambda: not two.server.health() and has_reserve(store))
        await peer.store(events, b", and after")
    await two.stop()


def damage_manifest(store: MemoryObjectStore, how: str) -> None:
    content = store.objects.pop(MANIFEST)
    if how == "flipped":
        store.objects[MANIFEST] = content.replace(b'"epoch": ', b'"epoch": 9', 1)
        assert store.objects[MANIFEST] != content


async def check_rebuilt(site: Site, store: MemoryObjectStore) -> None:
    """Check that a server reads all, refuses appends with the reason while there is no room, and stores them after."""
    assert decode_manifest(store.objects[MANIFEST]).claimant.folder == str(site.folder)
    await site.until(lambda: site.server.health() == FULL)
    async with await Peer.connect(site.server.address) as peer:
        history, events = await segment(peer, "raw/a"), await segment(peer, "raw/b")
        assert await peer.read_all(events) == b"under way"
        assert len(await peer.read_all(history)) == HISTORY_BYTES
        assert await peer.settled(await peer.append(events, b"refused")) == [ErrorCode.NO_SPACE]
        store.quota_bytes = None
        await site.until(lambda: not site.server.health() and has_reserve(store))
        await peer.store(events, b", and after")
        assert await peer.read_all(events) == b"under way, and after"


@pytest.mark.parametrize("how", ["lost", "flipped"])
async def test_a_restart_rebuilds_the_manifest_in_a_full_bucket(how: str, one: Site) -> None:
    """Behaviours 101 and 103."""
    assert isinstance(one.store, MemoryObjectStore)
    await fill(one)
    await one.killed()
    damage_manifest(one.store, how)
    await one.start()
    await check_rebuilt(one, one.store)


@pytest.mark.parametrize("how", ["lost", "flipped"])
async def test_a_standby_rebuilds_the_manifest_in_a_full_bucket(how: str, one: Site, tmp_path: Path) -> None:
    """Behaviours 101 and 103."""
    assert isinstance(one.store, MemoryObjectStore)
    await fill(one)
    two = site(tmp_path / "two", one.store, standby=True)
    starting = asyncio.ensure_future(two.start(one.clock))
    await pass_time(lambda: two.server.host.is_standing_by, one.clock)
    damage_manifest(one.store, how)
    await one.killed()
    await starting
    await check_rebuilt(two, one.store)
    await two.stop()


async def test_a_start_without_any_room_waits_for_it(one: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 103: it says why in one line, and goes on when there is room."""
    store = one.store
    assert isinstance(store, MemoryObjectStore)
    await one.killed()
    del store.objects["reserve/00"]
    store.quota_bytes = 0
    starting = asyncio.ensure_future(one.start())
    caplog.clear()
    end_s = one.clock.monotonic_s() + 5 * LEASE_S
    await pass_time(lambda: one.clock.monotonic_s() > end_s)
    assert not starting.done()
    assert sum("startup waits for space" in each.getMessage() for each in caplog.records) == 1
    store.quota_bytes = None
    await starting
    async with await Peer.connect(one.server.address) as peer:
        await peer.store(await segment(peer, "raw/b"), b"after")
