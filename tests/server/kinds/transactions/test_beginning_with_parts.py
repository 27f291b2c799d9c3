"""A transaction that begins with its first parts: all of it, or nothing."""

import pytest

from millrace.model.transaction import TransactionState
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.pipelines import Pipeline
from tests.support.protocol import Peer, Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.transactions import content_of, create_stream, outcome_of

pytestmark = pytest.mark.asyncio

NO_SUCH_ID = 1 << 40


async def test_all_of_it_is_one_batch(peer: Peer, run: Run) -> None:
    """Behaviour 28: and to who has routed, the routes are not told again."""
    segments = await create_stream(peer, "a/b", 4)
    found = await peer.ask(m.GetStream("a/b"), m.StreamInfo)
    pipeline = await Pipeline.open(peer)
    routed = m.RoutedStream("a/b", found.stream_id, found.epoch)
    number, parts = pipeline.begin_with_parts(routed, segments)
    for part_id in parts:
        pipeline.append(part_id, b"one ", b"two")
    pipeline.commit(number, (0, 8))
    sequence = run.sequence

    told = await pipeline.told()

    assert told.names() == ["TransactionReply", "TransactionReply"]
    assert told.outcomes == [Stored(0, False), Stored(4, False)] * 4
    begun, committed = told.replies
    assert isinstance(begun, m.TransactionReply)
    assert isinstance(committed, m.TransactionReply)
    assert (begun.number, begun.state, begun.changed, begun.streams) == (number, TransactionState.OPEN, 1, [])
    assert committed.state == TransactionState.COMMITTED
    assert run.sequence == sequence + 1
    assert await content_of(peer, "a/b") == dict.fromkeys(segments, b"one two")


@pytest.mark.parametrize("is_published", [False, True])
async def test_what_began_so_continues_after_a_restart(scenario: Scenario, *, is_published: bool) -> None:
    """Behaviour 29: its parts are there again, from the log or from the checkpoint, and others can be added."""
    async with scenario.running() as run, run.peer() as peer:
        segments = await create_stream(peer, "a/b", 2)
        pipeline = await Pipeline.open(peer)
        number, (part_id,) = pipeline.begin_with_parts("a/b", segments[:1])
        pipeline.append(part_id, b"before ")
        assert (await pipeline.told()).outcomes == [Stored(0, False)]
        writer = pipeline.writer
        if is_published:
            await run.published()
    async with scenario.running() as run, run.peer() as peer:
        found = await outcome_of(peer, number=number)
        assert (found.state, found.branches) == (TransactionState.OPEN, [m.BranchCount(0, 1)])
        pipeline = await Pipeline.open(peer)
        (second,) = pipeline.parts(number, segments[1:])
        pipeline.append(second, b"after")
        pipeline.writer = writer
        pipeline.append(part_id, b"after", event_number=2)
        pipeline.commit(number, (0, 3))
        assert (await pipeline.told()).names() == ["Done", "TransactionReply"]
        assert await content_of(peer, "a/b") == dict(zip(segments, [b"before after", b"after"], strict=True))


async def test_sent_again_it_is_the_same_with_the_same_parts(peer: Peer, run: Run) -> None:
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    number, parts = pipeline.begin_with_parts("a/b", segments)
    again = m.BeginTransaction(
        number=number,
        name="",
        lease_ms=30_000,
        streams=[m.RoutedStream("a/b", 0, 0)],
        parts=[m.NewPart(*each) for each in zip(parts, segments, strict=True)],
    )
    pipeline.ask(again)
    told = await pipeline.told()
    assert [reply.changed for reply in told.replies if isinstance(reply, m.TransactionReply)] == [1, 0]
    sequence = run.sequence
    assert not (await peer.ask(again, m.TransactionReply)).changed
    other = m.BeginTransaction(
        number=number, name="", lease_ms=30_000, streams=again.streams, parts=[m.NewPart(parts[0], segments[1])]
    )
    assert await code_of(peer.ask(other, m.TransactionReply)) is ErrorCode.INVALID_ARGUMENT
    assert run.sequence == sequence


@pytest.mark.parametrize("what", ["number", "range", "twice", "name"])
async def test_parts_that_are_refused_let_nothing_begin(peer: Peer, run: Run, what: str) -> None:
    """Behaviour 28: and nothing of the numbers is used."""
    first, second = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    number, one, two = (pipeline.take_id() for _ in range(3))
    begin = m.BeginTransaction(
        number=number,
        name="order-7" if what == "name" else "",
        lease_ms=30_000,
        streams=[m.RoutedStream("a/b", 0, 0)],
        parts=[
            m.NewPart(one, first),
            m.NewPart(
                NO_SUCH_ID if what == "number" else two,
                NO_SUCH_ID if what == "range" else first if what == "twice" else second,
            ),
        ],
    )
    pipeline.ask(begin)
    pipeline.append(one, b"lost")
    sequence = run.sequence

    told = await pipeline.told()

    assert told.names() == ["INVALID_ARGUMENT"]
    assert told.outcomes == [ErrorCode.SEGMENT_NOT_FOUND]
    assert run.sequence == sequence
    right = m.BeginTransaction(
        number=number,
        name="",
        lease_ms=30_000,
        streams=begin.streams,
        parts=[m.NewPart(one, first), m.NewPart(two, second)],
    )
    assert (await peer.ask(right, m.TransactionReply)).changed


async def test_its_parts_count_for_the_bounds(scenario: Scenario) -> None:
    options = TransactionsOptions(open_parts_count_max=5)
    async with scenario.running(transactions=options) as run, run.peer() as peer:
        segments = await create_stream(peer, "a/b", 4)
        pipeline = await Pipeline.open(peer)
        pipeline.begin_with_parts("a/b", segments)
        assert (await pipeline.told()).names() == ["TRANSACTIONS_FULL"]
        pipeline.begin_with_parts("a/b", segments[:3])
        assert (await pipeline.told()).names() == ["TransactionReply"]
