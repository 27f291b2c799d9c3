"""What parts of transactions are to the rest of the server, before and after the commit."""

# Nobody needs to look at the future of a write: flush and leaving the transaction raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import pytest

from millrace.model.block_packing import pack_block
from millrace.model.key_range import key_place
from millrace.model.policy import ScalingKind
from millrace.model.transaction import TransactionState
from millrace.server.host.room import RESERVE_BYTES_MIN
from millrace.server.kinds.transactions.expiry import TransactionExpiryLoop
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.server.streams import StreamsOptions
from millrace.server.streams.load import StreamLoads
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.support.protocol import Stored, code_of
from tests.support.scenario import Scenario
from tests.support.servers import SMALL_WAL
from tests.support.transactions import PeerTransaction, content_of, create_stream, outcome_of, reserve

pytestmark = pytest.mark.asyncio


async def test_parts_count_as_unflushed_bytes_and_are_flushed(scenario: Scenario) -> None:
    """They count to the budget of tails, and leave it by the way of all segments; the commit writes no byte again."""
    async with scenario.running() as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b")
        state = run.state
        before = state.tail_bytes
        await transaction.write(bytes(10 * KIB))
        assert state.tail_bytes - before >= 10 * KIB
        held = state.tail_bytes
        await transaction.commit()
        assert state.tail_bytes == held
        await run.published()
        chunks = len(scenario.storage.names())
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(bytes(10 * KIB))
        await run.published()
        assert (len(state.unflushed), state.tail_bytes) == (0, 0)
        assert len(scenario.storage.names()) == chunks + 1


async def test_retention_and_truncation_leave_open_parts_alone(scenario: Scenario) -> None:
    """Behaviour 28: a stream that may keep nothing forgets all but what is not committed."""
    options = StreamsOptions(retention_interval_s=0.05)
    async with scenario.running(in_background=True, streams=options) as run, run.peer() as peer:
        configuration = '{"retention": {"kind": "size", "max_bytes": 1}}'
        info = await peer.ask(m.CreateStream("a/b", 1, configuration), m.StreamInfo)
        segment_id = info.segments[0].segment_id
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(b"in a part")
        await peer.store(segment_id, bytes(KIB), bytes(KIB))

        await run.published()
        while run.state.segments[segment_id].start_offset < KIB:
            await scenario.clock.advance(0.05)
        await peer.ask(m.TruncateStream("a/b", [m.SavedPosition(segment_id, 2 * KIB)]), m.StreamInfo)
        part = run.state.segments[transaction.parts[0, segment_id]]
        assert (part.start_offset, part.length) == (0, 9)

        await transaction.commit()

        assert (await peer.info(segment_id)).length == 2 * KIB + 9


@pytest.mark.slow
@pytest.mark.parametrize("what", ["disk", "tier 2"])
async def test_a_full_log_takes_the_end_of_what_is_open(what: str) -> None:
    """Behaviours 28, 44: commit, prepare and abort have reserved room; whatever would be new is refused."""
    scenario = Scenario(wal=SMALL_WAL)
    files, storage = scenario.files, scenario.storage
    storage.capacity_bytes = 40 * KIB if what == "tier 2" else None
    async with scenario.running(in_background=True) as run, run.peer() as peer:
        await create_stream(peer, "a/b", 2)
        names = ("committed", "aborted", "prepared")
        committed, aborted, prepared = [await PeerTransaction.begin(peer, "a/b", name=name) for name in names]
        for name, transaction in zip(names, (committed, aborted, prepared), strict=True):
            await transaction.write(b"event of " + name.encode())
        segment_id = await peer.create_segment("raw/a")
        if what == "disk":
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
        if what == "disk":
            files.capacity_bytes = 64 << 20
        storage.capacity_bytes = None
    async with scenario.running() as run, run.peer() as peer:
        assert list((await content_of(peer, "a/b")).values()) == [expected] * 2


async def test_the_load_of_a_stream_has_what_is_committed_once(scenario: Scenario) -> None:
    """Not before the commit, and all of it then; its keys are sampled once, too."""
    async with scenario.running() as run, run.peer() as peer:
        (segment_id,) = await create_stream(peer, "a/b", 1)
        state = run.state
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


async def test_an_abandoned_transaction_leaves_nothing(scenario: Scenario) -> None:
    """Behaviour 65: after its lease there are as many segments, rows, chunks, pins and bytes as before it."""
    options = TransactionsOptions(tick_s=0.5, unnamed_outcome_s=1)
    async with scenario.running(in_background=True, transactions=options) as run, run.peer() as peer:
        await create_stream(peer, "a/b", 4)
        state = run.state
        writer_count = len(state.writers)

        def counts() -> tuple[int, ...]:
            opened = state.open_transactions
            held = (len(state.unflushed), len(state.merged), state.tail_bytes, len(scenario.storage.names()))
            return len(state.segments), len(opened), opened.parts_count, opened.begun_count, opened.pins_count, *held

        await run.published()
        before = counts()
        transactions = [await PeerTransaction.begin(peer, "a/b", lease_ms=1000) for _ in range(3)]
        for transaction in transactions:
            await transaction.write(bytes(5 * KIB))
        await run.published()
        assert len(scenario.storage.names()) == 12
        assert counts() != before

        while len(state.open_transactions):
            await scenario.clock.advance(0.5)
        await run.published()
        await run.published()
        assert counts() == before
        for transaction in transactions:
            assert (await outcome_of(peer, number=transaction.number)).state == TransactionState.EXPIRED
            assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_ABORTED
        assert len(state.writers) == writer_count + 3  # those of the test, which are not of the transactions
        statistics = run.services.get(TransactionExpiryLoop).statistics
        assert (statistics.open, statistics.expired_total, statistics.oldest_age_s) == (0, 3, 0.0)
        assert isinstance((await peer.settled(await peer.append(transactions[0].routed_ids[0], b"x")))[0], Stored)
