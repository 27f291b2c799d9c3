"""Producers of one container."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from millrace.model.producer import FENCED_RUNS_COUNT_MAX, Producer
from millrace.model.transaction import TransactionState
from millrace.server.host.room import RESERVE_BYTES_MIN
from millrace.server.kinds.transactions.expiry import TransactionExpiryLoop
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.support.protocol import Peer, code_of
from tests.support.scenario import Run, Scenario
from tests.support.servers import SMALL_WAL
from tests.support.transactions import (
    PeerTransaction,
    begin_request,
    content_of,
    create_stream,
    outcome_of,
    reserve,
)

pytestmark = pytest.mark.asyncio

W, H, R, S = "query", "holder", "run", 7


@pytest_asyncio.fixture
async def peer(run: Run) -> AsyncIterator[Peer]:
    async with run.peer() as connected:
        await create_stream(connected, "a/b", 1)
        yield connected


async def begun(peer: Peer, producer: Producer | None, *, name: str = "") -> PeerTransaction:
    return await PeerTransaction.begin(peer, "a/b", name=name, producer=producer)


async def written(peer: Peer, producer: Producer, payload: bytes, *, name: str = "") -> PeerTransaction:
    transaction = await begun(peer, producer, name=name)
    await transaction.write(payload)
    return transaction


async def info_of(peer: Peer, writer_id: str = W) -> m.ProducerInfo:
    return await peer.ask(m.GetProducer(writer_id), m.ProducerInfo)


async def reset(peer: Peer, expected: str, holder: str) -> int:
    request = m.ResetProducer(producer_id=W, expected_holder=expected, holder=holder)
    return (await peer.ask(request, m.Done)).changed


async def content(peer: Peer) -> bytes:
    return b"".join((await content_of(peer, "a/b")).values())


async def test_a_sequence_is_committed_once(peer: Peer) -> None:
    """Behaviour 67: whoever sends it again, by another transaction and in another run, and without any outcome."""
    transaction = await written(peer, Producer(W, H, "r1", 0), b"zero ")
    await transaction.commit()
    assert (await transaction.commit()).changed == 0
    await (await written(peer, Producer(W, H, "r1", 1), b"one ")).commit()

    for run in ("r1", "r2"):
        for sequence in (0, 1):
            assert await code_of(begun(peer, Producer(W, H, run, sequence))) is ErrorCode.PRODUCER_COMMITTED
    await (await written(peer, Producer(W, H, "r2", 9), b"nine")).commit()  # gaps are fine

    assert await content(peer) == b"zero one nine"
    info = await info_of(peer)
    assert (info.holder, info.run, info.last_sequence, info.fenced) == (H, "r2", 9, [m.FencedRun("r1")])


async def test_two_transactions_of_one_sequence_are_one_commit(peer: Peer) -> None:
    """Behaviours 67, 68: the other one is refused, and of it nothing is left, at once."""
    first, second = await written(peer, Producer(W, H, R, S), b"one"), await written(peer, Producer(W, H, R, S), b"two")
    earlier = await written(peer, Producer(W, H, R, S - 1), b"earlier")
    await first.commit()

    for late in (second, earlier):
        assert await code_of(late.commit()) is ErrorCode.PRODUCER_COMMITTED
        assert (await outcome_of(peer, number=late.number)).state == TransactionState.ABORTED
        assert await code_of(late.commit()) is ErrorCode.PRODUCER_COMMITTED  # the same answer
    assert (await peer.ask(m.ListTransactions(0, 10), m.TransactionList)).transactions == []
    assert await content(peer) == b"one"


async def test_commits_of_one_sequence_at_the_same_time(peer: Peer) -> None:
    """Behaviour 64: one is committed, and the other is told so once that is durable."""
    transactions = [await written(peer, Producer(W, H, R, S), b"once") for _ in range(2)]
    ids = [await peer.start(each.commit_request()) for each in transactions]
    outcomes = [await code_or_state(peer, each) for each in ids]

    assert sorted(outcomes) == sorted([TransactionState.COMMITTED, ErrorCode.PRODUCER_COMMITTED])
    assert await content(peer) == b"once"


async def code_or_state(peer: Peer, request_id: int) -> int:
    try:
        return (await peer.reply(request_id, m.TransactionReply)).state
    except Exception as error:  # noqa: BLE001  # only a refusal has a code
        return int(error.code)  # type: ignore[attr-defined]


async def test_a_run_that_was_replaced_commits_nothing(peer: Peer) -> None:
    """Behaviours 68, 69: a new run takes over by its first transaction; the error names both."""
    old = await written(peer, Producer(W, H, "r1", S), b"zombie")
    fresh = await written(peer, Producer(W, H, "r2", S), b"fresh")

    with pytest.raises(Exception, match=r"PRODUCER_FENCED: query run r1 of holder .* run r2 of holder"):
        await old.commit()
    assert (await outcome_of(peer, number=old.number)).state == TransactionState.ABORTED
    assert await code_of(begun(peer, Producer(W, H, "r1", S + 1))) is ErrorCode.PRODUCER_FENCED
    await fresh.commit()
    assert await content(peer) == b"fresh"


async def test_a_run_takes_over_though_its_content_is_committed(peer: Peer) -> None:
    """Behaviour 69: known by the name, or by the sequence."""
    await (await written(peer, Producer(W, H, "r1", S), b"one", name="n")).commit()
    for run, name in (("r2", "n"), ("r3", "")):
        old = await written(peer, Producer(W, H, f"r{int(run[1]) - 1}", S + 1), b"zombie")
        refused = ErrorCode.TRANSACTION_COMMITTED if name else ErrorCode.PRODUCER_COMMITTED
        assert await code_of(begun(peer, Producer(W, H, run, S), name=name)) is refused
        assert (await info_of(peer)).run == run
        assert await code_of(old.commit()) is ErrorCode.PRODUCER_FENCED
    assert await content(peer) == b"one"


async def test_the_outcome_of_a_name_is_looked_up_first(peer: Peer) -> None:
    """What is committed is told to everybody: also to a run that is fenced, and to another holder, who take nothing."""
    await (await written(peer, Producer(W, H, "r1", S), b"one", name="n")).commit()
    await begun(peer, Producer(W, H, "r2", S + 1))
    before = await info_of(peer)

    for claim in (Producer(W, H, "r1", S), Producer(W, "another", "r9", S)):
        assert await code_of(begun(peer, claim, name="n")) is ErrorCode.TRANSACTION_COMMITTED

    assert await info_of(peer) == before


async def test_another_holder_is_refused_until_a_reset(peer: Peer) -> None:
    """Behaviour 69: whatever its sequence; the error names both, and the command. What was fenced stays so."""
    old = await written(peer, Producer(W, H, "r1", S), b"old")
    await old.commit()
    left = await written(peer, Producer(W, H, "r1", S + 1), b"left")
    for sequence in (0, S, S + 100):
        with pytest.raises(Exception, match=r"PRODUCER_HELD: query .*held by holder, not by new.* --holder new"):
            await begun(peer, Producer(W, "new", "n1", sequence))

    assert await code_of(reset(peer, "somebody", "new")) is ErrorCode.PRODUCER_HELD
    assert await reset(peer, H, "new") == 1
    assert await reset(peer, H, "new") == 0  # the same request again
    info = await info_of(peer)
    assert (info.holder, info.run, info.last_sequence, info.fenced) == ("new", "", -1, [m.FencedRun("r1")])

    assert await code_of(left.commit()) is ErrorCode.PRODUCER_FENCED
    assert await code_of(begun(peer, Producer(W, H, "r1", S + 1))) is ErrorCode.PRODUCER_FENCED
    assert await code_of(begun(peer, Producer(W, H, "r2", S + 1))) is ErrorCode.PRODUCER_HELD
    await (await written(peer, Producer(W, "new", "n1", 0), b" new")).commit()  # its sequences start over
    assert await reset(peer, H, "new") == 0
    assert (await info_of(peer)).last_sequence == 0
    assert await content(peer) == b"old new"


async def test_a_reset_without_a_holder_is_for_the_next_run(peer: Peer) -> None:
    await begun(peer, Producer(W, H, "r1", S))
    assert await reset(peer, H, "") == 1
    assert await reset(peer, "", "") == 0
    assert await code_of(begun(peer, Producer(W, H, "r1", S))) is ErrorCode.PRODUCER_FENCED
    await begun(peer, Producer(W, "next", "n1", S))
    assert (await info_of(peer)).holder == "next"
    assert await code_of(begun(peer, Producer(W, H, "r2", S))) is ErrorCode.PRODUCER_HELD


async def test_who_joins_needs_no_producer(peer: Peer) -> None:
    """Behaviour 68: a process that fills a branch, and its commit is judged by the producer all the same."""
    first = await written(peer, Producer(W, H, "r1", S), b"one", name="n")
    joined = await begun(peer, None, name="n")
    same = await begun(peer, Producer(W, H, "r1", S), name="n")
    assert joined.number == same.number == first.number
    for other in (Producer(W, H, "r1", S + 1), Producer("another", H, "r1", S)):
        assert await code_of(begun(peer, other, name="n")) is ErrorCode.INVALID_ARGUMENT
    await begun(peer, Producer(W, H, "r2", S))
    assert await code_of(joined.commit(0, drops_others=True)) is ErrorCode.PRODUCER_FENCED


async def test_a_new_run_begins_anew_under_the_name_of_the_old_one(peer: Peer) -> None:
    """Behaviour 67: what the old run has written under it can never be committed, and is not joined."""
    old = await written(peer, Producer(W, H, "r1", S), b"old", name="n")
    fresh = await written(peer, Producer(W, H, "r2", S), b"fresh", name="n")
    assert fresh.number != old.number
    assert (await outcome_of(peer, name="n")).number == fresh.number
    assert (await outcome_of(peer, number=old.number)).state == TransactionState.OPEN
    assert await code_of(old.commit()) is ErrorCode.PRODUCER_FENCED
    assert (await outcome_of(peer, name="n")).state == TransactionState.OPEN
    await fresh.commit()
    assert (await outcome_of(peer, name="n")).state == TransactionState.COMMITTED
    assert await content(peer) == b"fresh"


async def test_what_is_prepared_has_no_producer(peer: Peer) -> None:
    transaction = await written(peer, Producer(W, H, R, S), b"one", name="n")
    assert await code_of(transaction.prepare()) is ErrorCode.INVALID_ARGUMENT
    await transaction.commit()
    plain = await begun(peer, None, name="m")
    await plain.prepare()
    assert await code_of(begun(peer, Producer(W, H, R, S + 1), name="m")) is ErrorCode.INVALID_ARGUMENT


async def test_a_refused_commit_moves_nothing(peer: Peer) -> None:
    """The sequence is that of the commit: what is not committed can be committed later."""
    transaction = await written(peer, Producer(W, H, R, S), b"one")
    transaction.counts[0] = 2
    assert await code_of(transaction.commit()) is ErrorCode.BRANCHES_DIFFER
    assert (await info_of(peer)).last_sequence == -1
    await transaction.abort()
    assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_ABORTED
    await (await written(peer, Producer(W, H, R, S), b"one")).commit()
    assert await content(peer) == b"one"


async def test_it_is_committed_with_other_branches(peer: Peer) -> None:
    """Behaviour 29: that is the answer, also while the commit is under way, and not that its sequence is committed."""
    transaction = await written(peer, Producer(W, H, R, S), b"one")
    await transaction.add_parts(transaction.routed_ids, branch=9)
    await transaction.append(transaction.routed_ids[0], b"two", branch=9)
    ids = [await peer.start(transaction.commit_request(branch, drops_others=True)) for branch in (0, 9, 0)]
    outcomes = [await code_or_state(peer, each) for each in ids]
    assert outcomes == [TransactionState.COMMITTED, ErrorCode.TRANSACTION_COMMITTED, TransactionState.COMMITTED]
    assert await content(peer) == b"one"


async def test_only_the_last_replaced_runs_are_remembered_but_none_commits(peer: Peer) -> None:
    oldest = await written(peer, Producer(W, H, "r0", S), b"oldest")
    for number in range(1, FENCED_RUNS_COUNT_MAX + 2):
        await begun(peer, Producer(W, H, f"r{number}", S))
    fenced = [run for (run,) in (await info_of(peer)).fenced]
    assert fenced == [f"r{number}" for number in range(1, FENCED_RUNS_COUNT_MAX + 1)]
    assert await code_of(oldest.commit()) is ErrorCode.PRODUCER_FENCED


async def test_odd_requests(peer: Peer) -> None:
    for producer in (
        Producer("", H, R, 0), Producer(W, "", R, 0), Producer(W, H, "", 0), Producer(W, "x" * 256, R, 0),
        Producer(W, H, "\n", 0), Producer(W, H, R, -1),
    ):  # fmt: skip
        assert await code_of(begun(peer, producer)) in {ErrorCode.INVALID_NAME, ErrorCode.INVALID_ARGUMENT}
    (number,) = await reserve(peer, 1)
    request = begin_request(number, "a/b", producer=Producer(W, H, R, S))
    twice = m.BeginTransaction(
        number=number, name="", lease_ms=30_000, streams=request.streams, producers=request.producers * 2
    )
    assert await code_of(peer.ask(twice, m.TransactionReply)) is ErrorCode.INVALID_ARGUMENT
    assert await code_of(info_of(peer)) is ErrorCode.PRODUCER_UNKNOWN
    assert await code_of(reset(peer, H, "new")) is ErrorCode.PRODUCER_UNKNOWN
    await peer.ask(request, m.TransactionReply)
    assert (await peer.ask(request, m.TransactionReply)).changed == 0  # sent again
    assert await code_of(reset(peer, H, "x" * 256)) is ErrorCode.INVALID_NAME


@pytest.mark.slow
async def test_no_run_takes_over_while_the_log_is_full() -> None:
    """What begins leaves the headroom of the log to what ends something; who has taken over continues."""
    scenario = Scenario(wal=SMALL_WAL)
    files = scenario.files
    async with scenario.running() as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        first = await written(peer, Producer(W, H, "r1", 0), b"zero")
        segment_id = await peer.create_segment("raw/a")
        files.capacity_bytes = files.used_bytes + RESERVE_BYTES_MIN
        while await peer.settled(await peer.append(segment_id, bytes(8 * KIB))) != [ErrorCode.NO_SPACE]:
            pass
        for number in first.ids[:5]:
            request = begin_request(number, "a/b", producer=Producer(W, H, f"run {number}", 0))
            assert await code_of(peer.ask(request, m.TransactionReply)) is ErrorCode.NO_SPACE
        assert (await info_of(peer)).run == "r1"
        await first.commit()
        assert (await info_of(peer)).last_sequence == 0


async def test_so_many_producers_may_be_known(scenario: Scenario) -> None:
    """Those that are known continue, and another one is refused; but not that of another address."""
    options = TransactionsOptions(producers_count_max=4)
    async with scenario.running(transactions=options) as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        requests = [
            begin_request(number, "a/b", producer=Producer(f"w{number}", H, R, S)) for number in await reserve(peer, 3)
        ]
        ids = [await peer.start(request) for request in requests]
        outcomes = [await code_or_state(peer, each) for each in ids]
        assert outcomes == [TransactionState.OPEN, TransactionState.OPEN, ErrorCode.PRODUCERS_FULL]
        async with run.peer(address="127.0.0.2") as other:
            await begun(other, Producer("new", H, R, S))
        known = requests[0].producers[0].producer_id
        await (await written(peer, Producer(known, H, R, S), b"one")).commit()
        assert await content(peer) == b"one"


@pytest.mark.parametrize("is_published", [False, True])
async def test_it_is_known_after_a_restart(scenario: Scenario, *, is_published: bool) -> None:
    """Behaviour 67: from the log, or from the checkpoint alone, also if it was not in memory."""
    async with scenario.running() as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        await (await written(peer, Producer(W, H, "r1", S), b"one")).commit()
        open_one = await written(peer, Producer(W, H, "r2", S + 1), b" two")
        for number in range(30):
            await (await begun(peer, Producer(f"other-{number}", H, R, S))).commit()
        before = await info_of(peer)
        assert run.services.get(TransactionExpiryLoop).statistics.producers == 31
        if is_published:
            await run.published()
    for _ in range(2):
        async with scenario.running() as run, run.peer() as peer:
            assert await info_of(peer) == before
            assert (await info_of(peer, "other-29")).last_sequence == S
            assert await code_of(begun(peer, Producer(W, H, "r1", S + 1))) is ErrorCode.PRODUCER_FENCED
            assert await code_of(begun(peer, Producer(W, H, "r2", S))) is ErrorCode.PRODUCER_COMMITTED
    async with scenario.running() as run, run.peer() as peer:
        open_one.peer = peer
        await open_one.commit()
        assert (await info_of(peer)).last_sequence == S + 1
        assert await content(peer) == b"one two"
