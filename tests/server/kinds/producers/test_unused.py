"""Behaviour 104: producers that committed nothing are forgotten, and any can be deleted."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from millrace.model.producer import Producer
from millrace.model.transaction import TransactionState
from millrace.server.kinds.producers.unused import UnusedProducers
from millrace.server.kinds.transactions.expiry import TransactionExpiryLoop
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Peer, RefusedError, code_of
from tests.support.scenario import Run, Scenario
from tests.support.transactions import PeerTransaction, begin_request, content_of, create_stream, outcome_of, reserve
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

W, H, R, S = "query", "holder", "run", 7


@pytest_asyncio.fixture
async def peer(run: Run) -> AsyncIterator[Peer]:
    async with run.peer() as connected:
        await create_stream(connected, "a/b", 1)
        yield connected


async def begun(peer: Peer, producer: Producer) -> PeerTransaction:
    return await PeerTransaction.begin(peer, "a/b", producer=producer)


async def written(peer: Peer, producer: Producer, payload: bytes) -> PeerTransaction:
    transaction = await begun(peer, producer)
    await transaction.write(payload)
    return transaction


async def is_known(peer: Peer, writer_id: str = W) -> bool:
    try:
        await peer.ask(m.GetProducer(writer_id), m.ProducerInfo)
    except RefusedError as error:
        return error.code is not ErrorCode.PRODUCER_UNKNOWN
    return True


async def delete(peer: Peer, last_sequence: int = -1) -> int:
    return (await peer.ask(m.DeleteProducer(producer_id=W, last_sequence=last_sequence), m.Done)).changed


async def content(peer: Peer) -> bytes:
    return b"".join((await content_of(peer, "a/b")).values())


async def test_a_producer_that_committed_nothing_is_forgotten_with_its_last_transaction(run: Run, peer: Peer) -> None:
    first, second = [await written(peer, Producer(W, H, R, S), b"lost") for _ in range(2)]
    for transaction in (first, second):
        await run.services.get(UnusedProducers).forget()
        assert await is_known(peer)
        await transaction.abort()
    await run.services.get(UnusedProducers).forget()
    assert not await is_known(peer)
    assert run.services.get(TransactionExpiryLoop).statistics.producers == 0

    # Whoever comes back begins anew, also as another holder, and commits each sequence once.
    await (await written(peer, Producer(W, "other", "o1", S), b"once")).commit()
    assert await code_of(begun(peer, Producer(W, "other", "o2", S))) is ErrorCode.PRODUCER_COMMITTED
    assert await code_of(begun(peer, Producer(W, H, R, S))) is ErrorCode.PRODUCER_HELD
    await run.services.get(UnusedProducers).forget()
    assert await is_known(peer)
    assert await content(peer) == b"once"


async def test_a_producer_whose_transaction_never_began_is_forgotten(run: Run, peer: Peer) -> None:
    (number,) = await reserve(peer, 1)
    request = begin_request(number, "a/nothing", producer=Producer(W, H, R, S))
    assert await code_of(peer.ask(request, m.TransactionReply)) is ErrorCode.STREAM_NOT_FOUND
    assert await is_known(peer)
    await run.services.get(UnusedProducers).forget()
    assert not await is_known(peer)


async def test_a_producer_that_replaced_a_run_stays(run: Run, peer: Peer) -> None:
    """Also after a reset: the holder before may have committed sequences, and its runs stay fenced."""
    await (await written(peer, Producer(W, H, "r1", S), b"one")).commit()
    await peer.ask(m.ResetProducer(producer_id=W, expected_holder=H, holder=""), m.Done)
    await (await begun(peer, Producer(W, "other", "o1", 0))).abort()
    await run.services.get(UnusedProducers).forget()
    assert await code_of(begun(peer, Producer(W, H, "r1", S))) is ErrorCode.PRODUCER_FENCED


async def test_what_begins_while_its_producer_is_forgotten_begins_a_new_one(
    scenario: Scenario, run: Run, peer: Peer
) -> None:
    await (await begun(peer, Producer(W, H, R, S))).abort()
    (number,) = await reserve(peer, 1)
    before = run.state.caches["producers"].find(W)
    assert before is not None
    scenario.log.is_stalled = True
    forgetting = asyncio.create_task(run.services.get(UnusedProducers).forget())
    await until(run.container.in_flight.records)
    request = begin_request(number, "a/b", producer=Producer(W, H, R, S))
    beginning = asyncio.create_task(peer.ask(request, m.TransactionReply))
    await asyncio.sleep(0)  # it waits for the producer to be forgotten
    scenario.log.resume()
    assert (await beginning).state == TransactionState.OPEN
    await forgetting
    after = run.state.caches["producers"].find(W)
    assert after is not None
    assert after.number > before.number


async def test_addresses_get_back_their_share_of_the_bound(scenario: Scenario) -> None:
    """So 100,000 producers that commit nothing lock nobody out, whatever time they take."""
    async with scenario.running(transactions=TransactionsOptions(producers_count_max=4)) as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        for number in range(20):
            await (await begun(peer, Producer(f"w{number}", H, R, S))).abort()
            await run.services.get(UnusedProducers).forget()
        for number in range(2):
            await begun(peer, Producer(f"open-{number}", H, R, S))
        with pytest.raises(RefusedError, match="millrace txn delete-producer"):
            await begun(peer, Producer("one-too-many", H, R, S))


async def test_a_transaction_that_expires_takes_its_producer_along(scenario: Scenario) -> None:
    """By the task of the server itself."""
    async with scenario.running(in_background=True) as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        await PeerTransaction.begin(peer, "a/b", lease_ms=1000, producer=Producer(W, H, R, S))
        while await is_known(peer):
            await scenario.clock.advance(1.0)


@pytest.mark.parametrize("is_published", [False, True])
async def test_a_start_forgets_what_the_server_before_did_not(scenario: Scenario, *, is_published: bool) -> None:
    """From the log, or from the checkpoint; and what is forgotten stays so."""
    async with scenario.running() as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        await (await begun(peer, Producer("unused", H, R, S))).abort()
        await (await begun(peer, Producer(W, H, R, S))).commit()
        left = await begun(peer, Producer("open", H, R, S))
        if is_published:
            await run.published()
    async with scenario.running() as run, run.peer() as peer:
        await run.services.get(UnusedProducers).forget()
        assert [await is_known(peer, each) for each in ("unused", W, "open")] == [False, True, True]
        left.peer = peer
        await left.abort()
        await run.services.get(UnusedProducers).forget()
    async with scenario.running() as run, run.peer() as peer:
        assert [await is_known(peer, each) for each in ("unused", W, "open")] == [False, True, False]


async def test_a_producer_is_deleted_with_its_open_transactions(run: Run, peer: Peer) -> None:
    """The request shows that it knows what was committed last; a program that is still there is refused once."""
    await (await written(peer, Producer(W, H, "r1", S), b"one ")).commit()
    left = await written(peer, Producer(W, H, "r1", S + 1), b"left")
    with pytest.raises(RefusedError, match=r"committed sequence 7; .*stored twice.* --last-sequence 7"):
        await delete(peer)
    with pytest.raises(RefusedError, match="expects that 6 is the last one"):
        await delete(peer, S - 1)
    assert (await outcome_of(peer, number=left.number)).state == TransactionState.OPEN

    assert await delete(peer, S) == 1
    assert await delete(peer, S) == 0
    assert not await is_known(peer)
    assert (await outcome_of(peer, number=left.number)).state == TransactionState.ABORTED
    assert await code_of(left.commit()) is ErrorCode.TRANSACTION_ABORTED

    await (await written(peer, Producer(W, "other", "o1", 0), b"new")).commit()
    assert await code_of(delete(peer)) is ErrorCode.PRODUCER_COMMITTED
    assert await content(peer) == b"one new"


async def test_requests_about_a_producer_that_is_being_deleted(run: Run, peer: Peer) -> None:
    """Each is carried out as after the deletion, which is not durable yet."""
    left = await written(peer, Producer(W, H, R, S), b"left")
    (number,) = await reserve(peer, 1)
    requests: list[m.Message] = [
        m.DeleteProducer(producer_id=W, last_sequence=-1),
        left.commit_request(),
        m.ResetProducer(producer_id=W, expected_holder=H, holder="new"),
        m.DeleteProducer(producer_id=W, last_sequence=-1),
        begin_request(number, "a/b", producer=Producer(W, "other", "o1", 0)),
    ]
    ids = [await peer.start(request) for request in requests]
    outcomes: list[object] = []
    for each in ids:
        try:
            reply = await peer.reply(each, m.Message)
            outcomes.append(reply.changed)  # type: ignore[attr-defined]
        except RefusedError as error:
            outcomes.append(error.code)
    assert outcomes == [1, ErrorCode.TRANSACTION_ABORTED, ErrorCode.PRODUCER_UNKNOWN, 0, 1]
    assert (await peer.ask(m.GetProducer(W), m.ProducerInfo)).holder == "other"
