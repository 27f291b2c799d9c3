"""How much there may be of open transactions, and what they cost, by one container."""

import re
from functools import partial

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.model.transaction import TransactionState
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.transaction import (
    OPEN_PART_SIZE_BYTES,
    RANGE_SIZE_BYTES,
    TRANSACTION_SIZE_BYTES,
    OpenTransactions,
)
from millrace.server.kinds.streams import part_count
from millrace.server.kinds.transactions import limits
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from tests.support.protocol import Peer, RefusedError, Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.transactions import (
    PeerTransaction,
    begin_request,
    content_of,
    create_stream,
    reserve,
)

pytestmark = pytest.mark.asyncio


async def test_those_of_one_epoch_share_its_ranges(scenario: Scenario) -> None:
    """Whether they were begun just now, or come from the log or from the checkpoint; the last one gives them back."""

    def opened(run: Run) -> OpenTransactions:
        return run.state.open_transactions

    def over(run: Run) -> list[m.TransactionStream]:
        streams = [each.streams[0] for _, each in sorted(opened(run).by_number.items())]
        assert streams[0] is streams[1]
        assert streams[1] is not streams[2]
        assert streams[2] is streams[3]
        assert [len(each.ranges) for each in streams] == [2, 2, 3, 3]
        assert opened(run).size_bytes == 4 * TRANSACTION_SIZE_BYTES + 5 * RANGE_SIZE_BYTES + 2 * OPEN_PART_SIZE_BYTES
        return streams

    running = scenario.running
    async with running() as run, run.peer() as peer:
        first, last = await create_stream(peer, "a/b", 2)
        begun = [await PeerTransaction.begin(peer, "a/b", name=f"t{each}") for each in range(2)]
        await begun[1].write(b"event")
        middle = KEY_SPACE // 4
        ranges = [m.KeyRangeRecord(0, middle - 1), m.KeyRangeRecord(middle, KEY_SPACE // 2 - 1)]
        await peer.ask(m.ScaleStream("a/b", [first], ranges), m.StreamInfo)
        begun += [await PeerTransaction.begin(peer, "a/b", name=f"t{each}") for each in range(2, 4)]
        assert [each.info.streams for each in begun] == [[each] for each in over(run)]
        assert begun[3].routed_ids[-1] == last
    async with running() as run:
        over(run)
        await run.opened.flusher.flush()
        await run.opened.flusher.checkpoint()
    async with running() as run, run.peer() as peer:
        over(run)
        for each in begun:
            await peer.ask(m.AbortTransaction(each.number, ""), m.TransactionReply)
        assert opened(run).size_bytes == 0


async def test_what_those_that_are_open_may_take(scenario: Scenario) -> None:
    """With what is queued; what one gives back, by its end or when it is prepared, others may take."""
    bound = 2 * TRANSACTION_SIZE_BYTES + 2 * RANGE_SIZE_BYTES + 2 * OPEN_PART_SIZE_BYTES
    running = partial(scenario.running, transactions=TransactionsOptions(open_size_bytes_max=2 * bound))
    async with running() as run, run.peer() as peer:
        await create_stream(peer, "a/b", 2)
        first = await PeerTransaction.begin(peer, "a/b", name="order-7")
        await first.add_parts(first.routed_ids[:1], branch=5)
        await first.append(first.routed_ids[0], b"kept", branch=5)
        await first.add_parts(first.routed_ids[:1], branch=6)
        second = await PeerTransaction.begin(peer, "a/b")
        assert run.state.open_transactions.size_bytes == bound
        for request in (
            peer.ask(begin_request(first.ids[-1], "a/b"), m.TransactionReply),
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
        assert run.state.open_transactions.size_bytes == 0


async def test_how_many_may_be_open_over_a_stream_and_by_a_client(scenario: Scenario) -> None:
    """Also of those whose beginning is not durable yet, and of those from before the start, which were nobody's."""
    bounds = TransactionsOptions(open_per_stream_count_max=7, open_per_session_count_max=3)
    running = partial(scenario.running, transactions=bounds)
    async with (
        running() as run,
        run.peer() as peer,
        run.peer(session_id=bytes(16)) as other,
    ):
        await create_stream(peer, "a/b", 1)
        await create_stream(peer, "a/c", 1)
        numbers, others = await reserve(peer, 10), await reserve(other, 10)

        # In one piece, so that the server has all of them before the first one is durable.
        assert await begun_together(peer, numbers[:5], "a/b") == [None] * 3 + [ErrorCode.TRANSACTIONS_FULL] * 2
        refused = peer.ask(begin_request(numbers[5], "a/c"), m.TransactionReply)
        with pytest.raises(RefusedError, match="3 transactions that this client began are open"):
            await refused
        assert await begun_together(other, others[:2], "a/c", "a/b") == [None, ErrorCode.TRANSACTIONS_FULL]
        with pytest.raises(RefusedError, match="4 transactions over a/b are open"):
            await other.ask(begin_request(others[2], "a/b"), m.TransactionReply)
        assert await begun_together(other, others[2:3], "a/c") == [None]
        await peer.ask(m.AbortTransaction(numbers[0], ""), m.TransactionReply)
        assert await begun_together(peer, numbers[6:8], "a/b") == [None, ErrorCode.TRANSACTIONS_FULL]
    async with running() as run, run.peer() as peer:
        numbers = await reserve(peer, 4)
        # The others were begun by nobody that is known: their share is not that of this address.
        assert await begun_together(peer, numbers[:1], "a/b") == [None]
        assert await begun_together(peer, numbers[1:3], "a/c") == [None, None]


async def test_addresses_share_the_bounds(scenario: Scenario) -> None:
    """Behaviour 104: one address cannot use up the transactions; the error counts, and names what ends one."""
    running = partial(scenario.running, transactions=TransactionsOptions(open_count_max=7))
    async with (
        running() as run,
        run.peer() as peer,
        run.peer(address="127.0.0.2") as other,
    ):
        await create_stream(peer, "a/b", 1)
        prepared = await PeerTransaction.begin(peer, "a/b", name="order-7")
        await prepared.prepare()
        numbers = await reserve(peer, 6)
        full = ErrorCode.TRANSACTIONS_FULL
        assert await begun_together(peer, numbers[:5], "a/b") == [None] * 3 + [full] * 2
        with pytest.raises(
            RefusedError, match=r"4 transactions are open, your address holds 4; .* limit of 7"
        ) as caught:
            await peer.ask(begin_request(numbers[5], "a/b"), m.TransactionReply)
        assert re.search(r"1 are prepared and .* `millrace txn abort --number N`", str(caught.value))
        assert await begun_together(other, await reserve(other, 3), "a/b") == [None, None, full]
        await prepared.abort()
        opened = run.state.open_transactions
        assert (opened.prepared_count, opened.address_count("127.0.0.1"), opened.address_count("127.0.0.2")) == (
            0,
            3,
            2,
        )


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
            await peer.reply(request_id, m.TransactionReply)
            outcomes.append(None)
        except RefusedError as error:
            outcomes.append(error.code)
    return outcomes


async def test_the_streams_of_one_have_so_many_open_segments_at_most(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what tells its routes fits a frame."""
    monkeypatch.setattr(limits, "RANGES_COUNT_MAX", 3)
    for name, count in (("a/b", 2), ("a/c", 2), ("a/d", 1)):
        await create_stream(peer, name, count)
    number, other = await reserve(peer, 2)

    with pytest.raises(RefusedError, match=r"INVALID_ARGUMENT: .* at most 3 open segments"):
        await peer.ask(begin_request(number, "a/b", "a/c"), m.TransactionReply)
    assert (await peer.ask(begin_request(number, "a/b", "a/d"), m.TransactionReply)).changed == 1
    assert (await peer.ask(begin_request(other, "a/c"), m.TransactionReply)).changed == 1


async def test_a_transaction_has_so_many_bytes_at_most(scenario: Scenario) -> None:
    """What was refused does not count, nor what is sent again; it can be committed, also after a restart."""
    running = partial(scenario.running, container=ContainerOptions(transaction_size_bytes_max=10))
    async with running() as run, run.peer() as peer:
        first, second = await create_stream(peer, "a/b", 2)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.add_parts([first, second])
        part_id = transaction.parts[0, first]
        await transaction.append(first, b"12345")
        for _ in range(3):
            assert await peer.settled(await transaction.send(part_id, b"12345", event_number=1)) == [Stored(0, True)]
        refused = await transaction.send(transaction.parts[0, second], b"123456", event_number=1)
        assert await peer.settled(refused) == [ErrorCode.TRANSACTION_TOO_LARGE]
    async with running() as run, run.peer() as peer:
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


async def test_there_are_bounds(scenario: Scenario) -> None:
    running = partial(scenario.running, transactions=TransactionsOptions(open_count_max=3, open_parts_count_max=3))
    async with running() as run, run.peer() as peer:
        await create_stream(peer, "a/b", 2)
        first, second = await PeerTransaction.begin(peer, "a/b"), await PeerTransaction.begin(peer, "a/b")
        refused = peer.ask(begin_request(first.ids[-1], "a/b"), m.TransactionReply)
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
            begin_request(second.ids[-1], *(f"a/{number}" for number in range(101))),
        ):
            assert await code_of(peer.ask(request, m.TransactionReply)) is ErrorCode.INVALID_ARGUMENT
        unprintable = peer.ask(begin_request(second.ids[-1], "a/b", name="a\nb"), m.TransactionReply)
        assert await code_of(unprintable) is ErrorCode.INVALID_NAME
        missing = peer.ask(begin_request(second.ids[-1], "a/none"), m.TransactionReply)
        assert await code_of(missing) is ErrorCode.STREAM_NOT_FOUND
        for count in (0, 65_537):
            assert await code_of(peer.ask(m.ReserveIds(count), m.IdRange)) is ErrorCode.INVALID_ARGUMENT


async def test_a_commit_that_begins_epochs_respects_the_bound_on_segments(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 106: it is refused before it is logged, and is committed once the stream is truncated."""
    half = KEY_SPACE // 2
    async with scenario.running() as run, run.peer() as peer:
        (only,) = await create_stream(peer, "a/b", 1)
        torn, plain = [await PeerTransaction.begin(peer, "a/b") for _ in range(2)]
        await torn.write(b"torn")
        await peer.store(only, b"first")
        halves = [m.KeyRangeRecord(0, half - 1), m.KeyRangeRecord(half, KEY_SPACE - 1)]
        scaled = await peer.ask(m.ScaleStream("a/b", [only], halves), m.StreamInfo)
        # It has three segments, and the commit creates three more: one for the part, two as they were open.
        monkeypatch.setattr(part_count, "PARTS_PER_STREAM_COUNT_MAX", 5)

        assert await code_of(torn.commit()) is ErrorCode.INVALID_ARGUMENT
        assert (await peer.ask(m.GetStream("a/b"), m.StreamInfo)).epoch == scaled.epoch
        opened = [each.segment_id for each in scaled.segments if not each.sealed_epoch]
        for segment_id in opened:
            await peer.store(segment_id, b"second")
        positions = [m.SavedPosition(segment_id, len(b"second"), 0) for segment_id in opened]
        await peer.ask(m.TruncateStream("a/b", positions), m.StreamInfo)
        await torn.commit()
        assert (await peer.ask(m.GetStream("a/b"), m.StreamInfo)).epoch == scaled.epoch + 2
        monkeypatch.setattr(part_count, "PARTS_PER_STREAM_COUNT_MAX", 1)
        assert (await plain.commit()).state == TransactionState.COMMITTED, "it begins no epoch"
