"""Servers whose log is in the object store: what was acknowledged outlives their disk."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from millrace.model.transaction import TransactionState
from millrace.server.errors import OwnedElsewhereError, OwnerFencedError, SettingError, UnsupportedStoreError
from millrace.server.wal.log_objects import parse_log_name
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.folders import tmp_path
from tests.support.object_store import MemoryObjectStore
from tests.support.protocol import Peer, RefusedError, Stored
from tests.support.servers import SMALL_WAL, server_options
from tests.support.sites import Site, manifest_in
from tests.support.transactions import PeerTransaction, content_of, create_stream, outcome_of
from tests.support.waiting import until

__all__ = ["tmp_path"]

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

REMOTE: Final = replace(SMALL_WAL, place="object", puts_per_s_max=0.0)


def log_in(store: MemoryObjectStore) -> list[tuple[int, int]]:
    """Return epoch and sequence of each object of the log."""
    prefix = "c0000/log/"
    points = [parse_log_name(key.removeprefix(prefix)) for key in store.objects if key.startswith(prefix)]
    return [(point.epoch, point.sequence) for point in points if point is not None]


def site(folder: Path, store: MemoryObjectStore) -> Site:
    return Site(folder, store, wal=REMOTE)


async def test_what_was_acknowledged_outlives_the_folder(tmp_path: Path) -> None:
    """Behaviour 92: a machine is lost, and an empty folder elsewhere has all of it."""
    store = MemoryObjectStore()
    first = site(tmp_path / "first", store)
    await first.start()
    await first.stored(b"acknowledged")
    epoch = manifest_in(store)["epoch"]
    await first.killed()
    shutil.rmtree(first.folder)

    second = site(tmp_path / "second", store)
    await second.start()
    assert await second.content() == b"acknowledged"
    manifest = manifest_in(store)
    assert manifest["log"]["kind"] == "object"
    assert manifest["epoch"] == epoch + 1
    await second.stored_more(b", and more")
    await second.stop()
    assert manifest_in(store)["is_released"]

    third = site(tmp_path / "third", store)
    await third.start()
    assert await third.content() == b"acknowledged, and more"
    await third.stop()
    assert not (third.folder / "containers" / "0000" / "wal").exists()


async def test_events_of_a_writer_are_stored_once_although_the_server_moved(tmp_path: Path) -> None:
    """Behaviour 92: its event numbers are in the log."""
    store = MemoryObjectStore()
    first = site(tmp_path / "first", store)
    await first.start()
    async with await Peer.connect(first.server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        opened = await peer.open_writer("writer", segment_id)
        number, epoch = opened.writer_number, opened.writer_epoch
        await peer.store(segment_id, b"one", b"two", writer_number=number, writer_epoch=epoch, event_number=1)
    await first.killed()

    second = site(tmp_path / "second", store)
    await second.start()
    async with await Peer.connect(second.server.address) as peer:
        again = await peer.open_writer("writer", segment_id)
        assert (again.writer_number, again.known) == (number, 1)
        assert again.writer_epoch > epoch
        assert again.states == [m.WriterState(segment_id, 2)]
    await second.stop()


async def test_transactions_are_where_they_were_although_the_server_moved(tmp_path: Path) -> None:
    """Behaviour 92: one is committed, one is prepared and waits, and one that was aborted is not seen."""
    store = MemoryObjectStore()
    first = site(tmp_path / "first", store)
    await first.start()
    async with await Peer.connect(first.server.address) as peer:
        (segment_id,) = await create_stream(peer, "a/b", 1)
        names = ("committed", "prepared", "aborted")
        begun = [await PeerTransaction.begin(peer, "a/b", name=name, lease_ms=3_600_000) for name in names]
        for name, transaction in zip(names, begun, strict=True):
            await transaction.write(name.encode())
        committed, prepared, aborted = begun
        await committed.commit()
        await prepared.prepare()
        await aborted.abort()
    await first.killed()

    second = site(tmp_path / "second", store)
    await second.start()
    async with await Peer.connect(second.server.address) as peer:
        assert await content_of(peer, "a/b") == {segment_id: b"committed"}
        assert (await outcome_of(peer, name="committed")).state == TransactionState.COMMITTED
        assert (await outcome_of(peer, name="aborted")).state == TransactionState.ABORTED
        assert (await outcome_of(peer, name="prepared")).state == TransactionState.PREPARED
        by_name = m.CommitTransaction(number=0, name="prepared", branches=[], drops_others=0, cursors=[])
        assert (await peer.ask(by_name, m.TransactionReply)).state == TransactionState.COMMITTED
        assert await content_of(peer, "a/b") == {segment_id: b"committedprepared"}
    await second.stop()


async def test_a_folder_that_was_superseded_continues_with_what_is_in_the_store(tmp_path: Path) -> None:
    """Its checkpoint is of no use any more: what it refers to may be deleted."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    await first.stop()
    await second.start()
    await second.stored_more(b", two")
    await second.killed()
    await first.start()
    assert await first.content() == b"one, two"
    await first.stop()


async def test_a_second_server_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """Behaviour 90."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    with pytest.raises(OwnedElsewhereError, match=r"is served by .*/first\) since"):
        await second.start(first.clock)
    assert await first.content() == b"one"
    await first.stop()


async def test_one_that_was_superseded_meets_the_fence(tmp_path: Path) -> None:
    """Behaviour 91: no time passes for it, its lease is as good as ever, and it gets no acknowledgement."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    async with await Peer.connect(first.server.address) as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        await second.start()
        await second.stored_more(b", two")
        (outcome,) = await peer.settled(await peer.append(info.segment_id, b", late"))
        assert not isinstance(outcome, Stored)
    with pytest.raises(OwnerFencedError, match="second"):
        await first.passing(first.server.wait_for_end())
    await first.stop()
    assert await second.content() == b"one, two"
    await second.stop()


async def test_one_that_may_be_superseded_answers_nothing(tmp_path: Path) -> None:
    """Behaviour 91: another one has acknowledged what it does not know of; its clients look for that one."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    async with await Peer.connect(first.server.address) as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        assert await peer.read_all(info.segment_id) == b"one"
        await second.start()
        await second.stored_more(b", two")
        first.clock.move(100.0)
        with pytest.raises((EOFError, ConnectionError)):
            await peer.read_all(info.segment_id)
    with pytest.raises(OwnerFencedError, match="second"):
        await first.passing(first.server.wait_for_end())
    await first.stop()
    await second.stop()


async def test_a_request_that_was_under_way_is_not_answered_after_the_process_stood_still(tmp_path: Path) -> None:
    """Behaviour 91: the check is where a reply leaves."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    async with await Peer.connect(first.server.address) as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        ((connection,),) = [tuple(first.server.connections)]
        reply_writer = connection._reply_writer
        await second.start()
        await second.stored_more(b", two")
        # It wakes, and the first thing that it does is to answer: nothing has arrived that could be checked.
        first.clock.move(100.0)
        reply_writer.send_error(1, LookupError("from old memory"))
        with pytest.raises((EOFError, ConnectionError)):
            await peer.receive()
        assert info.length == 3
    with pytest.raises(OwnerFencedError, match="second"):
        await first.passing(first.server.wait_for_end())
    await first.stop()
    await second.stop()


async def test_one_whose_lease_has_lapsed_takes_no_clients_until_it_is_renewed(tmp_path: Path) -> None:
    """Behaviour 91: while it cannot know whether it was superseded; then nothing was lost."""
    memory = MemoryObjectStore()
    is_away = False
    store = FaultyStore(memory, schedule=lambda operation: Fault.UNAVAILABLE if is_away else None)
    one = Site(tmp_path / "one", store, wal=REMOTE)
    await one.start()
    await one.stored(b"one")
    async with await Peer.connect(one.server.address) as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        is_away = True
        await one.until(lambda: one.server.host.container.may_be_superseded)
        with pytest.raises((EOFError, ConnectionError)):
            await peer.read_all(info.segment_id)
    with pytest.raises(RefusedError, match=r"could not renew its lease .* another server may own the data") as caught:
        await Peer.connect(one.server.address)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    front = one.server.statistics()["front"]
    assert (front.refused_total, front.shed_total) == (1, 0)
    is_away = False
    await one.until(lambda: not one.server.health())
    assert await one.content() == b"one"
    await one.stop()


async def test_a_copy_of_the_checkpoint_lets_the_log_begin_later(tmp_path: Path) -> None:
    """Where the copy before it needs it. What is not needed is deleted by the next start at the latest; fences stay."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    await first.stop()
    before = manifest_in(store)
    end = before["checkpoint"]["replay_from"]
    assert (before["checkpoint_before"], before["log"]["from_sequence"]) == (None, 1)

    await second.start()
    fence = (before["epoch"], end)
    assert fence in log_in(store)
    await second.stored_more(b", two")
    await second.stop()
    after = manifest_in(store)
    assert after["checkpoint_before"] == before["checkpoint"]
    assert after["log"] == {
        "kind": "object",
        "first_epoch": after["epoch"],
        "last_epoch": after["epoch"],
        "from_sequence": end,
        "acknowledged": end,
    }

    await first.start()
    assert await first.content() == b"one, two"
    # The batches of the first start are deleted, and its fence is not.
    await until(lambda: log_in(store)[:2] == [fence, (after["epoch"], end)])
    await first.stop()


async def test_a_log_that_failed_is_claimed_again_and_loses_nothing(tmp_path: Path) -> None:
    """Behaviour 83: under the next epoch."""
    store = MemoryObjectStore()
    one = site(tmp_path / "one", store)
    await one.start()
    await one.stored(b"one")
    before = manifest_in(store)
    one.server.opened.container.log_failed(OSError("no answer"))
    await one.until(lambda: not one.server.health())
    assert manifest_in(store)["epoch"] == before["epoch"] + 1
    await one.stored_more(b", two")
    assert await one.content() == b"one, two"
    await one.stop()


async def test_the_kind_of_a_log_cannot_change(tmp_path: Path) -> None:
    """Behaviour 92: the error says what is there, and how to start it."""
    store = MemoryObjectStore()
    local = Site(tmp_path / "local", store)
    await local.start()
    await local.stop()
    local.wal = REMOTE
    with pytest.raises(UnsupportedStoreError, match=r"keeps its log in the folder of .*/local\), .* --log local"):
        await local.start()

    other = MemoryObjectStore()
    remote = site(tmp_path / "remote", other)
    await remote.start()
    await remote.stop()
    remote.wal = SMALL_WAL
    with pytest.raises(UnsupportedStoreError, match=r"keeps its log in the object store, .* --log object"):
        await remote.start()


async def test_a_log_in_a_store_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError,
        match=r"store is None; it must be a URL such as s3://BUCKET/PREFIX where the log is in the object store",
    ):
        server_options(tmp_path, wal=REMOTE)


async def test_a_full_log_takes_appends_again_by_itself_after_a_takeover(tmp_path: Path) -> None:
    """The first copy of the new owner frees nothing: the log is kept for the copy before it. No append is news then."""
    store = MemoryObjectStore()
    first = site(tmp_path / "first", store)
    await first.start()
    await first.stored(b"one")
    opened = first.server.opened
    await opened.flusher.flush()
    await opened.flusher.checkpoint()
    await opened.flusher.copy()
    async with await Peer.connect(first.server.address) as peer:
        segment_id = (await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)).segment_id
        while True:
            (outcome,) = await peer.settled(await peer.append(segment_id, bytes(60_000)))
            if outcome is ErrorCode.NO_SPACE:
                break
    await first.killed()

    second = site(tmp_path / "second", store)
    await second.start()
    opened = second.server.opened
    await second.until(lambda: opened.container.log.fullness < 0.5)
    await second.stored_more(b"two")
    await second.stop()
