"""An object of a bucket is lost, flipped, or put back to an older version: what the next start does.

The history is small and has all kinds of objects: chunks, two copies of the checkpoint, batches that a copy contains or
not, a fence, and the leases of servers that were killed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from millrace.model.checksum import Buffer
from millrace.server.errors import UnsupportedStoreError
from millrace.server.offline.acceptance import RecoveredContainer, accept_loss_in_store
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.server.test_remote_log import REMOTE
from tests.support.folders import tmp_path
from tests.support.impossible_logs import run_of
from tests.support.object_store import MemoryObjectStore
from tests.support.protocol import Peer, RefusedError
from tests.support.sites import Site

__all__ = ["tmp_path"]

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

CONTENT: Final = b"012345678"
"""Of raw/a: an append for each digit, all acknowledged."""
MANIFEST: Final = "c0000/manifest"


class VersionedStore(MemoryObjectStore):
    """Keeps the first version of each object that was replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, bytes] = {}

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        before = self.objects.get(key)
        found = await super().replace(key, content, tag=tag)
        assert before is not None
        self.first.setdefault(key, before)
        return found


async def history(folder: Path) -> VersionedStore:
    """Return what two servers have left that were killed one after the other."""
    store = VersionedStore()
    site = Site(folder / "first", store, wal=REMOTE)
    await site.start()
    await site.stored(CONTENT[:1])
    for number in range(1, len(CONTENT)):
        await site.stored_more(CONTENT[number : number + 1])
        if number in (2, 5):
            await copied(site)
        if number == 6:
            await site.killed()
            site = Site(folder / "second", store, wal=REMOTE)
            await site.start()
    await renewed(site)
    await site.killed()
    return store


async def copied(site: Site) -> None:
    """Flush everything, and let a copy of the checkpoint count that says so."""
    opened = site.server.opened
    await opened.flusher.flush()
    await opened.flusher.checkpoint()
    await opened.flusher.copy()


async def renewed(site: Site) -> None:
    """Let a renewal of the lease tell what is acknowledged by now."""
    lease = site.server.host.backend._lease
    assert lease is not None
    count = lease.statistics().renewals_count
    await site.until(lambda: lease.statistics().renewals_count > count + 1)


def flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 0x10
    return bytes(changed)


@dataclass(frozen=True)
class Case:
    """A bucket in which one object is another one than it was."""

    key: str
    how: str
    store: MemoryObjectStore


def cases(made: VersionedStore) -> Iterator[Case]:
    for key, content in made.objects.items():
        for how, found in (("lost", None), ("flipped", flipped(content)), ("older", made.first.get(key))):
            if how == "older" and found is None:
                continue
            yield Case(key, how, without(made, {key: found}))


def without(made: MemoryObjectStore, changed: dict[str, bytes | None]) -> MemoryObjectStore:
    """Return a copy of a bucket in which some objects are others, or missing."""
    store = MemoryObjectStore()
    store.objects.update(made.objects)
    for key, content in changed.items():
        if content is None:
            del store.objects[key]
        else:
            store.objects[key] = content
    return store


async def read_bytes(peer: Peer, segment_id: int, length: int) -> tuple[dict[int, bytes], str]:
    """Return what can be read of a segment, byte by byte, and why the rest cannot be read."""
    found, reason = {}, ""
    for offset in range(length):
        try:
            found[offset] = bytes((await peer.read(segment_id, offset, size_max=1)).payload)
        except RefusedError as error:
            if error.code is not ErrorCode.SEGMENT_DAMAGED:
                raise
            reason = str(error)
    return found, reason


async def loss_of(site: Site, *, name: str = "raw/new") -> str:
    """Return what a server says is missing; empty if it stores, above all that was acknowledged."""
    async with await Peer.connect(site.server.address) as peer:
        try:
            await peer.create_segment(name)
        except RefusedError as error:
            if error.code is not ErrorCode.CONTENT_LOST:
                raise
            return str(error)
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        assert info.length >= len(CONTENT), "acknowledged offsets are given out again"
        (offset,) = await peer.store(info.segment_id, b"x")
        assert offset >= len(CONTENT)
    return ""


async def test_any_one_object_may_be_lost_flipped_or_older(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 101: a server starts elsewhere, serves the rest, and gives no acknowledged offset out again."""
    made = await history(tmp_path)
    numbers = count()
    stored = 0
    for case in cases(made):
        what = f"{case.key} {case.how}"
        caplog.clear()
        site = Site(tmp_path / f"site{next(numbers)}", case.store, wal=REMOTE)
        await site.start()
        async with await Peer.connect(site.server.address) as peer:
            info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
            found, reason = await read_bytes(peer, info.segment_id, info.length)
        assert all(CONTENT[offset : offset + 1] == byte for offset, byte in found.items()), what
        kind = case.key.removeprefix("c0000/").partition("/")[0]
        if loss := await loss_of(site):
            assert kind == "log"
            assert case.key in loss, what
            assert "millrace repair --store s3://bucket/prefix --accept-loss" in loss
            assert len(found) >= len(CONTENT) - 2, what
        elif len(found) < len(CONTENT):
            # It is damaged, as any bytes that tier 2 has lost.
            assert kind == "segments"
            assert case.key in reason, what
        else:
            stored += 1
        if kind == "checkpoints":
            assert not loss, what
            is_newest = case.key == max(key for key in made.objects if "/checkpoints/" in key)
            assert not is_newest or case.key.rpartition("-00000-")[0].removeprefix("c0000/") in caplog.text, what
        assert kind != "manifest" or "manifest missing, damaged or outdated, rebuilt" in caplog.text, what
        assert kind != "cluster.json" or "owner record of the prefix restored" in caplog.text, what
        await site.stop()
    assert stored > 10


async def test_a_start_that_finds_less_than_was_acknowledged_stores_nothing(tmp_path: Path) -> None:
    """Behaviour 101: the newest objects are missing, as of a bucket that lags. When they are there, all goes on."""
    made = await history(tmp_path)
    newest = {key: None for key in made.objects if key.startswith("c0000/log/00000002/")}
    last = max(newest)
    assert len(newest) > 1
    store = without(made, {**newest})
    site = Site(tmp_path / "site", store, wal=REMOTE)
    await site.start()
    assert await site.content() == CONTENT[:7]
    loss = await loss_of(site)
    assert min(newest) in loss
    assert f"batch {int(last.rpartition('/')[2])} was acknowledged" in loss
    await site.stop()

    # Its fence takes no name of what is missing, and the next start finds the same, also where the leases are gone.
    assert not any(key in store.objects for key in newest)
    for key in [key for key in store.objects if key.startswith("workers/")]:
        del store.objects[key]
    again = Site(tmp_path / "again", store, wal=REMOTE)
    await again.start()
    assert min(newest) in await loss_of(again)
    await again.stop()

    for key in newest:
        store.objects[key] = made.objects[key]
    whole = Site(tmp_path / "whole", store, wal=REMOTE)
    await whole.start()
    assert await whole.content() == CONTENT
    assert not await loss_of(whole)
    await whole.stop()


@pytest.mark.parametrize("how", ["the end", "in between"])
async def test_a_loss_is_accepted_by_command(how: str, tmp_path: Path) -> None:
    """Behaviour 101: then a server stores again, above all that was acknowledged, and the end has a fence."""
    made = await history(tmp_path)
    newest = sorted(key for key in made.objects if key.startswith("c0000/log/00000002/"))
    store = without(made, dict.fromkeys(newest if how == "the end" else newest[:1]))
    site = Site(tmp_path / "repair", store, wal=REMOTE)
    options = site.server.options
    accepted = await site.passing(accept_loss_in_store(options, store=store, clock=site.clock))
    assert newest[0] in accepted.loss
    for number in range(2):
        again = Site(tmp_path / f"again{number}", store, wal=REMOTE)
        await again.start()
        assert not await loss_of(again, name=f"raw/new{number}")
        await again.stop()
    once_more = Site(tmp_path / "repaired", store, wal=REMOTE)
    options = once_more.server.options
    accepted = await once_more.passing(accept_loss_in_store(options, store=store, clock=once_more.clock))
    assert not accepted.loss


async def test_a_record_that_does_not_fit_is_accepted_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 96, for a log in a store: one segment is refused until then."""
    store = VersionedStore()
    site = Site(tmp_path / "site", store, wal=REMOTE)
    await site.start()
    await site.stored(CONTENT)
    container = site.server.opened.container
    (segment,) = [each for each in container.state.segments.values() if each.name == "raw/a"]
    objects = len(store.objects)
    monkeypatch.setattr(container.log, "_on_durable", lambda *_: None)
    container.log.submit(run_of(segment.segment_id, 0))  # over what is stored
    await site.until(lambda: len(store.objects) > objects)
    await site.killed()

    async def accepted(name: str) -> tuple[str, ...]:
        command = Site(tmp_path / name, store, wal=REMOTE)
        accepting = accept_loss_in_store(command.server.options, store=store, clock=command.clock)
        recovered: RecoveredContainer = await command.passing(accepting)
        return recovered.damages

    (damage,) = await accepted("repair")
    assert f"segment {segment.segment_id} is damaged" in damage
    again = Site(tmp_path / "again", store, wal=REMOTE)
    await again.start()
    assert not await loss_of(again)
    await again.stop()
    assert not await accepted("repaired")


@pytest.mark.parametrize("how", ["lost", "flipped"])
async def test_without_manifest_and_cluster_a_log_is_refused_until_it_is_repaired(how: str, tmp_path: Path) -> None:
    """Behaviour 101: a start in an empty folder does not begin anew beside the log of a server."""
    made = await history(tmp_path)
    keys = (MANIFEST, "cluster.json")
    store = without(made, {key: None if how == "lost" else flipped(made.objects[key]) for key in keys})
    before = dict(store.objects)
    refused = Site(tmp_path / "refused", store, wal=REMOTE)
    with pytest.raises(UnsupportedStoreError, match="millrace repair --store s3://bucket/prefix --accept-loss"):
        await refused.start()
    assert store.objects == before

    site = Site(tmp_path / "repair", store, wal=REMOTE)
    accepted = await site.passing(accept_loss_in_store(site.server.options, store=store, clock=site.clock))
    assert not accepted.loss
    again = Site(tmp_path / "again", store, wal=REMOTE)
    await again.start()
    assert await again.content() == CONTENT
    assert not await loss_of(again)
    await again.stop()


async def test_a_lost_copy_is_replaced_by_the_next(tmp_path: Path) -> None:
    """Behaviour 101: until then the copy before it counts, with the log that it needs."""
    made = await history(tmp_path)
    copies = sorted(key for key in made.objects if "/checkpoints/" in key)
    store = without(made, {copies[-1]: None})
    site = Site(tmp_path / "site", store, wal=REMOTE)
    await site.start()
    await copied(site)
    await site.stop()
    left = [key for key in store.objects if "/checkpoints/" in key]
    assert copies[0] in left
    assert len(left) == 2
    del store.objects[max(left)]
    again = Site(tmp_path / "again", store, wal=REMOTE)
    await again.start()
    assert await again.content() == CONTENT
    assert not await loss_of(again)
    await again.stop()
