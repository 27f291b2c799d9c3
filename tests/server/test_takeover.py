"""Two servers with copies of one data folder over one object store: one serves, and the other cannot hurt it."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from millrace.server.errors import OwnedElsewhereError, OwnerFencedError
from millrace.server.kinds.segments.commands import SegmentCommands
from millrace.server.object_store import ObjectInfo
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.folders import tmp_path
from tests.support.object_store import MemoryObjectStore
from tests.support.protocol import Peer, Stored
from tests.support.sites import LEASE_S, Site, leases_in, manifest_in
from tests.support.waiting import until

__all__ = ["tmp_path"]

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


async def test_the_second_is_refused_by_name_and_takes_over_once_the_first_is_killed(tmp_path: Path) -> None:
    """Behaviour 90: it watches the lease of the first for as long as that may be silent."""
    store = MemoryObjectStore()
    first = Site(tmp_path / "first", store)
    await first.start()
    await first.stored(b"acknowledged")
    second = first.copied(tmp_path / "second")

    with pytest.raises(OwnedElsewhereError, match=r"container 0 of s3://bucket/prefix: is served by .*/first\) since"):
        await second.start(first.clock)
    assert not first.server.health()

    epoch, (ended,) = manifest_in(store)["epoch"], leases_in(store)
    await first.killed()
    await second.start()
    assert manifest_in(store)["epoch"] == epoch + 1
    assert await second.content() == b"acknowledged"
    await second.stop()
    assert manifest_in(store)["is_released"]
    assert leases_in(store) == [ended]  # it tells the first, should that wake up, who has taken over


async def test_one_that_stood_still_while_it_was_superseded_acknowledges_nothing_and_ends(tmp_path: Path) -> None:
    """Behaviour 91: it wakes with an append, and with bytes that are not in tier 2; then it is stopped."""
    store = MemoryObjectStore()
    first = Site(tmp_path / "first", store)
    await first.start()
    await first.stored(b"acknowledged")
    second = first.copied(tmp_path / "second")
    async with await Peer.connect(first.server.address) as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        await second.start()
        before = dict(store.objects)

        first.clock.move(100.0)
        (outcome,) = await peer.settled(await peer.append(info.segment_id, b"late"))
        assert not isinstance(outcome, Stored)
        with pytest.raises(OwnerFencedError, match=r"/second\) has taken over"):
            await first.passing(first.server.wait_for_end())
        assert "/second) has taken over" in first.server.health()
        assert await peer.settled(await peer.append(info.segment_id, b"later", writer_number=0)) in (
            [ErrorCode.SHUTTING_DOWN],
            [ErrorCode.PIPELINE_BROKEN],
        )
    await first.stop()

    assert {key: value for key, value in store.objects.items() if not key.startswith("workers/")} == {
        key: value for key, value in before.items() if not key.startswith("workers/")
    }
    assert await second.content() == b"acknowledged"
    await second.stop()
    # What is in its folder stays superseded.
    with pytest.raises(OwnedElsewhereError, match=r"was claimed by .*/second\) at .* which has released it"):
        await first.start()


async def test_one_that_stood_still_and_was_not_superseded_continues_under_a_higher_epoch(tmp_path: Path) -> None:
    """Behaviour 91: it takes nothing until it knows that nobody has taken over."""
    memory = MemoryObjectStore()
    is_stalled = False
    store = FaultyStore(
        memory, schedule=lambda operation: Fault.STALL if is_stalled and operation == "replace" else None
    )
    site = Site(tmp_path / "data", store)
    await site.start()
    await site.stored(b"acknowledged")
    epoch = manifest_in(memory)["epoch"]
    async with await Peer.connect(site.server.address) as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        is_stalled = True
        site.clock.move(100.0)
        assert "the lease was not renewed for 10" in site.server.health()
        assert await peer.settled(await peer.append(info.segment_id, b", refused")) == [ErrorCode.UNAVAILABLE]
        assert "stalled for longer than its lease" in site.server.health()
        assert await peer.read_all(info.segment_id) == b"acknowledged"
        is_stalled = False
        store.release()
        await site.until(lambda: not site.server.health())
    assert manifest_in(memory)["epoch"] > epoch
    assert await site.content() == b"acknowledged"
    await site.stop()


async def test_a_container_is_claimed_again_after_its_log_has_failed(tmp_path: Path) -> None:
    """Behaviour 83: under the lease that it had."""
    store = MemoryObjectStore()
    site = Site(tmp_path / "data", store)
    await site.start()
    await site.stored(b"acknowledged")
    before, leases = manifest_in(store), leases_in(store)
    site.server.opened.container.log_failed(OSError("no answer"))
    await site.until(lambda: not site.server.health())

    after = manifest_in(store)
    assert after["epoch"] == before["epoch"] + 1
    assert after["claim_id"] != before["claim_id"]
    assert after["claimant"]["worker_id"] == before["claimant"]["worker_id"]
    assert leases_in(store) == leases
    assert await site.content() == b"acknowledged"
    await site.stop()


async def test_a_log_that_fails_after_another_server_has_taken_over_ends_the_server(tmp_path: Path) -> None:
    """Behaviour 91: it is not opened again and again, and says who has the container."""
    store = MemoryObjectStore()
    first = Site(tmp_path / "first", store)
    await first.start()
    await first.stored(b"acknowledged")
    second = first.copied(tmp_path / "second")
    await second.start()
    first.server.opened.container.log_failed(OSError("no answer"))
    with pytest.raises(OwnerFencedError, match=r"/second\)"):
        await first.server.wait_for_end()
    assert await first.content() == b"acknowledged"
    await first.stop()
    assert await second.content() == b"acknowledged"
    await second.stop()


async def test_who_comes_after_an_orderly_stop_does_not_wait(tmp_path: Path) -> None:
    """Behaviour 90: the last copy counts before the container is given back."""
    store = MemoryObjectStore()
    first = Site(tmp_path / "first", store)
    await first.start()
    await first.stored(b"acknowledged")
    second = first.copied(tmp_path / "second")
    await first.server.stop()
    manifest = manifest_in(store)
    assert manifest["is_released"]
    assert manifest["checkpoint"] is not None
    assert leases_in(store) == []

    second.server = second._server()
    await second.server.start()  # no time passes
    assert await second.content() == b"acknowledged"
    await second.server.stop()


async def test_a_stop_does_not_wait_for_a_store_that_does_not_answer(tmp_path: Path) -> None:
    """The next owner waits for the lease instead."""
    memory = MemoryObjectStore()
    is_away = False
    store = FaultyStore(memory, schedule=lambda operation: Fault.UNAVAILABLE if is_away else None)
    site = Site(tmp_path / "data", store)
    await site.start()
    await site.stored(b"acknowledged")
    is_away = True
    started_s = site.clock.monotonic_s()
    await site.stop()
    assert site.clock.monotonic_s() - started_s <= 20.0 + LEASE_S
    assert not manifest_in(memory)["is_released"]
    assert len(leases_in(memory)) == 1

    is_away = False
    await site.start()
    assert await site.content() == b"acknowledged"
    await site.stop()


class SupersedingStore(MemoryObjectStore):
    """A store in which another server ends the lease of a site once that has claimed its container."""

    site: Site

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages; what is asked for after the claim, when the server knows that it is superseded."""
        container = self.site.server.host.container
        if "c0000/manifest" in self.objects and container.fence is None:
            for key in leases_in(self):
                del self.objects[key]
            self.site.clock.move(LEASE_S)
            await until(lambda: container.fence)
        async for page in super().list(prefix, after=after):
            yield page


async def test_one_that_is_fenced_while_it_starts_serves_nobody(tmp_path: Path) -> None:
    """Behaviour 91: also between its claim and the moment when there is a container to be told."""
    store = SupersedingStore()
    site = store.site = Site(tmp_path / "data", store)
    await site.server.start()
    with pytest.raises(OwnerFencedError, match="somebody deleted it"):
        await site.server.wait_for_end()
    with pytest.raises(OwnerFencedError, match="somebody deleted it"):
        await SegmentCommands(site.server.opened.container).create("raw/a")
    await site.stop()
