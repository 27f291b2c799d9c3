"""Frames of a transaction that arrive back to back: what follows one that is refused, or is sent again."""

from functools import partial

import pytest

from millrace.model.transaction import TransactionState
from millrace.server.container.options import ContainerOptions
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.pipelines import WHOLE, Pipeline
from tests.support.protocol import Peer, Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.transactions import PeerTransaction, content_of, create_stream, outcome_of
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


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
    assert (await pipeline.told()).names() == ["TransactionReply"]


async def test_what_follows_one_too_many_is_refused(scenario: Scenario) -> None:
    """Also where the other one is only about to begin."""
    running = partial(scenario.running, transactions=TransactionsOptions(open_count_max=1, open_parts_count_max=3))
    async with running() as run, run.peer() as peer:
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
        assert told.names() == ["TransactionReply", full, unknown, unknown, "Done", full, "BRANCHES_DIFFER"]
        assert told.outcomes == [ErrorCode.SEGMENT_NOT_FOUND, Stored(0, False), ErrorCode.SEGMENT_NOT_FOUND]
        assert await content_of(peer, "a/b") == {}
        pipeline.commit(first, (0, 1))
        assert (await pipeline.told()).names() == ["TransactionReply"]
        assert await content_of(peer, "a/b") == {segments[0]: b"kept"}


async def test_an_append_that_is_refused_keeps_the_commit_from_being_made(scenario: Scenario) -> None:
    """Behaviour 28: too large, out of its order, or of no writer."""
    running = partial(scenario.running, container=ContainerOptions(transaction_size_bytes_max=10))
    async with running() as run, run.peer() as peer:
        first, second = await create_stream(peer, "a/b", 2)
        pipeline = await Pipeline.open(peer)
        number = pipeline.begin("a/b")
        one, two = pipeline.parts(number, [first, second])
        pipeline.append(one, b"12345")
        pipeline.append(two, b"123456")
        pipeline.append(two, b"7", event_number=2)
        pipeline.commit(number, (0, 3))

        told = await pipeline.told()

        assert told.names() == ["TransactionReply", "Done", "BRANCHES_DIFFER"]
        too_large = ErrorCode.TRANSACTION_TOO_LARGE
        assert told.outcomes == [Stored(0, False), too_large, too_large]
        assert await content_of(peer, "a/b") == {}
        pipeline.append(two, b"12", event_number=2)
        pipeline.commit(number, (0, 2))
        told = await pipeline.told()
        assert (told.names(), told.outcomes) == (["BRANCHES_DIFFER"], [ErrorCode.EVENT_NUMBER_GAP])
        pipeline.append(two, b"12")
        pipeline.commit(number, (0, 2))
        assert (await pipeline.told()).names() == ["TransactionReply"]
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

    invalid, info = "INVALID_ARGUMENT", "TransactionReply"
    assert told.names() == [invalid, "TRANSACTION_UNKNOWN", info, invalid, "BRANCHES_DIFFER"]
    assert told.outcomes == [ErrorCode.SEGMENT_NOT_FOUND] * 2


async def test_what_arrives_after_the_abort_of_its_number_begins_nothing(peer: Peer) -> None:
    """Its client has lost the connection, and has begun again under another number."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    late = pipeline.ids[0]
    assert await code_of(peer.ask(m.AbortTransaction(late, ""), m.TransactionReply)) is ErrorCode.TRANSACTION_UNKNOWN
    pipeline.whole("a/b", [segment_id], b"lost")
    pipeline.whole("a/b", [segment_id], b"kept")

    told = await pipeline.told()

    assert told.names() == ["INVALID_ARGUMENT", "TRANSACTION_UNKNOWN", "TRANSACTION_UNKNOWN", *WHOLE]
    assert await content_of(peer, "a/b") == {segment_id: b"kept"}
    assert (await outcome_of(peer, number=late)).state == TransactionState.ABORTED


async def test_frames_sent_again_are_recognised(peer: Peer, run: Run) -> None:
    """Behaviour 29: on another connection, and while the first ones are on their way."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    number = pipeline.whole("a/b", [segment_id], b"event")
    part_id = number + 1
    await pipeline.send()
    async with run.peer() as other:
        again = Pipeline(other, pipeline.writer, [part_id])
        again.begin("a/b", number=number)
        again.parts(number, [segment_id])
        again.append(part_id, b"event")
        again.commit(number, (0, 1))

        told, first = await again.told(), await pipeline.told()

    assert first.names() == WHOLE
    # It is over, so it is told so; the commit is that of the first connection.
    assert told.names() == ["TRANSACTION_COMMITTED", "TRANSACTION_COMMITTED", "TransactionReply"]
    assert isinstance(told.replies[-1], m.TransactionReply)
    assert (told.replies[-1].state, told.replies[-1].changed) == (TransactionState.COMMITTED, 0)
    assert await content_of(peer, "a/b") == {segment_id: b"event"}


async def test_an_open_one_sent_again_is_recognised(peer: Peer, run: Run) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b")
    (part_id,) = pipeline.parts(number, [segment_id])
    pipeline.append(part_id, b"event")
    await pipeline.send()
    async with run.peer() as other:
        again = Pipeline(other, pipeline.writer, [part_id])
        again.begin("a/b", number=number)
        again.parts(number, [segment_id])
        again.append(part_id, b"event")
        again.commit(number, (0, 1))

        told, first = await again.told(), await pipeline.told()

    assert (first.names(), first.outcomes) == (["TransactionReply", "Done"], [Stored(0, False)])
    assert told.names() == WHOLE
    assert told.outcomes == [Stored(0, True)]
    assert await content_of(peer, "a/b") == {segment_id: b"event"}


async def test_a_stream_that_was_scaled_since_it_was_fetched_refuses_the_beginning(peer: Peer) -> None:
    """Behaviour 32: nothing is stored, and the client begins again with what it fetches; also of a stream made anew."""
    before = await peer.ask(m.CreateStream("a/b", 2, "{}"), m.StreamInfo)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin(m.RoutedStream("a/b", before.stream_id, before.epoch))
    pipeline.commit(number)
    assert (await pipeline.told()).names() == ["TransactionReply"] * 2

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
    assert (await pipeline.told()).names() == ["TransactionReply"] * 2


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
        ["StreamInfo", "TransactionReply", "Done", "TransactionReply"],
    )
    content = await content_of(peer, "a/b")
    assert sum(map(len, content.values())) == (5 if told.names()[1] == "TransactionReply" else 0)


async def test_a_seal_ends_those_that_are_about_to_begin(peer: Peer, other: Peer, run: Run, scenario: Scenario) -> None:
    """Behaviour 21: the seal does not wait for them; what follows of them is refused."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    scenario.log.is_stalled = True
    number = pipeline.begin("a/b")
    (part_id,) = pipeline.parts(number, [segment_id])
    pipeline.append(part_id, b"event")
    await pipeline.send()
    sealed = await other.start(m.SealStream("a/b"))
    in_flight = run.container.in_flight
    await until(lambda: any(isinstance(each, m.StreamSealed) for each in in_flight.records()))
    pipeline.append(part_id, b"late", event_number=2)
    pipeline.commit(number, (0, 2))
    await pipeline.send()
    scenario.log.resume()

    told = await pipeline.told()

    assert told.names() == ["TransactionReply", "Done", "TRANSACTION_ABORTED"]
    assert told.outcomes == [Stored(0, False), ErrorCode.TRANSACTION_ABORTED]
    assert (await other.reply(sealed, m.StreamInfo)).sealed
    assert await content_of(peer, "a/b") == {}
    assert (await outcome_of(peer, number=number)).state == TransactionState.ABORTED
