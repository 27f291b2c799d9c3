"""Transactions whose frames arrive back to back: one batch of the log, and never half a commit."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import get_ident

import pytest
import pytest_asyncio

from millrace.model.transaction import TransactionState
from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.streams import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.server.container.histories import durable_view
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.folders import tmp_path
from tests.support.pins import _all_pins_are_released
from tests.support.pipelines import Pipeline
from tests.support.protocol import Peer, Stored, code_of
from tests.support.servers import BUSY, QUIET, SMALL_WAL, server_options
from tests.support.transactions import PeerTransaction, content_of, create_stream, outcome_of
from tests.support.waiting import until

__all__ = ["_all_pins_are_released", "tmp_path"]

pytestmark = pytest.mark.asyncio

WHOLE = ["TransactionInfo", "Done", "TransactionInfo"]


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    # The clock stands still, so that nothing else is logged meanwhile.
    async with Server(server_options(tmp_path), clock=ManualClock()) as running:
        yield running


@pytest_asyncio.fixture
async def peer(server: Server) -> AsyncIterator[Peer]:
    async with await Peer.connect(server.address) as connected:
        yield connected


def sequence_of(server: Server) -> int:
    assert server._open is not None
    return server._open.container.state.sequence


@pytest.mark.parametrize("segment_count", [1, 4, 64])
async def test_a_whole_transaction_is_one_sync(tmp_path: Path, segment_count: int) -> None:
    """Behaviour 28: its beginning, its parts, their events and the commit are one batch of the log."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    async with (
        Server(server_options(tmp_path), clock=ManualClock(), files=files) as server,
        await Peer.connect(server.address) as peer,
    ):
        segments = await create_stream(peer, "a/b", segment_count)
        pipeline = await Pipeline.open(peer)
        number = pipeline.whole("a/b", segments, b"one ", b"two")
        sequence, syncs = sequence_of(server), files.sync_count

        told = await pipeline.told()

        assert told.names() == WHOLE
        assert told.outcomes == [Stored(0, False), Stored(4, False)] * segment_count
        assert sequence_of(server) == sequence + 1
        assert files.sync_count == syncs + 1
        assert await content_of(peer, "a/b") == dict.fromkeys(segments, b"one two")
        begun, _, committed = told.replies
        assert isinstance(begun, m.TransactionInfo)
        assert isinstance(committed, m.TransactionInfo)
        assert (begun.number, begun.state, begun.changed) == (number, TransactionState.OPEN, 1)
        assert [each.segment_id for each in begun.streams[0].ranges] == segments
        assert (committed.state, committed.changed) == (TransactionState.COMMITTED, 1)
        assert committed.tails == (await peer.ask(m.GetTails([m.NamedStream("a/b")]), m.StreamTails)).tails


async def test_several_that_arrive_together_are_one_sync(peer: Peer, server: Server) -> None:
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    for number in range(5):
        pipeline.whole("a/b", segments, b"%d " % number)
    sequence = sequence_of(server)

    assert (await pipeline.told()).names() == WHOLE * 5

    assert sequence_of(server) == sequence + 1
    assert await content_of(peer, "a/b") == dict.fromkeys(segments, b"0 1 2 3 4 ")


async def test_what_is_left_open_is_durable_without_more_frames(peer: Peer) -> None:
    """The log waits for what follows only as long as it is there already."""
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b")
    assert (await pipeline.told()).names() == ["TransactionInfo"]
    first, second = pipeline.parts(number, segments)
    assert (await pipeline.told()).names() == ["Done"]
    pipeline.append(first, b"one")
    pipeline.append(second, b"two")
    assert (await pipeline.told()).outcomes == [Stored(0, False)] * 2

    pipeline.commit(number, (0, 2))

    assert (await pipeline.told()).names() == ["TransactionInfo"]
    assert await content_of(peer, "a/b") == dict(zip(segments, [b"one", b"two"], strict=True))


async def test_prepare_and_commit_arrive_with_the_rest(peer: Peer, server: Server) -> None:
    """Behaviour 30: what the prepare drops is no part of the commit after it."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b", name="order-7")
    for branch in (5, 6):
        (part_id,) = pipeline.parts(number, [segment_id], branch=branch)
        pipeline.append(part_id, b"branch %d" % branch)
    pipeline.prepare(number, (5, 1), drops_others=True)
    pipeline.commit(number, (5, 1))
    sequence = sequence_of(server)

    told = await pipeline.told()

    assert told.names() == ["TransactionInfo", "Done", "Done", "TransactionInfo", "TransactionInfo"]
    assert sequence_of(server) == sequence + 1
    assert await content_of(peer, "a/b") == {segment_id: b"branch 5"}
    assert server._open is not None
    assert len(server._open.container.state.segments) == 2  # the stream's own, and one whose bytes are in it


async def test_an_abort_arrives_with_the_rest(peer: Peer, server: Server) -> None:
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b")
    for part_id in pipeline.parts(number, segments):
        pipeline.append(part_id, b"event")
    pipeline.ask(m.AbortTransaction(number, ""))

    assert (await pipeline.told()).names() == WHOLE

    assert await content_of(peer, "a/b") == {}
    assert (await outcome_of(peer, number=number)).state == TransactionState.ABORTED
    assert server._open is not None
    assert len(server._open.container.state.segments) == 2
    assert server._open.container.state.open_transactions.parts_count == 0


async def test_it_is_not_said_to_be_over_before_it_is_durable(tmp_path: Path) -> None:
    """Queries tell what is durable: of one that is about to begin, nothing."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    async with (
        Server(server_options(tmp_path), clock=ManualClock(), files=files) as server,
        await Peer.connect(server.address) as peer,
        await Peer.connect(server.address) as other,
    ):
        segments = await create_stream(peer, "a/b", 1)
        pipeline = await Pipeline.open(peer)
        files.stall()
        number = pipeline.begin("a/b")
        (part_id,) = pipeline.parts(number, segments)
        pipeline.append(part_id, b"event")
        await pipeline.send()
        await until(files.stalled.is_set)

        assert (await outcome_of(other, number=number)).state == TransactionState.UNKNOWN
        assert (await other.ask(m.ListTransactions(0, 10), m.TransactionList)).transactions == []
        assert await code_of(other.ask(m.GetSegment(part_id, ""), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
        files.resume()
        assert (await pipeline.told()).names() == ["TransactionInfo", "Done"]
        assert (await outcome_of(other, number=number)).state == TransactionState.OPEN


async def test_the_lease_of_one_that_is_about_to_begin_is_renewed(tmp_path: Path) -> None:
    """Else its client would take it for over."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    async with (
        Server(server_options(tmp_path), clock=ManualClock(), files=files) as server,
        await Peer.connect(server.address) as peer,
        await Peer.connect(server.address) as other,
    ):
        await create_stream(peer, "a/b", 1)
        pipeline = await Pipeline.open(peer)
        files.stall()
        number = pipeline.begin("a/b")
        await pipeline.send()
        await until(files.stalled.is_set)

        assert (await other.ask(m.RenewTransactions([number]), m.Done)).changed == 1
        files.resume()
        assert (await pipeline.told()).names() == ["TransactionInfo"]


async def test_what_is_refused_renews_the_lease(peer: Peer, server: Server) -> None:
    """It is named by it; its client has to have the time to send what is missing."""
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="x")
    assert server._open is not None
    found = server._open.container.state.transactions[transaction.number]
    transaction.counts[0] = 5
    for refused in (transaction.commit, transaction.prepare):
        found.is_renewed = False
        assert await code_of(refused()) is ErrorCode.BRANCHES_DIFFER
        assert found.is_renewed


async def test_one_is_joined_as_it_was_and_committed_meanwhile(tmp_path: Path) -> None:
    """Who joins needs its routes; that it is over is told by what comes next."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    async with (
        Server(server_options(tmp_path), clock=ManualClock(), files=files) as server,
        await Peer.connect(server.address) as peer,
        await Peer.connect(server.address) as other,
    ):
        await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b", name="x")
        pipeline = await Pipeline.open(other)
        assert server._open is not None
        in_flight = server._open.container.in_flight
        files.stall()
        await peer.start(m.CreateSegment("raw/a"))
        await until(files.stalled.is_set)
        pipeline.begin("a/b", name="x")
        await pipeline.send()
        await until(lambda: in_flight._followers_count == 1)
        committed = await peer.start(transaction.commit_request())
        await until(lambda: any(isinstance(each, m.TransactionCommitted) for each in in_flight.records()))
        files.resume()

        (joined,) = (await pipeline.told()).replies
        await peer.reply(committed, m.TransactionInfo)
        assert isinstance(joined, m.TransactionInfo)
        assert (joined.number, joined.state, joined.changed) == (transaction.number, TransactionState.OPEN, 0)
        assert joined.streams == transaction.info.streams


# --- refusals inside of it ---


@pytest.mark.parametrize(
    ("stream", "name", "code"),
    [
        ("a/none", "", ErrorCode.STREAM_NOT_FOUND),
        ("a/sealed", "", ErrorCode.STREAM_SEALED),
        ("a/b", "used", ErrorCode.TRANSACTION_COMMITTED),
        ("a/b", "a\nb", ErrorCode.INVALID_NAME),
    ],
)
async def test_what_follows_a_beginning_that_is_refused_is_refused(
    peer: Peer, stream: str, name: str, code: ErrorCode
) -> None:
    segments = await create_stream(peer, "a/b", 2)
    await create_stream(peer, "a/sealed", 1)
    await peer.ask(m.SealStream("a/sealed"), m.StreamInfo)
    used = await PeerTransaction.begin(peer, "a/b", name="used")
    await used.commit()
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin(stream, name=name)
    for part_id in pipeline.parts(number, segments):
        pipeline.append(part_id, b"lost")
    pipeline.commit(number, (0, 2))

    told = await pipeline.told()

    assert told.names() == [code.name, "TRANSACTION_UNKNOWN", "TRANSACTION_UNKNOWN"]
    assert told.outcomes == [ErrorCode.SEGMENT_NOT_FOUND] * 2
    assert await content_of(peer, "a/b") == {}
    # None of the numbers was used.
    pipeline.begin("a/b", number=number)
    assert (await pipeline.told()).names() == ["TransactionInfo"]


async def test_what_follows_one_too_many_is_refused(tmp_path: Path) -> None:
    """Also where the other one is only about to begin."""
    options = server_options(tmp_path, transactions=TransactionsOptions(open_count_max=1, open_parts_count_max=2))
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        segments = await create_stream(peer, "a/b", 3)
        pipeline = await Pipeline.open(peer)
        first = pipeline.begin("a/b")
        second = pipeline.begin("a/b")
        (part_id,) = pipeline.parts(second, segments[:1])
        pipeline.append(part_id, b"lost")
        pipeline.commit(second, (0, 1))
        kept, _ = pipeline.parts(first, segments[:2])
        pipeline.append(kept, b"kept")
        (part_id,) = pipeline.parts(first, segments[2:])
        pipeline.append(part_id, b"lost")
        pipeline.commit(first, (0, 2))

        told = await pipeline.told()

        full, unknown = "TRANSACTIONS_FULL", "TRANSACTION_UNKNOWN"
        assert told.names() == ["TransactionInfo", full, unknown, unknown, "Done", full, "BRANCHES_DIFFER"]
        assert told.outcomes == [ErrorCode.SEGMENT_NOT_FOUND, Stored(0, False), ErrorCode.SEGMENT_NOT_FOUND]
        assert await content_of(peer, "a/b") == {}
        pipeline.commit(first, (0, 1))
        assert (await pipeline.told()).names() == ["TransactionInfo"]
        assert await content_of(peer, "a/b") == {segments[0]: b"kept"}


async def test_an_append_that_is_refused_keeps_the_commit_from_being_made(tmp_path: Path) -> None:
    """Behaviour 28: too large, out of its order, or of no writer."""
    options = server_options(tmp_path, container=ContainerOptions(transaction_size_bytes_max=10))
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        first, second = await create_stream(peer, "a/b", 2)
        pipeline = await Pipeline.open(peer)
        number = pipeline.begin("a/b")
        one, two = pipeline.parts(number, [first, second])
        pipeline.append(one, b"12345")
        pipeline.append(two, b"123456")
        pipeline.append(two, b"7", event_number=2)
        pipeline.commit(number, (0, 3))

        told = await pipeline.told()

        assert told.names() == ["TransactionInfo", "Done", "BRANCHES_DIFFER"]
        too_large = ErrorCode.TRANSACTION_TOO_LARGE
        assert told.outcomes == [Stored(0, False), too_large, too_large]
        assert await content_of(peer, "a/b") == {}
        pipeline.append(two, b"12", event_number=2)
        pipeline.commit(number, (0, 2))
        told = await pipeline.told()
        assert (told.names(), told.outcomes) == (["BRANCHES_DIFFER"], [ErrorCode.EVENT_NUMBER_GAP])
        pipeline.append(two, b"12")
        pipeline.commit(number, (0, 2))
        assert (await pipeline.told()).names() == ["TransactionInfo"]
        assert await content_of(peer, "a/b") == {first: b"12345", second: b"12"}


async def test_numbers_that_are_void_refuse_what_follows(peer: Peer) -> None:
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b", number=1 << 40)
    (part_id,) = pipeline.parts(number, segments[:1])
    pipeline.append(part_id, b"lost")
    number = pipeline.begin("a/b")
    pipeline.ids.insert(0, 1 << 40)
    (void_id,) = pipeline.parts(number, segments[:1])
    pipeline.append(void_id, b"lost")
    pipeline.commit(number, (0, 1))

    told = await pipeline.told()

    invalid, info = "INVALID_ARGUMENT", "TransactionInfo"
    assert told.names() == [invalid, "TRANSACTION_UNKNOWN", info, invalid, "BRANCHES_DIFFER"]
    assert told.outcomes == [ErrorCode.SEGMENT_NOT_FOUND] * 2


async def test_what_arrives_after_the_abort_of_its_number_begins_nothing(peer: Peer) -> None:
    """Its client has lost the connection, and has begun again under another number."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    late = pipeline.ids[0]
    assert await code_of(peer.ask(m.AbortTransaction(late, ""), m.TransactionInfo)) is ErrorCode.TRANSACTION_UNKNOWN
    pipeline.whole("a/b", [segment_id], b"lost")
    pipeline.whole("a/b", [segment_id], b"kept")

    told = await pipeline.told()

    assert told.names() == ["INVALID_ARGUMENT", "TRANSACTION_UNKNOWN", "TRANSACTION_UNKNOWN", *WHOLE]
    assert await content_of(peer, "a/b") == {segment_id: b"kept"}
    assert (await outcome_of(peer, number=late)).state == TransactionState.ABORTED


async def test_frames_sent_again_are_recognised(peer: Peer, server: Server) -> None:
    """Behaviour 29: on another connection, and while the first ones are on their way."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    number = pipeline.whole("a/b", [segment_id], b"event")
    part_id = number + 1
    await pipeline.send()
    async with await Peer.connect(server.address) as other:
        again = Pipeline(other, pipeline.writer, [part_id])
        again.begin("a/b", number=number)
        again.parts(number, [segment_id])
        again.append(part_id, b"event")
        again.commit(number, (0, 1))

        told, first = await again.told(), await pipeline.told()

    assert first.names() == WHOLE
    # It is over, so it is told so; the commit is that of the first connection.
    assert told.names() == ["TRANSACTION_COMMITTED", "TRANSACTION_COMMITTED", "TransactionInfo"]
    assert isinstance(told.replies[-1], m.TransactionInfo)
    assert (told.replies[-1].state, told.replies[-1].changed) == (TransactionState.COMMITTED, 0)
    assert await content_of(peer, "a/b") == {segment_id: b"event"}


async def test_an_open_one_sent_again_is_recognised(peer: Peer, server: Server) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b")
    (part_id,) = pipeline.parts(number, [segment_id])
    pipeline.append(part_id, b"event")
    await pipeline.send()
    async with await Peer.connect(server.address) as other:
        again = Pipeline(other, pipeline.writer, [part_id])
        again.begin("a/b", number=number)
        again.parts(number, [segment_id])
        again.append(part_id, b"event")
        again.commit(number, (0, 1))

        told, first = await again.told(), await pipeline.told()

    assert (first.names(), first.outcomes) == (["TransactionInfo", "Done"], [Stored(0, False)])
    assert told.names() == WHOLE
    assert told.outcomes == [Stored(0, True)]
    assert await content_of(peer, "a/b") == {segment_id: b"event"}


async def test_a_stream_that_was_scaled_since_it_was_fetched_refuses_the_beginning(peer: Peer) -> None:
    """Behaviour 32: nothing is stored, and the client begins again with what it fetches; also of a stream made anew."""
    before = await peer.ask(m.CreateStream("a/b", 2, "{}"), m.StreamInfo)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin(m.RoutedStream("a/b", before.stream_id, before.epoch))
    pipeline.commit(number)
    assert (await pipeline.told()).names() == ["TransactionInfo"] * 2

    (first, *_) = before.segments
    ranges = [m.KeyRangeRecord(first.low, first.last // 2), m.KeyRangeRecord(first.last // 2 + 1, first.last)]
    after = await peer.ask(m.ScaleStream("a/b", [first.segment_id], ranges), m.StreamInfo)
    for stream_id, epoch in ((before.stream_id, before.epoch), (before.stream_id + 1, after.epoch)):
        number = pipeline.begin(m.RoutedStream("a/b", stream_id, epoch))
        (part_id,) = pipeline.parts(number, [first.segment_id])
        pipeline.append(part_id, b"lost")
        pipeline.commit(number, (0, 1))
        told = await pipeline.told()
        assert told.names() == ["EPOCH_CHANGED", "TRANSACTION_UNKNOWN", "TRANSACTION_UNKNOWN"]
        assert told.outcomes == [ErrorCode.SEGMENT_NOT_FOUND]

    number = pipeline.begin(m.RoutedStream("a/b", after.stream_id, after.epoch))
    pipeline.commit(number)
    assert (await pipeline.told()).names() == ["TransactionInfo"] * 2


async def test_a_beginning_after_a_scale_waits_for_it(peer: Peer) -> None:
    """The scale is in flight: the stream has its new epoch for what was sent after it, and appends do not overtake."""
    info = await peer.ask(m.CreateStream("a/b", 1, "{}"), m.StreamInfo)
    (segment,) = info.segments
    pipeline = await Pipeline.open(peer)
    half = segment.last // 2
    ranges = [m.KeyRangeRecord(0, half), m.KeyRangeRecord(half + 1, segment.last)]
    pipeline.ask(m.ScaleStream("a/b", [segment.segment_id], ranges))
    # The scale is decided in the next turn of the loop: this comes too late for the one it routed by, or before.
    number = pipeline.begin(m.RoutedStream("a/b", info.stream_id, info.epoch))
    (part_id,) = pipeline.parts(number, [segment.segment_id])
    pipeline.append(part_id, b"event")
    pipeline.commit(number, (0, 1))

    told = await pipeline.told()

    assert told.names() in (
        ["StreamInfo", "EPOCH_CHANGED", "TRANSACTION_UNKNOWN", "TRANSACTION_UNKNOWN"],
        ["StreamInfo", "TransactionInfo", "Done", "TransactionInfo"],
    )
    content = await content_of(peer, "a/b")
    assert sum(map(len, content.values())) == (5 if told.names()[1] == "TransactionInfo" else 0)


async def test_a_seal_ends_those_that_are_about_to_begin(tmp_path: Path) -> None:
    """Behaviour 21: the seal does not wait for them; what follows of them is refused."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    async with (
        Server(server_options(tmp_path), clock=ManualClock(), files=files) as server,
        await Peer.connect(server.address) as peer,
        await Peer.connect(server.address) as other,
    ):
        (segment_id,) = await create_stream(peer, "a/b", 1)
        pipeline = await Pipeline.open(peer)
        files.stall()
        number = pipeline.begin("a/b")
        (part_id,) = pipeline.parts(number, [segment_id])
        pipeline.append(part_id, b"event")
        await pipeline.send()
        await until(files.stalled.is_set)
        sealed = await other.start(m.SealStream("a/b"))
        assert server._open is not None
        in_flight = server._open.container.in_flight
        await until(lambda: any(isinstance(each, m.StreamSealed) for each in in_flight.records()))
        pipeline.append(part_id, b"late", event_number=2)
        pipeline.commit(number, (0, 2))
        await pipeline.send()
        files.resume()

        told = await pipeline.told()

        assert told.names() == ["TransactionInfo", "Done", "TRANSACTION_ABORTED"]
        assert told.outcomes == [Stored(0, False), ErrorCode.TRANSACTION_ABORTED]
        assert (await other.reply(sealed, m.StreamInfo)).sealed
        assert await content_of(peer, "a/b") == {}
        assert (await outcome_of(peer, number=number)).state == TransactionState.ABORTED


# --- what is not in memory ---


async def test_what_is_on_disk_is_loaded_before_what_follows(tmp_path: Path) -> None:
    """Nothing overtakes a beginning that waits for its stream; nor are numbers of later use looked for."""
    async with Server(server_options(tmp_path, container=BUSY), clock=ManualClock()) as server:
        async with await Peer.connect(server.address) as peer:
            streams = {f"a/{number}": await create_stream(peer, f"a/{number}", 2) for number in range(40)}
            pipeline = await Pipeline.open(peer)
            assert server._open is not None
            await server._open.flusher.checkpoint()
            await peer.ask(m.CreateSegment("raw/a"), m.SegmentInfo)  # the checkpoint is asked first about what is idle
            state = server._open.container.state
            idle = [name for name in streams if not state.streams.is_resident(name)]
            assert idle
            for name in idle[:3]:
                pipeline.whole(name, streams[name], b"event")

            assert (await pipeline.told()).names() == WHOLE * 3

            for name in idle[:3]:
                assert await content_of(peer, name) == dict.fromkeys(streams[name], b"event")


async def test_a_commit_that_begins_epochs_does_not_load_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream and the open segments are in memory, but not those that were scaled away before."""
    options = server_options(tmp_path, container=replace(BUSY, checkpoint_interval_s=3600.0))
    async with Server(options, clock=ManualClock()) as server, await Peer.connect(server.address) as peer:
        info = await peer.ask(m.CreateStream("a/b", 1, "{}"), m.StreamInfo)
        last = info.segments[0].last
        halves = [m.KeyRangeRecord(0, last // 2), m.KeyRangeRecord(last // 2 + 1, last)]
        transaction = None
        for ranges in [halves, [m.KeyRangeRecord(0, last)]] * 5 + [halves]:
            opened = [segment.segment_id for segment in info.segments if not segment.sealed]
            if len(info.segments) == 16:
                transaction = await PeerTransaction.begin(peer, "a/b")
                await transaction.write(b"event")
            info = await peer.ask(m.ScaleStream("a/b", opened, ranges), m.StreamInfo)
        assert transaction is not None
        assert server._open is not None
        state, loader = server._open.container.state, server._open.container.loader
        await server._open.flusher.flush()
        await server._open.flusher.checkpoint()
        for number in range(60):
            await peer.ask(m.CreateSegment(f"raw/{number}"), m.SegmentInfo)
        opened = [segment.segment_id for segment in info.segments if not segment.sealed]
        with await loader.pin(segments=opened) as pins:
            await loader._pin(state.streams, ["a/b"], pins)
            assert not all(state.segments.is_resident(segment.segment_id) for segment in info.segments)
            loop, loads = get_ident(), []
            load = state.segments.archive.load

            def watched_load(number: int) -> object:
                loads.append(get_ident())
                return load(number)

            monkeypatch.setattr(state.segments.archive, "load", watched_load)
            assert (await transaction.commit()).cuts[0].epoch == info.epoch + 2
            assert loads
            assert loop not in loads


async def test_numbers_that_were_reserved_before_a_checkpoint_need_no_load(peer: Peer, server: Server) -> None:
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    assert server._open is not None
    await server._open.flusher.checkpoint()
    pipeline.whole("a/b", segments, b"event")
    sequence = sequence_of(server)

    assert (await pipeline.told()).names() == WHOLE

    assert sequence_of(server) == sequence + 1


async def test_a_lost_connection_leaves_nothing(tmp_path: Path) -> None:
    """Cut at any byte of what was sent, it is open with what arrived, and can be continued."""
    async with Server(server_options(tmp_path), clock=ManualClock()) as server:
        async with await Peer.connect(server.address) as peer:
            segments = await create_stream(peer, "a/b", 2)
            pipeline = await Pipeline.open(peer, ids_count=3000)
        expected = 0
        dice = Random(7)
        for _ in range(40):
            async with await Peer.connect(server.address) as peer:
                pipeline.peer = peer
                number = pipeline.whole("a/b", segments, b"event")
                frames = b"".join(pipeline._frames)
                pipeline._frames = [frames[: dice.randrange(len(frames))]]
                await pipeline.send()
                pipeline._requests, pipeline._appends = [], []
            async with await Peer.connect(server.address) as peer:
                again = Pipeline(peer, pipeline.writer, [number + 1, number + 2])
                again.begin("a/b", number=number)
                for part_id in again.parts(number, segments):
                    again.append(part_id, b"event")
                again.commit(number, (0, 2))
                told = await again.told()
                assert isinstance(told.replies[-1], m.TransactionInfo), told.names()
                expected += len(b"event")
                assert {len(each) for each in (await content_of(peer, "a/b")).values()} == {expected}


# --- killed ---


@pytest.mark.parametrize("container", [QUIET, BUSY])
@pytest.mark.parametrize("batch_size", [1, 200, 64 * 1024])
async def test_a_kill_or_power_loss_leaves_all_or_nothing(
    tmp_path: Path, container: ContainerOptions, batch_size: int
) -> None:
    """Behaviours 31, 40: at each sync of it, whether it is one batch or cut into as many as there are records."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    # A batch takes at least one run, so it can be cut at each border.
    options = server_options(tmp_path, container=container, wal=replace(SMALL_WAL, batch_size_bytes_max=batch_size))
    disks: list[MemoryFileSystem] = []
    async with Server(options, files=files) as server, await Peer.connect(server.address) as peer:
        segments = await create_stream(peer, "a/b", 2)
        pipeline = await Pipeline.open(peer)
        files.before_sync = lambda path: disks.append(files.copy()) if path.parent.name == "wal" else None
        number = pipeline.whole("a/b", segments, b"one ", b"two")
        told = await pipeline.told()
        assert told.names() == WHOLE
        files.before_sync = lambda path: None
        disks.append(files.copy())
    assert len(disks) >= (6 if batch_size == 1 else 2)

    states = set()
    for place, disk in enumerate(disks):
        for seed in (None, place, place + 100):  # killed, or without power
            left = disk.copy()
            if seed is not None:
                left.crash(seed)
            for _ in range(2):
                async with Server(options, files=left) as server, await Peer.connect(server.address) as peer:
                    found = await outcome_of(peer, number=number)
                    is_committed = found.state == TransactionState.COMMITTED
                    states.add(TransactionState(found.state))
                    assert found.state in (
                        TransactionState.UNKNOWN,
                        TransactionState.ABORTED,  # it never began, and cannot any more
                        TransactionState.OPEN,
                        TransactionState.COMMITTED,
                    )
                    expected = dict.fromkeys(segments, b"one two") if is_committed else {}
                    assert await content_of(peer, "a/b") == expected, (place, seed)
                    if place == len(disks) - 1 and seed is None:
                        assert is_committed
    assert TransactionState.COMMITTED in states
    assert (TransactionState.OPEN in states) == (batch_size < 64 * 1024)


async def test_a_failed_sync_fails_all_of_it(tmp_path: Path) -> None:
    """Behaviour 43: nothing of it is told as stored or as refused; after the recovery it is there or not, whole."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        segments = await create_stream(peer, "a/b", 2)
        pipeline = await Pipeline.open(peer)
        files.fail_syncs()
        pipeline.whole("a/b", segments, b"event")
        number = pipeline.begin("a/none")
        pipeline.commit(number)

        told = await pipeline.told()

        unknown = ErrorCode.OUTCOME_UNKNOWN
        assert told.names()[:3] == [unknown.name] * 3
        assert told.outcomes == [unknown] * 2
        assert told.names()[3:] == ["SHUTTING_DOWN"] * 2  # nothing was stored: to be sent again
        await until(lambda: server._open is not None and not server._open.container.has_failed)
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        assert await content_of(peer, "a/b") in ({}, dict.fromkeys(segments, b"event"))


# --- the live state is that of the fold ---


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("batch_size", [300, 64 * 1024])
async def test_the_live_state_is_the_one_that_is_recovered(tmp_path: Path, seed: int, batch_size: int) -> None:
    """Pipelines of chance, cut into batches anywhere, by several peers at once: the fold makes the same of the log."""
    print(f"seed={seed}")
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files, dice = MemoryFileSystem(), Random(seed)
    options = server_options(
        tmp_path, container=QUIET, wal=replace(SMALL_WAL, batch_size_bytes_max=batch_size, files_max=32)
    )
    async with Server(options, clock=ManualClock(), files=files) as server:
        peers = [await Peer.connect(server.address, session_id=bytes([number] * 16)) for number in range(3)]
        pipelines = [await Pipeline.open(peer, ids_count=3000) for peer in peers]
        for name in ("a/b", "a/c"):
            await create_stream(peers[0], name, 2)
        for _ in range(8):
            routed = {
                name: [
                    segment.segment_id
                    for segment in (await peers[0].ask(m.GetStream(name), m.StreamInfo)).segments
                    if not segment.sealed
                ]
                for name in ("a/b", "a/c")
            }
            for pipeline in pipelines:
                for _ in range(dice.randrange(1, 4)):
                    add_of_chance(pipeline, dice, routed)
                await pipeline.send()
            if dice.random() < 0.4:
                await scale_of_chance(peers[0], dice)
            for pipeline in pipelines:
                await pipeline.told()
        assert server._open is not None
        state = server._open.container.state
        live = durable_view(state)
        assert not state.admitted_transactions
        assert not state.admitted_segments
        for transaction in state.open_transactions.by_number.values():
            assert transaction.admitted_parts == transaction.parts
            assert (transaction.admitted_state, transaction.admitted_digest) == (transaction.state, transaction.digest)
        for peer in peers:
            await peer.close()
        disk = files.copy()
    async with Server(options, clock=ManualClock(), files=disk) as server:
        assert server._open is not None
        assert durable_view(server._open.container.state) == live


def add_of_chance(pipeline: Pipeline, dice: Random, routed: dict[str, list[int]]) -> None:
    """Add the frames of a transaction that may leave something out, do too much, or end in any way."""
    streams = dice.sample(sorted(routed), dice.choice([1, 1, 2]))
    number = pipeline.begin(*streams, name=dice.choice(["", "", f"n{dice.randrange(5)}"]))
    counts: dict[int, int] = {}
    for stream in streams:
        for branch in dice.sample([0, 1, 2], dice.randrange(1, 3)):
            ids = dice.sample(routed[stream], dice.randrange(1, len(routed[stream]) + 1))
            for part_id in pipeline.parts(number, ids, branch=branch):
                payloads = [bytes(dice.randrange(1, 60)) for _ in range(dice.randrange(0, 3))]
                if payloads:
                    pipeline.append(part_id, *payloads)
                counts[branch] = counts.get(branch, 0) + len(payloads)
    named = sorted(counts.items())
    if dice.random() < 0.15:
        named = [(branch, count + 1) for branch, count in named]
    if dice.random() < 0.3:
        pipeline.prepare(number, *named[:1], drops_others=True)
        named = named[:1]
    if dice.random() < 0.7:
        pipeline.commit(number, *named, drops_others=dice.random() < 0.5)
    elif dice.random() < 0.5:
        pipeline.ask(m.AbortTransaction(number, ""))


async def scale_of_chance(peer: Peer, dice: Random) -> None:
    """Split an open segment of a stream, or merge all."""
    info = await peer.ask(m.GetStream("a/b"), m.StreamInfo)
    parts = [segment for segment in info.segments if not segment.sealed]
    if len(parts) > 3:
        last = max(segment.last for segment in parts)
        sealed, ranges = [segment.segment_id for segment in parts], [m.KeyRangeRecord(0, last)]
    else:
        chosen = dice.choice(parts)
        middle = (chosen.low + chosen.last) // 2
        sealed = [chosen.segment_id]
        ranges = [m.KeyRangeRecord(chosen.low, middle), m.KeyRangeRecord(middle + 1, chosen.last)]
    request_id = await peer.start(m.ScaleStream("a/b", sealed, ranges))
    await peer.reply(request_id, m.StreamInfo)
