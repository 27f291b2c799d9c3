"""Transactions, over a raw connection to a real server."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from millrace.model.block_packing import pack_block
from millrace.model.key_range import KEY_SPACE
from millrace.model.transaction import TransactionState
from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.transaction import (
    OPEN_PART_SIZE_BYTES,
    RANGE_SIZE_BYTES,
    TRANSACTION_SIZE_BYTES,
    OpenTransactions,
)
from millrace.server.streams import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.folders import tmp_path
from tests.support.pins import _all_pins_are_released
from tests.support.protocol import Peer, RefusedError, Stored, code_of
from tests.support.servers import BUSY, QUIET, server_options
from tests.support.transactions import (
    PeerTransaction,
    begin_request,
    content_of,
    create_stream,
    outcome_of,
    reserve,
)
from tests.support.waiting import until

__all__ = ["_all_pins_are_released", "tmp_path"]

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(server_options(tmp_path)) as running:
        yield running


@pytest_asyncio.fixture
async def peer(server: Server) -> AsyncIterator[Peer]:
    async with await Peer.connect(server.address) as connected:
        yield connected


async def segments_count(peer: Peer) -> int:
    return len((await peer.ask(m.ListSegments("", "", 1000), m.SegmentList)).segments)


async def test_events_are_readable_with_the_commit_and_not_before(peer: Peer) -> None:
    """Behaviour 28: over the segments of two streams; none is seen, counted or listed before."""
    orders, returns = await create_stream(peer, "a/orders", 2), await create_stream(peer, "a/returns", 2)
    transaction = await PeerTransaction.begin(peer, "a/orders", "a/returns")
    await peer.store(orders[0], b"before ")
    await transaction.write(b"one ", b"two ")

    assert await content_of(peer, "a/orders") == {orders[0]: b"before "}
    assert await content_of(peer, "a/returns") == {}
    before = await peer.ask(m.GetStream("a/returns"), m.StreamInfo)
    assert [segment.event_count for segment in before.segments] == [0, 0]
    assert await segments_count(peer) == 4

    await peer.store(orders[1], b"meanwhile ")
    committed = await transaction.commit()

    assert (committed.state, committed.changed) == (TransactionState.COMMITTED, 1)
    assert await content_of(peer, "a/orders") == {
        orders[0]: b"before one two ",
        orders[1]: b"meanwhile one two ",
    }
    assert await content_of(peer, "a/returns") == dict.fromkeys(returns, b"one two ")
    after = await peer.ask(m.GetStream("a/returns"), m.StreamInfo)
    assert [segment.event_count for segment in after.segments] == [2, 2]
    assert {cut.stream_id: cut.positions for cut in committed.cuts}[after.stream_id] == [
        m.CutPosition(segment_id, 8) for segment_id in returns
    ]
    await peer.store(orders[0], b"after")
    assert (await peer.read_all(orders[0])) == b"before one two after"


async def test_a_parked_reader_wakes_with_the_commit(peer: Peer, server: Server) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    async with await Peer.connect(server.address) as reader:
        waiting = await reader.start(m.Read(segment_id=segment_id, offset=0, size_max=100, wait_ms=100_000))
        await transaction.commit()

        assert bytes((await reader.reply(waiting, m.Data)).payload) == b"event"


@pytest.mark.parametrize("container", [QUIET, BUSY])
async def test_a_kill_leaves_it_open_or_committed_whole(tmp_path: Path, container: ContainerOptions) -> None:
    """Behaviours 28, 31: the disk is copied after each step, and another server started from there."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    disks: list[MemoryFileSystem] = []
    async with (
        Server(server_options(tmp_path, container=container), files=files) as server,
        await Peer.connect(server.address) as peer,
    ):
        segments = await create_stream(peer, "a/b", 4)
        transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
        disks.append(files.copy())
        await transaction.write(b"one ")
        disks.append(files.copy())
        await transaction.write(b"two")
        disks.append(files.copy())
        await transaction.commit()
        disks.append(files.copy())

    for number, disk in enumerate(disks):
        disk.crash(number)
        for _ in range(2):
            async with (
                Server(server_options(tmp_path, container=container), files=disk) as server,
                await Peer.connect(server.address) as peer,
            ):
                found = await outcome_of(peer, name="order-7")
                is_committed = number == 3
                assert found.number == transaction.number
                assert found.state == (TransactionState.COMMITTED if is_committed else TransactionState.OPEN)
                expected = dict.fromkeys(segments, b"one two") if is_committed else {}
                assert await content_of(peer, "a/b") == expected
        async with (
            Server(server_options(tmp_path, container=container), files=disk) as server,
            await Peer.connect(server.address) as peer,
        ):
            count = (0, 4, 8, 8)[number]
            request = m.CommitTransaction(
                number=transaction.number, name="", branches=[m.BranchCount(0, count)], drops_others=0, cursors=[]
            )
            committed = await peer.ask(request, m.TransactionInfo)
            assert (committed.state, committed.changed) == (TransactionState.COMMITTED, number < 3)
            content = (b"", b"one ", b"one two", b"one two")[number]
            assert await content_of(peer, "a/b") == (dict.fromkeys(segments, content) if content else {})


async def test_an_open_transaction_continues_after_a_restart(tmp_path: Path) -> None:
    """Behaviour 31: what a checkpoint knows of it is enough."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        segments = await create_stream(peer, "a/b", 2)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(b"one ")
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        assert server._open is not None
        assert server.statistics()["transactions"].open == 1
        transaction.peer = peer

        await transaction.write(b"two")
        await transaction.commit()

        assert await content_of(peer, "a/b") == dict.fromkeys(segments, b"one two")


async def test_a_commit_of_many_segments_is_one_sync(tmp_path: Path) -> None:
    # The clock stands still, so that nothing else is logged meanwhile.
    async with (
        Server(server_options(tmp_path), clock=ManualClock()) as server,
        await Peer.connect(server.address) as peer,
    ):
        await create_stream(peer, "a/b", 64)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(b"event")
        assert server._open is not None
        sequence = server._open.container.state.sequence

        await transaction.commit()

        assert server._open.container.state.sequence == sequence + 1
        assert sum(map(len, (await content_of(peer, "a/b")).values())) == 64 * len(b"event")


async def test_a_commit_of_other_events_than_were_stored_is_refused(peer: Peer) -> None:
    """Behaviour 28: an append that was refused does not become half a commit."""
    await create_stream(peer, "a/b", 2)
    transaction = await PeerTransaction.begin(peer, "a/b")
    first, second = transaction.routed_ids
    await transaction.add_parts([first, second])
    await transaction.append(first, b"stored")
    part_id = transaction.parts[0, second]
    assert await peer.settled(await transaction.send(part_id, b"lost", event_number=2)) == [ErrorCode.EVENT_NUMBER_GAP]
    transaction.counts[0] = 2

    assert await code_of(transaction.commit()) is ErrorCode.BRANCHES_DIFFER

    assert await content_of(peer, "a/b") == {}
    assert await peer.settled(await transaction.send(part_id, b"sent again", event_number=1)) == [Stored(0, False)]
    await transaction.commit()
    assert await content_of(peer, "a/b") == {first: b"stored", second: b"sent again"}


async def test_branches_are_taken_or_dropped_as_a_whole(peer: Peer, server: Server) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"kept ", branch=5)
    await transaction.write(b"of a process that died", branch=6)
    await transaction.write(b"kept, too", branch=7)

    assert await code_of(transaction.commit(5, 7)) is ErrorCode.BRANCHES_DIFFER
    await transaction.commit(7, 5, drops_others=True)

    assert await peer.read_all(segment_id) == b"kept, tookept "
    assert server._open is not None
    assert len(server._open.container.state.segments) == 3  # the stream's own, and two whose bytes are in it


async def test_a_commit_sent_again_answers_with_the_outcome(peer: Peer) -> None:
    """Behaviour 29: one copy; other branches than were committed are refused, and so is an abort."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    first = await transaction.commit()

    again = await transaction.commit()

    assert (first.changed, again.changed) == (1, 0)
    assert (again.state, again.cuts) == (first.state, first.cuts)
    transaction.counts[0] = 2
    assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_COMMITTED
    assert await code_of(transaction.abort()) is ErrorCode.TRANSACTION_COMMITTED
    assert await peer.read_all(segment_id) == b"event"
    part_id = transaction.parts[0, segment_id]
    assert await peer.settled(await transaction.send(part_id, b"late", event_number=2)) == [ErrorCode.SEGMENT_NOT_FOUND]


async def test_an_abort_leaves_nothing(tmp_path: Path) -> None:
    """Behaviours 29, 65: aborting twice is fine; parts go, also those that are in tier 2."""
    async with (
        Server(server_options(tmp_path, container=BUSY)) as server,
        await Peer.connect(server.address) as peer,
    ):
        await create_stream(peer, "a/b", 2)
        transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
        await transaction.write(b"event")
        assert server._open is not None
        state = server._open.container.state
        await until(lambda: not state.unflushed)
        chunks = tmp_path / "tier2" / "c0000" / "segments"
        await until(lambda: len(list(chunks.rglob("*.chunk"))) == 2)

        aborted = await transaction.abort()

        assert (aborted.state, aborted.changed) == (TransactionState.ABORTED, 1)
        assert (await transaction.abort()).changed == 0
        assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_ABORTED
        assert len(state.segments) == 2
        assert len(state.open_transactions) == 0
        await until(lambda: not list(chunks.rglob("*.chunk")))
        assert await content_of(peer, "a/b") == {}


async def test_a_name_leads_to_the_open_one(peer: Peer) -> None:
    """Behaviours 29, 31: begin of a used name joins, is refused after a commit, begins anew after an abort."""
    await create_stream(peer, "a/b", 1)
    await create_stream(peer, "a/c", 1)
    numbers = await reserve(peer, 10)
    first = await PeerTransaction.begin(peer, "a/b", name="order-7")

    async def begin(number: int, *streams: str) -> m.TransactionInfo:
        return await peer.ask(begin_request(number, *streams, name="order-7"), m.TransactionInfo)

    joined = await begin(numbers[0], "a/b")
    assert (joined.number, joined.changed) == (first.number, 0)
    assert await code_of(begin(numbers[0], "a/c")) is ErrorCode.INVALID_ARGUMENT
    await first.abort()
    assert (await outcome_of(peer, name="order-7")).state == TransactionState.ABORTED

    # The number was reserved before that of the first one: it is lower.
    second = await begin(numbers[0], "a/b")
    assert (second.number, second.changed) == (numbers[0], 1)
    assert second.number < first.number
    assert (await begin(numbers[0], "a/b")).changed == 0
    assert (await outcome_of(peer, name="order-7")).number == second.number
    assert (await outcome_of(peer, number=first.number)).state == TransactionState.ABORTED
    committed = await peer.ask(
        m.CommitTransaction(number=second.number, name="", branches=[], drops_others=0, cursors=[]), m.TransactionInfo
    )
    assert committed.state == TransactionState.COMMITTED
    assert await code_of(begin(numbers[1], "a/b")) is ErrorCode.TRANSACTION_COMMITTED
    assert (await outcome_of(peer, name="order-7")).state == TransactionState.COMMITTED


async def test_what_is_not_known_is_said_so(peer: Peer, server: Server) -> None:
    """By name alone, what is not found is unknown; a number that cannot begin any more was aborted."""
    unused, used = await reserve(peer, 2)
    await create_stream(peer, "a/b", 1)
    assert (await outcome_of(peer, name="never")).state == TransactionState.UNKNOWN
    assert (await outcome_of(peer, number=unused)).state == TransactionState.UNKNOWN
    await peer.ask(begin_request(used, "a/b"), m.TransactionInfo)
    await peer.ask(m.AbortTransaction(used, ""), m.TransactionInfo)
    assert await code_of(peer.ask(m.AbortTransaction(unused, ""), m.TransactionInfo)) is ErrorCode.TRANSACTION_UNKNOWN
    assert server._open is not None
    container = server._open.container
    with await container.loader.pin(transactions=[used]):
        await container.decide(m.OutcomesForgotten([used]))

    assert container.state.horizon == used + 1
    assert (await outcome_of(peer, number=used)).state == TransactionState.UNKNOWN


async def test_numbers_are_used_once(peer: Peer) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    numbers = await reserve(peer, 3)
    begin = begin_request(numbers[0], "a/b")
    assert (await peer.ask(begin, m.TransactionInfo)).changed == 1
    assert (await peer.ask(begin, m.TransactionInfo)).changed == 0
    add = m.AddParts(number=numbers[0], branch=0, parts=[m.NewPart(numbers[1], segment_id)])
    assert (await peer.ask(add, m.Done)).changed == 1
    assert (await peer.ask(add, m.Done)).changed == 0

    for number in (numbers[1], numbers[2] + 1, segment_id, 1 << 50):
        refused = peer.ask(begin_request(number, "a/b"), m.TransactionInfo)
        assert await code_of(refused) is ErrorCode.INVALID_ARGUMENT, number
    for part in (m.NewPart(numbers[0], segment_id), m.NewPart(numbers[2], 12345), m.NewPart(numbers[2], segment_id)):
        add = m.AddParts(number=numbers[0], branch=0, parts=[part])
        assert await code_of(peer.ask(add, m.Done)) is ErrorCode.INVALID_ARGUMENT, part
    assert (await peer.ask(m.AddParts(number=numbers[0], branch=1, parts=[part]), m.Done)).changed == 1


async def test_only_its_transaction_changes_a_part(peer: Peer) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    part_id = transaction.parts[0, segment_id]

    assert await peer.settled(await peer.append(part_id, b"without a number")) == [ErrorCode.INVALID_ARGUMENT]
    for request in (m.SealSegment(part_id), m.TruncateSegment(part_id, 1)):
        assert await code_of(peer.ask(request, m.SegmentInfo)) is ErrorCode.INVALID_ARGUMENT
    assert await code_of(peer.ask(m.DeleteSegment(part_id), m.Done)) is ErrorCode.INVALID_ARGUMENT
    await transaction.commit()
    assert await peer.read_all(segment_id) == b"event"


async def scale(peer: Peer, stream: str, sealed_ids: list[int], *borders: int) -> list[int]:
    """Replace segments by others with borders at so many 16ths; return their ids."""
    places = [border * KEY_SPACE // 16 for border in borders]
    ranges = [m.KeyRangeRecord(low, high - 1) for low, high in pairwise(places)]
    info = await peer.ask(m.ScaleStream(stream, sealed_ids, ranges), m.StreamInfo)
    return [segment.segment_id for segment in info.segments if segment.epoch == info.epoch]


async def test_a_transaction_goes_where_its_keys_went(peer: Peer) -> None:
    """Behaviour 32: segments that were merged meanwhile, or split beside it."""
    halves = await create_stream(peer, "a/b", 2)
    transaction = await PeerTransaction.begin(peer, "a/b")
    (whole,) = await scale(peer, "a/b", halves, 0, 16)
    await peer.store(whole, b"new ")
    await transaction.write(b"event ")

    committed = await transaction.commit()

    assert await content_of(peer, "a/b") == {whole: b"new event event "}
    assert [(cut.epoch, cut.positions) for cut in committed.cuts] == [(1, [m.CutPosition(whole, 16)])]


async def test_a_transaction_that_a_split_overtook_is_an_epoch_of_its_own(tmp_path: Path) -> None:
    """Behaviours 32, 63: no byte is written anew, predecessors come first; also after a restart."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        (whole,) = await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(b"event ")
        left, right = await scale(peer, "a/b", [whole], 0, 8, 16)
        await peer.store(left, b"left ")
        await peer.store(right, b"right ")

        committed = await transaction.commit()

        info = await peer.ask(m.GetStream("a/b"), m.StreamInfo)
        assert info.epoch == 3
        (between,) = [segment for segment in info.segments if segment.epoch == 2]
        after = [segment for segment in info.segments if segment.epoch == 3]
        assert (between.sealed_epoch, between.sealed, between.length) == (3, 1, len(b"event "))
        assert [(segment.low, segment.last) for segment in after] == [
            (0, KEY_SPACE // 2 - 1),
            (KEY_SPACE // 2, KEY_SPACE - 1),
        ]
        expected = {left: b"left ", right: b"right ", between.segment_id: b"event "}
        assert await content_of(peer, "a/b") == expected
        assert committed.cuts[0].positions == [m.CutPosition(between.segment_id, 6)]
        assert await peer.settled(await peer.append(left, b"late")) == [ErrorCode.SEGMENT_SEALED]
        await peer.store(after[0].segment_id, b"later")
        # It can be scaled on.
        await scale(peer, "a/b", [segment.segment_id for segment in after], 0, 16)
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        assert await content_of(peer, "a/b") == {**expected, after[0].segment_id: b"later"}


async def test_commits_that_a_split_overtook_wait_for_each_other(peer: Peer) -> None:
    """Behaviour 63: the second one is planned on what the first one leaves, though that is not durable yet."""
    (whole,) = await create_stream(peer, "a/b", 1)
    transactions = [await PeerTransaction.begin(peer, "a/b") for _ in range(3)]
    for number, transaction in enumerate(transactions):
        await transaction.write(b"event %d " % number)
    await scale(peer, "a/b", [whole], 0, 8, 16)

    # In one piece, so that the server has all of them before the first one is durable.
    started = [peer.next_id() for _ in transactions]
    requests = zip(transactions, started, strict=True)
    await peer.send(*[encode(each.commit_request(), request_id=number) for each, number in requests])
    for request_id in started:
        await peer.reply(request_id, m.TransactionInfo)

    info = await peer.ask(m.GetStream("a/b"), m.StreamInfo)
    assert info.epoch == 7
    assert len([segment for segment in info.segments if not segment.sealed_epoch]) == 2
    assert list((await content_of(peer, "a/b")).values()) == [b"event 0 ", b"event 1 ", b"event 2 "]


async def test_sealing_a_stream_aborts_its_transactions(peer: Peer) -> None:
    """Behaviour 21: over all of their streams; others stay."""
    await create_stream(peer, "a/b", 1)
    await create_stream(peer, "a/c", 1)
    both, other = await PeerTransaction.begin(peer, "a/b", "a/c"), await PeerTransaction.begin(peer, "a/c")
    await both.write(b"event")
    await other.write(b"event")

    await peer.ask(m.SealStream("a/b"), m.StreamInfo)

    assert (await outcome_of(peer, number=both.number)).state == TransactionState.ABORTED
    assert await code_of(both.commit()) is ErrorCode.TRANSACTION_ABORTED
    assert (await other.commit()).state == TransactionState.COMMITTED
    late = peer.ask(begin_request(other.ids[-1], "a/b"), m.TransactionInfo)
    assert await code_of(late) is ErrorCode.STREAM_SEALED


async def test_a_lease_that_runs_out_aborts(tmp_path: Path) -> None:
    """Behaviour 30: whatever names it renews it: an append to a part, a request, a list of numbers."""
    clock = ManualClock()
    options = server_options(tmp_path, transactions=TransactionsOptions(tick_s=0.5))
    async with Server(options, clock=clock) as server, await Peer.connect(server.address) as peer:
        await create_stream(peer, "a/b", 1)
        held, renewed, left = [await PeerTransaction.begin(peer, "a/b", lease_ms=5000) for _ in range(3)]
        await held.add_parts(held.routed_ids)
        for _ in range(4):
            for _ in range(8):
                await clock.advance(0.5)
            await held.append(held.routed_ids[0], b"x")
            await peer.ask(m.RenewTransactions([renewed.number]), m.Done)

        assert server._open is not None
        opened = server._open.container.state.open_transactions
        await until(lambda: len(opened) == 2)
        assert (await outcome_of(peer, number=left.number)).state == TransactionState.EXPIRED
        assert await code_of(left.commit()) is ErrorCode.TRANSACTION_ABORTED
        assert (await peer.ask(m.RenewTransactions([renewed.number, left.number]), m.Done)).changed == 0
        assert (await held.commit()).state == TransactionState.COMMITTED
        assert (await renewed.abort()).state == TransactionState.ABORTED


async def test_those_of_one_epoch_share_its_ranges(tmp_path: Path) -> None:
    """Whether they were begun just now, or come from the log or from the checkpoint; the last one gives them back."""

    def opened(server: Server) -> OpenTransactions:
        assert server._open is not None
        return server._open.container.state.open_transactions

    def over(server: Server) -> list[m.TransactionStream]:
        streams = [each.streams[0] for _, each in sorted(opened(server).by_number.items())]
        assert streams[0] is streams[1]
        assert streams[1] is not streams[2]
        assert streams[2] is streams[3]
        assert [len(each.ranges) for each in streams] == [2, 2, 3, 3]
        assert opened(server).size_bytes == 4 * TRANSACTION_SIZE_BYTES + 5 * RANGE_SIZE_BYTES + 2 * OPEN_PART_SIZE_BYTES
        return streams

    options = server_options(tmp_path)
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        first, last = await create_stream(peer, "a/b", 2)
        begun = [await PeerTransaction.begin(peer, "a/b", name=f"t{each}") for each in range(2)]
        await begun[1].write(b"event")
        middle = KEY_SPACE // 4
        ranges = [m.KeyRangeRecord(0, middle - 1), m.KeyRangeRecord(middle, KEY_SPACE // 2 - 1)]
        await peer.ask(m.ScaleStream("a/b", [first], ranges), m.StreamInfo)
        begun += [await PeerTransaction.begin(peer, "a/b", name=f"t{each}") for each in range(2, 4)]
        assert [each.info.streams for each in begun] == [[each] for each in over(server)]
        assert begun[3].routed_ids[-1] == last
    async with Server(options) as server:
        over(server)
        assert server._open is not None
        await server._open.flusher.flush()
        await server._open.flusher.checkpoint()
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        over(server)
        for each in begun:
            await peer.ask(m.AbortTransaction(each.number, ""), m.TransactionInfo)
        assert opened(server).size_bytes == 0


async def test_what_those_that_are_open_may_take(tmp_path: Path) -> None:
    """With what is queued; what one gives back, by its end or when it is prepared, others may take."""
    bound = 2 * TRANSACTION_SIZE_BYTES + 2 * RANGE_SIZE_BYTES + 2 * OPEN_PART_SIZE_BYTES
    options = server_options(tmp_path, transactions=TransactionsOptions(open_size_bytes_max=bound))
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        await create_stream(peer, "a/b", 2)
        first = await PeerTransaction.begin(peer, "a/b", name="order-7")
        await first.add_parts(first.routed_ids[:1], branch=5)
        await first.append(first.routed_ids[0], b"kept", branch=5)
        await first.add_parts(first.routed_ids[:1], branch=6)
        second = await PeerTransaction.begin(peer, "a/b")
        assert server._open is not None
        assert server._open.container.state.open_transactions.size_bytes == bound
        for request in (
            peer.ask(begin_request(first.ids[-1], "a/b"), m.TransactionInfo),
            second.add_parts(second.routed_ids[:1]),
        ):
            with pytest.raises(RefusedError, match=rf"TRANSACTIONS_FULL: .*{bound} bytes of memory"):
                await request

        await first.prepare(5, drops_others=True)
        await second.add_parts(second.routed_ids[:1])
        assert await code_of(second.add_parts(second.routed_ids[1:])) is ErrorCode.TRANSACTIONS_FULL
        await first.abort()
        await second.add_parts(second.routed_ids[1:])
        await second.commit()
        assert server._open.container.state.open_transactions.size_bytes == 0


async def test_how_many_may_be_open_over_a_stream_and_by_a_client(tmp_path: Path) -> None:
    """Also of those whose beginning is not durable yet, and of those from before the start, which were nobody's."""
    bounds = TransactionsOptions(open_per_stream_count_max=4, open_per_session_count_max=3)
    options = server_options(tmp_path, transactions=bounds)
    async with (
        Server(options) as server,
        await Peer.connect(server.address) as peer,
        await Peer.connect(server.address, session_id=bytes(16)) as other,
    ):
        await create_stream(peer, "a/b", 1)
        await create_stream(peer, "a/c", 1)
        numbers, others = await reserve(peer, 10), await reserve(other, 10)

        # In one piece, so that the server has all of them before the first one is durable.
        assert await begun_together(peer, numbers[:5], "a/b") == [None] * 3 + [ErrorCode.TRANSACTIONS_FULL] * 2
        refused = peer.ask(begin_request(numbers[5], "a/c"), m.TransactionInfo)
        with pytest.raises(RefusedError, match="3 transactions that this client began are open"):
            await refused
        assert await begun_together(other, others[:2], "a/c", "a/b") == [None, ErrorCode.TRANSACTIONS_FULL]
        with pytest.raises(RefusedError, match="4 transactions over a/b are open"):
            await other.ask(begin_request(others[2], "a/b"), m.TransactionInfo)
        assert await begun_together(other, others[2:3], "a/c") == [None]
        await peer.ask(m.AbortTransaction(numbers[0], ""), m.TransactionInfo)
        assert await begun_together(peer, numbers[6:8], "a/b") == [None, ErrorCode.TRANSACTIONS_FULL]
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        numbers = await reserve(peer, 4)
        assert await begun_together(peer, numbers[:1], "a/b") == [ErrorCode.TRANSACTIONS_FULL]
        assert await begun_together(peer, numbers[1:3], "a/c") == [None, None]


async def begun_together(peer: Peer, numbers: list[int], *streams: str) -> list[ErrorCode | None]:
    """Begin transactions by frames that arrive together; return how each was refused, None if it was not."""
    started = [peer.next_id() for _ in numbers]
    await peer.send(
        b"".join(
            encode(begin_request(number, *streams), request_id=request_id)
            for number, request_id in zip(numbers, started, strict=True)
        )
    )
    outcomes: list[ErrorCode | None] = []
    for request_id in started:
        try:
            await peer.reply(request_id, m.TransactionInfo)
            outcomes.append(None)
        except RefusedError as error:
            outcomes.append(error.code)
    return outcomes


async def test_a_transaction_has_so_many_bytes_at_most(tmp_path: Path) -> None:
    """What was refused does not count, nor what is sent again; it can be committed, also after a restart."""
    options = server_options(tmp_path, container=ContainerOptions(transaction_size_bytes_max=10))
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        first, second = await create_stream(peer, "a/b", 2)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.add_parts([first, second])
        part_id = transaction.parts[0, first]
        await transaction.append(first, b"12345")
        for _ in range(3):
            assert await peer.settled(await transaction.send(part_id, b"12345", event_number=1)) == [Stored(0, True)]
        refused = await transaction.send(transaction.parts[0, second], b"123456", event_number=1)
        assert await peer.settled(refused) == [ErrorCode.TRANSACTION_TOO_LARGE]
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        transaction.peer = peer
        assert await transaction.append(second, b"1234") == [Stored(0, False)]
        # It begins with what is stored: of the rest there is too much.
        outcomes = await peer.settled(await transaction.send(part_id, b"12345", b"ab", event_number=1))
        assert outcomes == [Stored(0, True), ErrorCode.TRANSACTION_TOO_LARGE]
        assert await transaction.append(first, b"6") == [Stored(5, False)]
        refused = await transaction.send(part_id, b"7", event_number=3)
        assert await peer.settled(refused) == [ErrorCode.TRANSACTION_TOO_LARGE]

        await transaction.commit()

        assert await content_of(peer, "a/b") == {first: b"123456", second: b"1234"}
        # A stream has no such bound.
        await peer.store(first, b"more than ten bytes")


async def test_there_are_bounds(tmp_path: Path) -> None:
    options = server_options(tmp_path, transactions=TransactionsOptions(open_count_max=2, open_parts_count_max=3))
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        await create_stream(peer, "a/b", 2)
        first, second = await PeerTransaction.begin(peer, "a/b"), await PeerTransaction.begin(peer, "a/b")
        refused = peer.ask(begin_request(first.ids[-1], "a/b"), m.TransactionInfo)
        assert await code_of(refused) is ErrorCode.TRANSACTIONS_FULL
        await first.add_parts(first.routed_ids)
        assert await code_of(second.add_parts(second.routed_ids)) is ErrorCode.TRANSACTIONS_FULL
        await first.abort()
        await second.add_parts(second.routed_ids)

        for request in (
            begin_request(second.ids[-1], "a/b", lease_ms=999),
            begin_request(second.ids[-1], "a/b", lease_ms=25 * 3600 * 1000),
            begin_request(second.ids[-1]),
            begin_request(second.ids[-1], "a/b", "a/b"),
        ):
            assert await code_of(peer.ask(request, m.TransactionInfo)) is ErrorCode.INVALID_ARGUMENT
        unprintable = peer.ask(begin_request(second.ids[-1], "a/b", name="a\nb"), m.TransactionInfo)
        assert await code_of(unprintable) is ErrorCode.INVALID_NAME
        missing = peer.ask(begin_request(second.ids[-1], "a/none"), m.TransactionInfo)
        assert await code_of(missing) is ErrorCode.STREAM_NOT_FOUND
        for count in (0, 65_537):
            assert await code_of(peer.ask(m.ReserveIds(count), m.IdRange)) is ErrorCode.INVALID_ARGUMENT


async def test_a_prepared_transaction_waits_for_its_commit(tmp_path: Path) -> None:
    """Behaviours 30, 31: also over a restart; another process commits it by its name."""
    clock = ManualClock()
    async with Server(server_options(tmp_path), clock=clock) as server, await Peer.connect(server.address) as peer:
        (segment_id,) = await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b", name="order-7", lease_ms=1000)
        await transaction.write(b"kept", branch=5)
        await transaction.write(b"dropped", branch=6)
        by_name = m.CommitTransaction(number=0, name="order-7", branches=[], drops_others=0, cursors=[])
        assert await code_of(peer.ask(by_name, m.TransactionInfo)) is ErrorCode.INVALID_ARGUMENT
        assert await code_of(transaction.prepare(5)) is ErrorCode.BRANCHES_DIFFER

        prepared = await transaction.prepare(5, drops_others=True)

        assert (prepared.state, prepared.changed) == (TransactionState.PREPARED, 1)
        assert prepared.branches == [m.BranchCount(5, 1)]
        assert (await transaction.prepare(5, drops_others=True)).changed == 0
        late = await transaction.send(transaction.parts[5, segment_id], b"late", event_number=2)
        assert await peer.settled(late) == [ErrorCode.TRANSACTION_PREPARED]
        assert await code_of(transaction.add_parts([segment_id], branch=7)) is ErrorCode.TRANSACTION_PREPARED
        assert await code_of(transaction.commit(5, 6)) is ErrorCode.TRANSACTION_PREPARED
        joined = await peer.ask(begin_request(transaction.ids[-1], "a/b", name="order-7"), m.TransactionInfo)
        assert (joined.number, joined.state, joined.changed) == (transaction.number, TransactionState.PREPARED, 0)
        for _ in range(10):
            await clock.advance(1.0)
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        assert (await outcome_of(peer, name="order-7")).state == TransactionState.PREPARED

        committed = await peer.ask(by_name, m.TransactionInfo)

        assert (committed.state, committed.changed) == (TransactionState.COMMITTED, 1)
        assert (await peer.ask(by_name, m.TransactionInfo)).changed == 0
        assert await content_of(peer, "a/b") == {segment_id: b"kept"}


async def test_a_stream_is_not_sealed_while_a_transaction_is_prepared(peer: Peer) -> None:
    """Behaviour 21: the error names it; `force` aborts it."""
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
    open_one = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    await transaction.prepare()

    with pytest.raises(RefusedError, match=r"TRANSACTION_PREPARED: a/b transaction order-7 is prepared"):
        await peer.ask(m.SealStream("a/b"), m.StreamInfo)

    assert (await outcome_of(peer, number=open_one.number)).state == TransactionState.OPEN
    await peer.ask(m.SealStream("a/b", 1), m.StreamInfo)
    assert (await outcome_of(peer, name="order-7")).state == TransactionState.ABORTED
    assert (await outcome_of(peer, number=open_one.number)).state == TransactionState.ABORTED


async def test_those_that_are_not_over_are_listed_in_pages(peer: Peer) -> None:
    await create_stream(peer, "a/b", 1)
    begun = [await PeerTransaction.begin(peer, "a/b", name=name) for name in ("", "order-7", "", "order-9", "")]
    await begun[1].write(b"event")
    await begun[1].prepare()
    await begun[2].abort()
    await begun[3].commit()

    listed: list[m.ListedTransaction] = []
    more = True
    while more:
        after = listed[-1].number if listed else 0
        page = await peer.ask(m.ListTransactions(after, 2), m.TransactionList)
        assert len(page.transactions) <= 2
        listed, more = listed + page.transactions, bool(page.more)

    assert [(each.number, each.name, each.state, each.part_count) for each in listed] == [
        (begun[0].number, "", TransactionState.OPEN, 0),
        (begun[1].number, "order-7", TransactionState.PREPARED, 1),
        (begun[4].number, "", TransactionState.OPEN, 0),
    ]
    assert [each.begun_us for each in listed] == [begun[place].info.begun_us for place in (0, 1, 4)]
    assert (await peer.ask(m.ListTransactions(0, 0), m.TransactionList)).transactions == listed


async def test_one_without_a_name_is_not_prepared(peer: Peer) -> None:
    """Behaviour 30: if its client dies, nobody can end it; it stays open."""
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    with pytest.raises(RefusedError, match=r"INVALID_ARGUMENT: .*give it a name"):
        await transaction.prepare()
    assert (await outcome_of(peer, number=transaction.number)).state == TransactionState.OPEN
    await transaction.commit()


async def test_a_prepared_transaction_may_be_aborted(peer: Peer) -> None:
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
    await transaction.write(b"event")
    await transaction.prepare()

    assert (await transaction.abort()).state == TransactionState.ABORTED
    assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_ABORTED


def at(segment_id: int, offset: int) -> list[m.SavedPosition]:
    return [m.SavedPosition(segment_id, offset, 0)]


async def cursors_of(peer: Peer, stream: str) -> dict[str, list[m.SavedPosition]]:
    return {cut.name: cut.positions for cut in (await peer.ask(m.ListCuts(stream), m.CutList)).cuts}


async def test_positions_that_were_read_move_with_the_commit_or_keep_it_from_being_made(tmp_path: Path) -> None:
    """Behaviour 61: read, process, write; also after a restart."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        (source,) = await create_stream(peer, "a/read", 1)
        (target,) = await create_stream(peer, "a/written", 1)
        block = bytes(pack_block([b"event"]))
        size = len(block)
        await peer.store(source, block, block)
        first, second = await PeerTransaction.begin(peer, "a/written"), await PeerTransaction.begin(peer, "a/written")
        await first.write(b"first ")
        await second.write(b"second ")

        def move(*, expected: list[m.SavedPosition], to: int) -> list[m.CursorMove]:
            return [m.CursorMove("a/read", "job", expected, at(source, to))]

        await first.commit(cursors=move(expected=[], to=size))
        assert await cursors_of(peer, "a/read") == {"job": at(source, size)}

        # The second one has read from the same place as the first.
        assert await code_of(second.commit(cursors=move(expected=[], to=size))) is ErrorCode.CURSOR_MOVED
        assert await peer.read_all(target) == b"first "
        assert (await outcome_of(peer, number=second.number)).state == TransactionState.OPEN
        for wrong, code in ((2, ErrorCode.CUT_INVALID), (9999, ErrorCode.OFFSET_BEYOND_END)):
            assert await code_of(second.commit(cursors=move(expected=at(source, size), to=wrong))) is code
        await second.commit(cursors=move(expected=at(source, size), to=2 * size))
        again = await second.commit(cursors=move(expected=at(source, size), to=2 * size))
        assert again.changed == 0
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        assert await cursors_of(peer, "a/read") == {"job": at(source, 2 * size)}
        assert await peer.read_all(target) == b"first second "


async def test_of_two_commits_at_once_that_move_one_cursor_one_is_made(peer: Peer) -> None:
    """Behaviour 61: what is in flight counts, though it is not durable yet."""
    (source,) = await create_stream(peer, "a/read", 1)
    await peer.store(source, b"x")
    (target,) = await create_stream(peer, "a/written", 1)
    transactions = [await PeerTransaction.begin(peer, "a/written") for _ in range(8)]
    for transaction in transactions:
        await transaction.write(b"event")
    moves = [m.CursorMove("a/read", "job", [], at(source, 1))]

    # In one piece, so that the server has all of them before the first one is durable.
    started = [peer.next_id() for _ in transactions]
    requests = zip(transactions, started, strict=True)
    await peer.send(*[encode(each.commit_request(cursors=moves), request_id=number) for each, number in requests])

    outcomes: list[ErrorCode | None] = []
    for request_id in started:
        try:
            await peer.reply(request_id, m.TransactionInfo)
            outcomes.append(None)
        except RefusedError as error:
            outcomes.append(error.code)
    assert sorted(map(str, outcomes)) == sorted(map(str, [None] + [ErrorCode.CURSOR_MOVED] * 7))
    assert await peer.read_all(target) == b"event"


async def test_no_cursor_moves_with_a_prepared_transaction(peer: Peer) -> None:
    """What is prepared can always be committed."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
    await transaction.write(b"event")
    await transaction.prepare()

    moves = [m.CursorMove("a/b", "job", [], at(segment_id, 0))]
    assert await code_of(transaction.commit(cursors=moves)) is ErrorCode.INVALID_ARGUMENT
    assert (await transaction.commit()).state == TransactionState.COMMITTED
    assert await cursors_of(peer, "a/b") == {}
