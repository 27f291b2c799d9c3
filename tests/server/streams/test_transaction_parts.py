"""What parts of transactions are to the rest of the server, before and after the commit."""

# Nobody needs to look at the future of a write: flush and leaving the transaction raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace.model.block_packing import pack_block
from millrace.model.key_range import key_place
from millrace.model.policy import ScalingKind
from millrace.model.transaction import TransactionState
from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.container_state import ContainerState
from millrace.server.host.room import RESERVE_BYTES_MIN
from millrace.server.streams import StreamsOptions, TransactionsOptions
from millrace.server.streams.load import StreamLoads
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.support.files import MemoryFileSystem
from tests.support.folders import tmp_path
from tests.support.protocol import Peer, Stored, code_of
from tests.support.servers import BUSY, SMALL_WAL, server_options
from tests.support.settled_containers import _containers_are_settled
from tests.support.storage import FaultyStorage
from tests.support.transactions import PeerTransaction, content_of, create_stream, outcome_of, reserve
from tests.support.waiting import until

__all__ = ["_containers_are_settled", "tmp_path"]

pytestmark = pytest.mark.asyncio


def state_of(server: Server) -> ContainerState:
    return server.opened.container.state


def chunks_in(folder: Path) -> list[Path]:
    return list((folder / "tier2" / "c0000" / "segments").rglob("*.chunk"))


async def test_parts_count_as_unflushed_bytes_and_are_flushed(tmp_path: Path) -> None:
    """They count to the budget of tails, and leave it by the way of all segments; the commit writes no byte again."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b")
        state = state_of(server)
        before = state.tail_bytes
        await transaction.write(bytes(10 * KIB))
        assert state.tail_bytes - before >= 10 * KIB
        held = state.tail_bytes
        await transaction.commit()
        assert state.tail_bytes == held
    async with (
        Server(server_options(tmp_path / "busy", container=BUSY)) as server,
        await Peer.connect(server.address) as peer,
    ):
        await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(bytes(10 * KIB))
        await until(lambda: not state_of(server).unflushed and state_of(server).tail_bytes == 0)
        assert len(chunks_in(tmp_path / "busy")) == 1


async def test_retention_and_truncation_leave_open_parts_alone(tmp_path: Path) -> None:
    """Behaviour 28: a stream that may keep nothing forgets all but what is not committed."""
    options = server_options(tmp_path, streams=StreamsOptions(retention_interval_s=0.05), container=BUSY)
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        configuration = '{"retention": {"kind": "size", "max_bytes": 1}}'
        info = await peer.ask(m.CreateStream("a/b", 1, configuration), m.StreamInfo)
        segment_id = info.segments[0].segment_id
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(b"in a part")
        await peer.store(segment_id, bytes(KIB), bytes(KIB))

        await until(lambda: state_of(server).segments[segment_id].start_offset >= KIB)
        await peer.ask(m.TruncateStream("a/b", [m.SavedPosition(segment_id, 2 * KIB)]), m.StreamInfo)
        part = state_of(server).segments[transaction.parts[0, segment_id]]
        assert (part.start_offset, part.length) == (0, 9)

        await transaction.commit()

        assert (await peer.info(segment_id)).length == 2 * KIB + 9


async def test_no_way_of_reading_finds_what_is_not_committed(tmp_path: Path) -> None:
    """Behaviour 28: neither a reader, nor a range, a cut, a distance, a size, a count or a list."""
    async with Server(server_options(tmp_path)) as server, millrace.connect(server.address) as client:
        await client.create_stream("a/b")
        async with client.transaction("a/b") as transaction:
            await transaction.write(b"event", key="k")
            tail = await client.stream_cut("a/b")
            info = await client.stream_info("a/b")
            async with client.reader("a/b", end=millrace.TAIL) as reader:
                assert [event async for event in reader] == []
            assert await client.plan_ranges("a/b") == []
            assert (await client.distance(millrace.HEAD, tail)).events == 0
            assert (info.size_bytes, info.segments[0].event_count) == (0, 0)
            assert [each.name async for each in client.segments.list()] == ["a/b#0.0"]
            assert [name async for name in client.list_streams()] == ["a/b"]
            assert await client.stream_cut("a/b", at_time=datetime(2024, 1, 1, tzinfo=UTC)) == tail
            assert (await client.explain_stream("a/b"))["size_bytes"] == 0
        assert (await client.distance(millrace.HEAD, await client.stream_cut("a/b"))).events == 1
        assert await client.stream_cut("a/b") != tail


async def test_a_transaction_that_is_too_large_is_none_of_its_stream(tmp_path: Path) -> None:
    """The client tells it by its type, and the commit is refused; what fits is committed."""
    options = server_options(tmp_path, container=ContainerOptions(transaction_size_bytes_max=1000))
    async with Server(options) as server, millrace.connect(server.address) as client:
        await client.create_stream("a/b")
        async with client.transaction("a/b", name="small") as transaction:
            await transaction.write(bytes(500))
        large = client.transaction("a/b", name="large")
        await large.begin()
        large.write(bytes(500))
        await large.flush()
        large.write(bytes(600))
        with pytest.raises(millrace.TransactionTooLargeError):
            await large.commit()
        await large.abort()
        assert (await client.transaction_outcome("large")).state is millrace.TransactionState.ABORTED
        async with client.reader("a/b", end=millrace.TAIL) as reader:
            assert [len(event.value) async for event in reader] == [500]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["disk", "tier 2"])
async def test_a_full_log_takes_the_end_of_what_is_open(tmp_path: Path, what: str) -> None:
    """Behaviours 28, 44: commit, prepare and abort have reserved room; whatever would be new is refused."""
    files = MemoryFileSystem() if what == "disk" else None
    storage = FaultyStorage(capacity_bytes=40 * KIB) if what == "tier 2" else None
    if files is not None:  # for the checkpoint, which is always on a real disk
        (tmp_path / "containers" / "0000").mkdir(parents=True)
    parts: dict[str, Any] = {"files": files, "storage": storage}
    seams = {name: seam for name, seam in parts.items() if seam is not None}
    container = {} if what == "disk" else {"container": BUSY}
    options = server_options(tmp_path, **container)
    async with Server(options, **seams) as server, await Peer.connect(server.address) as peer:
        await create_stream(peer, "a/b", 2)
        names = ("committed", "aborted", "prepared")
        committed, aborted, prepared = [await PeerTransaction.begin(peer, "a/b", name=name) for name in names]
        for name, transaction in zip(names, (committed, aborted, prepared), strict=True):
            await transaction.write(b"event of " + name.encode())
        segment_id = await peer.create_segment("raw/a")
        if files is not None:
            files.capacity_bytes = files.used_bytes + RESERVE_BYTES_MIN
        refused = 0
        while refused < 3:
            (outcome,) = await peer.settled(await peer.append(segment_id, bytes(8 * KIB)))
            refused += outcome is ErrorCode.NO_SPACE

        for _ in range(300):  # it would use up what is reserved
            assert await code_of(reserve(peer, 1)) is ErrorCode.NO_SPACE
        begin = m.BeginTransaction(
            number=committed.ids[-1], name="new", lease_ms=30_000, streams=[m.RoutedStream("a/b", 0, 0)]
        )
        assert await code_of(peer.ask(begin, m.TransactionReply)) is ErrorCode.NO_SPACE
        assert await code_of(committed.add_parts(committed.routed_ids, branch=1)) is ErrorCode.NO_SPACE
        await committed.commit(0)
        await aborted.abort()
        await prepared.prepare()
        await prepared.commit()

        expected = b"event of committedevent of prepared"
        assert list((await content_of(peer, "a/b")).values()) == [expected] * 2
        assert (await outcome_of(peer, name="aborted")).state == TransactionState.ABORTED
        if files is not None:
            files.capacity_bytes = 64 << 20
        if storage is not None:
            storage.capacity_bytes = None
    async with Server(options, **seams) as server, await Peer.connect(server.address) as peer:
        assert list((await content_of(peer, "a/b")).values()) == [expected] * 2


async def test_the_load_of_a_stream_has_what_is_committed_once(tmp_path: Path) -> None:
    """Not before the commit, and all of it then; its keys are sampled once, too."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        (segment_id,) = await create_stream(peer, "a/b", 1)
        state = state_of(server)
        segment, stream = state.segments[segment_id], state.streams.find("a/b")
        assert stream is not None
        block = bytes(pack_block([b"x"] * 20, keys=[f"key-{number}" for number in range(20)], timestamps_us=1))
        loads = StreamLoads(StreamsOptions())

        async def measured(now_s: float) -> tuple[float, int]:
            loads.measure([segment], now_s=now_s)
            await loads.sample([segment], merged=state.merged)
            (load,) = loads.loads(stream.open_parts, kind=ScalingKind.BYTES)
            return load.last_per_s, load.sample_count

        assert await measured(0.0) == (0.0, 0)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(block)
        assert await measured(1.0) == (0.0, 0)
        await transaction.commit()
        assert await measured(2.0) == (len(block), 20)
        assert await measured(3.0) == (0.0, 20)
        (load,) = loads.loads(stream.open_parts, kind=ScalingKind.BYTES)
        assert {place for place, _ in load.weights} == {key_place(f"key-{number}") for number in range(20)}


async def test_an_abandoned_transaction_leaves_nothing(tmp_path: Path) -> None:
    """Behaviour 65: after its lease there are as many segments, rows, chunks, pins and bytes as before it."""
    options = server_options(
        tmp_path,
        container=replace(BUSY, orphan_grace_s=0.1),
        wal=replace(SMALL_WAL, files_max=16),
        transactions=TransactionsOptions(tick_s=0.02, unnamed_outcome_s=1),
    )
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        await create_stream(peer, "a/b", 4)
        state = state_of(server)
        writer_count = len(state.writers)

        def counts() -> tuple[int, ...]:
            opened = state.open_transactions
            held = (len(state.unflushed), len(state.merged), state.tail_bytes, len(chunks_in(tmp_path)))
            return len(state.segments), len(opened), opened.parts_count, opened.begun_count, opened.pins_count, *held

        await until(lambda: not state.unflushed)
        before = counts()
        transactions = [await PeerTransaction.begin(peer, "a/b", lease_ms=1000) for _ in range(3)]
        for transaction in transactions:
            await transaction.write(bytes(5 * KIB))
        await until(lambda: len(chunks_in(tmp_path)) >= 12)
        assert counts() != before

        await until(lambda: counts() == before)
        for transaction in transactions:
            assert (await outcome_of(peer, number=transaction.number)).state == TransactionState.EXPIRED
            assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_ABORTED
        assert len(state.writers) == writer_count + 3  # those of the test, which are not of the transactions
        statistics = server.services.transactions.statistics
        assert (statistics.open, statistics.expired_total, statistics.oldest_age_s) == (0, 3, 0.0)
        assert isinstance((await peer.settled(await peer.append(transactions[0].routed_ids[0], b"x")))[0], Stored)
