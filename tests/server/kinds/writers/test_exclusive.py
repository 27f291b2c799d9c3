"""Exclusive writers of streams, of one container: who is refused, who takes over, what survives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest

from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.key_range import KEY_SPACE
from millrace.server.container.state.exclusive_writers import EXCLUSIVE_WRITERS_COUNT_MAX
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Outcome, Peer, RefusedError, Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.transactions import PeerTransaction

STREAM = "shop/ledger"
NONCE = bytes(range(16))
NOTHING = dict[str, int]()
"""What an append of no writer carries."""


@dataclass(slots=True)
class Life:
    """A writer that was opened for the stream."""

    opened: m.WriterOpened
    numbers: dict[int, int] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, int]:
        return {"writer_number": self.opened.writer_number, "writer_epoch": self.opened.writer_epoch}


async def info_of(peer: Peer) -> m.StreamInfo:
    return await peer.ask(m.GetStream(STREAM), m.StreamInfo)


async def create(peer: Peer, count: int = 1) -> m.StreamInfo:
    return await peer.ask(m.CreateStream(STREAM, count, ""), m.StreamInfo)


def open_ids(stream: m.StreamInfo) -> list[int]:
    parts = sorted((each.low, each.segment_id) for each in stream.segments if not each.sealed_epoch)
    return [segment_id for _, segment_id in parts]


def tail_of(stream: m.StreamInfo) -> list[m.SavedPosition]:
    return [m.SavedPosition(each.segment_id, each.length, 0) for each in stream.segments if not each.sealed_epoch]


async def begin(
    peer: Peer,
    writer_id: str = "",
    *,
    exclusive: bool = True,
    expected: list[m.SavedPosition] | None = None,
    nonce: bytes = m.NO_NONCE,
) -> Life:
    """Open a writer for the stream."""
    stream = await info_of(peer)
    ids = [segment.segment_id for segment in stream.segments]
    request = m.OpenWriter(writer_id, ids, 0, stream.stream_id, nonce, int(exclusive), expected or [])
    opened = await peer.ask(request, m.WriterOpened)
    return Life(opened, {state.segment_id: state.last_event_number for state in opened.states})


async def send(peer: Peer, life: Life | None, segment_id: int) -> Outcome:
    """Send an event, of no writer if there is no life, and return its outcome."""
    number = 0 if life is None else life.numbers.get(segment_id, 0) + 1
    ids = await peer.append(segment_id, b"x", event_number=number, **(NOTHING if life is None else life.fields))
    (outcome,) = await peer.settled(ids)
    if life is not None and isinstance(outcome, Stored):
        life.numbers[segment_id] = number
    return outcome


async def release(peer: Peer, life: Life | None = None) -> bool:
    """Release the stream, by force without a life."""
    request = m.ReleaseStream(stream_id=(await info_of(peer)).stream_id, **(NOTHING if life is None else life.fields))
    return bool((await peer.ask(request, m.Done)).changed)


async def holder_of(peer: Peer) -> tuple[int, int, str]:
    stream = await info_of(peer)
    return stream.exclusive_number, stream.exclusive_epoch, stream.exclusive_id


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_nobody_else_stores_anything(peer: Peer) -> None:
    (segment_id,) = open_ids(await create(peer))
    named, unnamed = [await begin(peer, writer_id, exclusive=False) for writer_id in ("plain", "")]
    older = await begin(peer, "ledger", exclusive=False)
    holder = await begin(peer, "ledger")

    assert isinstance(await send(peer, holder, segment_id), Stored)
    for other in (None, named, unnamed):
        assert await send(peer, other, segment_id) is ErrorCode.WRITER_EXCLUDED
    assert await send(peer, older, segment_id) is ErrorCode.WRITER_FENCED
    assert isinstance(await send(peer, holder, segment_id), Stored)

    message = next(reply.message for reply in peer.errors.values() if reply.code == ErrorCode.WRITER_EXCLUDED)
    number = holder.opened.writer_number
    assert f"accepts events only from writer 'ledger' (number {number}, epoch 2)" in message
    assert await holder_of(peer) == (number, 2, "ledger")
    assert (await info_of(peer)).exclusive_since_us > 0


@pytest.mark.asyncio
async def test_no_other_writer_is_opened(peer: Peer) -> None:
    """What is refused changes nothing: the holder is not fenced by its own id."""
    (segment_id,) = open_ids(await create(peer))
    holder = await begin(peer, "ledger")

    for writer_id in ("plain", "", "ledger"):
        assert await code_of(begin(peer, writer_id, exclusive=False)) is ErrorCode.WRITER_EXCLUDED
    assert isinstance(await send(peer, holder, segment_id), Stored)
    assert not (await peer.ask(m.GetWriter("plain", []), m.WriterOpened)).known


@pytest.mark.asyncio
async def test_a_stream_that_does_not_end_where_expected_is_not_taken(peer: Peer) -> None:
    stream = await create(peer, 2)
    left, right = open_ids(stream)
    start = tail_of(stream)
    await send(peer, None, right)

    with pytest.raises(RefusedError) as caught:
        await begin(peer, "ledger", expected=start)

    assert caught.value.code is ErrorCode.TAIL_CHANGED
    assert caught.value.reply.subject == STREAM
    expected, actual = (f"{STREAM}@{left}:0.0,{right}:{length}.0" for length in (0, 1))
    assert caught.value.reply.message == f"the stream was expected to end at {expected}, and ends at {actual}"
    for wrong in ([m.SavedPosition(right, 1, 0)], [m.SavedPosition(left, 0, 0), m.SavedPosition(right, 1, 1)]):
        assert await code_of(begin(peer, "ledger", expected=wrong)) is ErrorCode.TAIL_CHANGED
    strange = [*tail_of(await info_of(peer)), m.SavedPosition(999_999, 0, 0)]
    assert await code_of(begin(peer, "ledger", expected=strange)) is ErrorCode.TAIL_CHANGED
    assert await holder_of(peer) == (0, 0, "")
    assert not (await peer.ask(m.GetWriter("ledger", []), m.WriterOpened)).known

    assert isinstance(await send(peer, await begin(peer, expected=tail_of(await info_of(peer))), left), Stored)


@pytest.mark.asyncio
async def test_long_cuts_are_told_where_they_differ(peer: Peer) -> None:
    stream = await create(peer, 40)
    await send(peer, None, open_ids(stream)[-1])

    with pytest.raises(RefusedError) as caught:
        await begin(peer, expected=tail_of(stream))

    assert f"@{open_ids(stream)[-1]}:0.0," in caught.value.reply.message
    assert caught.value.reply.message.count("and 24 more") == 2


@pytest.mark.asyncio
async def test_the_ends_of_what_was_replaced_are_the_tail_until_something_follows(peer: Peer) -> None:
    stream = await create(peer)
    (only,) = open_ids(stream)
    await send(peer, None, only)
    before = tail_of(await info_of(peer))
    scaled = await split(peer, only)

    holder = await begin(peer, "ledger", expected=before)
    assert isinstance(await send(peer, holder, open_ids(scaled)[1]), Stored)
    assert await code_of(begin(peer, "ledger", expected=before)) is ErrorCode.TAIL_CHANGED


async def split(peer: Peer, segment_id: int) -> m.StreamInfo:
    half = KEY_SPACE // 2
    ranges = [m.KeyRangeRecord(0, half - 1), m.KeyRangeRecord(half, KEY_SPACE - 1)]
    return await peer.ask(m.ScaleStream(STREAM, [segment_id], ranges), m.StreamInfo)


@pytest.mark.asyncio
async def test_new_segments_are_taken_over_with_the_others(peer: Peer) -> None:
    (only,) = open_ids(await create(peer))
    plain = await begin(peer, "plain", exclusive=False)
    holder = await begin(peer, "ledger")
    left, right = open_ids(await split(peer, only))
    merge = m.ScaleStream(STREAM, [left, right], [m.KeyRangeRecord(0, KEY_SPACE - 1)])

    for segment_id in (left, right, *open_ids(await peer.ask(merge, m.StreamInfo))):
        if segment_id in (left, right):
            assert await send(peer, holder, segment_id) is ErrorCode.SEGMENT_SEALED
            continue
        assert await send(peer, plain, segment_id) is ErrorCode.WRITER_EXCLUDED
        assert await send(peer, None, segment_id) is ErrorCode.WRITER_EXCLUDED
        assert isinstance(await send(peer, holder, segment_id), Stored)


@pytest.mark.parametrize("writer_id", ["a", ""])
@pytest.mark.asyncio
async def test_who_was_taken_over_from_never_continues_unawares(peer: Peer, writer_id: str) -> None:
    """Not even when the stream is free again: others wrote meanwhile."""
    (segment_id,) = open_ids(await create(peer))
    first = await begin(peer, writer_id)
    second = await begin(peer, "b")

    assert await send(peer, first, segment_id) is ErrorCode.WRITER_FENCED
    assert isinstance(await send(peer, second, segment_id), Stored)
    assert not await release(peer, first), "it has nothing to release"
    assert await release(peer, second)
    assert await send(peer, first, segment_id) is ErrorCode.WRITER_FENCED
    assert isinstance(await send(peer, second, segment_id), Stored)
    assert isinstance(await send(peer, None, segment_id), Stored)


@pytest.mark.asyncio
async def test_an_opening_that_is_sent_again_takes_nothing_back(peer: Peer) -> None:
    (segment_id,) = open_ids(await create(peer))
    first = await begin(peer, "a", nonce=NONCE)
    assert isinstance(await send(peer, first, segment_id), Stored)

    again = await begin(peer, "a", nonce=NONCE, expected=[m.SavedPosition(segment_id, 0, 0)])
    assert again.opened.writer_epoch == first.opened.writer_epoch, "the same opening, which expected what was then"

    second = await begin(peer, "b")
    assert await code_of(begin(peer, "a", nonce=NONCE)) is ErrorCode.WRITER_FENCED
    assert isinstance(await send(peer, second, segment_id), Stored)


@pytest.mark.asyncio
async def test_a_stream_is_released_once(peer: Peer) -> None:
    (segment_id,) = open_ids(await create(peer))
    holder = await begin(peer, "ledger")

    assert await release(peer, holder)
    assert not await release(peer, holder)
    assert not await release(peer)
    assert isinstance(await send(peer, await begin(peer, "plain", exclusive=False), segment_id), Stored)
    assert isinstance(await send(peer, holder, segment_id), Stored)


@pytest.mark.asyncio
async def test_a_release_by_force_fences(peer: Peer) -> None:
    (segment_id,) = open_ids(await create(peer))
    holder = await begin(peer, "ledger", nonce=NONCE)

    assert await release(peer)

    assert await send(peer, holder, segment_id) is ErrorCode.WRITER_FENCED
    assert await code_of(begin(peer, "ledger", nonce=NONCE)) is ErrorCode.WRITER_FENCED
    assert isinstance(await send(peer, None, segment_id), Stored)
    assert await holder_of(peer) == (0, 0, "")


@pytest.mark.asyncio
async def test_a_writer_that_was_opened_elsewhere_keeps_the_stream_and_stores_nothing(peer: Peer) -> None:
    """Its id is in use for something else: nobody has the stream but who takes it over, or releases it."""
    (segment_id,) = open_ids(await create(peer))
    holder = await begin(peer, "ledger")
    elsewhere = Life(await peer.open_writer("ledger"))

    assert await send(peer, holder, segment_id) is ErrorCode.WRITER_FENCED
    assert await send(peer, elsewhere, segment_id) is ErrorCode.WRITER_EXCLUDED
    second = await begin(peer, "b")
    assert isinstance(await send(peer, second, segment_id), Stored)
    assert (await peer.ask(m.GetWriter("ledger", []), m.WriterOpened)).writer_epoch == 2, "it is not fenced once more"


@pytest.mark.asyncio
async def test_the_end_of_a_stream_ends_it(run: Run, peer: Peer) -> None:
    await create(peer)
    await begin(peer, "ledger")
    assert len(run.state.durable.exclusive_writers) == 1

    stream = await peer.ask(m.SealStream(STREAM), m.StreamInfo)

    assert (stream.exclusive_number, len(run.state.durable.exclusive_writers)) == (0, 0)
    assert await code_of(begin(peer, "ledger")) is ErrorCode.STREAM_SEALED
    assert not await release(peer)
    await peer.ask(m.DeleteStream(STREAM), m.Done)
    gone = m.ReleaseStream(stream_id=stream.stream_id)
    assert await code_of(peer.ask(gone, m.Done)) is ErrorCode.STREAM_NOT_FOUND


@pytest.mark.asyncio
async def test_a_deletion_that_is_queued_is_waited_for(peer: Peer) -> None:
    stream = await create(peer)
    await begin(peer, "ledger")
    await peer.ask(m.SealStream(STREAM), m.StreamInfo)

    await peer.start(m.DeleteStream(STREAM))
    opening = m.OpenWriter("ledger", [], 0, stream.stream_id, exclusive=1)
    assert await code_of(peer.ask(opening, m.WriterOpened)) is ErrorCode.STREAM_NOT_FOUND


@pytest.mark.asyncio
async def test_openings_that_make_no_sense_are_refused(peer: Peer) -> None:
    stream = await create(peer)
    for stream_id in (0, 999_999):
        nowhere = m.OpenWriter("w", [], 0, stream_id, exclusive=1)
        assert await code_of(peer.ask(nowhere, m.WriterOpened)) is ErrorCode.STREAM_NOT_FOUND
    expecting = m.OpenWriter("w", [], 0, stream.stream_id, expected=tail_of(stream))
    assert await code_of(peer.ask(expecting, m.WriterOpened)) is ErrorCode.INVALID_ARGUMENT


@pytest.mark.asyncio
async def test_there_is_a_bound(run: Run, peer: Peer) -> None:
    await create(peer)
    admitted = run.state.admitted.exclusive_writers
    others = {-number: ExclusiveWriter(1, 1, "", 0) for number in range(1, EXCLUSIVE_WRITERS_COUNT_MAX + 1)}
    admitted |= others

    assert await code_of(begin(peer)) is ErrorCode.INVALID_ARGUMENT
    del admitted[-1]
    first = await begin(peer)
    second = await begin(peer)  # the same stream again is not one more

    assert second.opened.writer_number > first.opened.writer_number
    for stream_id in others:
        admitted.pop(stream_id, None)


@pytest.mark.parametrize("is_published", [False, True], ids=["in the log", "in the checkpoint"])
@pytest.mark.asyncio
async def test_it_survives_restarts(scenario: Scenario, *, is_published: bool) -> None:
    @asynccontextmanager
    async def starting() -> AsyncIterator[Peer]:
        async with scenario.running() as run, run.peer() as peer:
            yield peer
            if is_published:
                await run.published()

    async with starting() as peer:
        (segment_id,) = open_ids(await create(peer))
        fenced = await begin(peer, "a")
        holder = await begin(peer, "b")
        assert isinstance(await send(peer, holder, segment_id), Stored)
    async with starting() as peer:
        assert await holder_of(peer) == (*holder.fields.values(), "b")
        assert isinstance(await send(peer, holder, segment_id), Stored)
        assert await send(peer, fenced, segment_id) is ErrorCode.WRITER_FENCED
        assert await send(peer, None, segment_id) is ErrorCode.WRITER_EXCLUDED
        assert await release(peer)
    async with starting() as peer:
        assert await holder_of(peer) == (0, 0, "")
        assert await send(peer, holder, segment_id) is ErrorCode.WRITER_FENCED
        assert isinstance(await send(peer, None, segment_id), Stored)


@pytest.mark.asyncio
async def test_of_openers_that_race_each_knows_where_it_began(run: Run, peer: Peer) -> None:
    """Each that is not fenced has opened at the tail that it expected: nothing was written between."""
    (segment_id,) = open_ids(await create(peer))
    written: list[str] = []
    refusals: set[ErrorCode] = set()
    dice = Random(1)

    async def work(writer_id: str) -> int:
        async with run.peer() as mine:
            wins = 0
            while wins < 3:
                for _ in range(dice.randrange(20)):  # else they would fence each other in turn, endlessly
                    await asyncio.sleep(0)
                stream = await info_of(mine)
                seen = stream.segments[0].length
                try:
                    life = await begin(mine, writer_id, expected=tail_of(stream))
                except RefusedError as error:
                    refusals.add(error.code)
                    continue
                outcome = await send(mine, life, segment_id)
                if isinstance(outcome, Stored):
                    assert outcome.offset == seen, "somebody wrote after it was opened"
                    written.append(writer_id)
                    wins += 1
                else:
                    assert outcome in (ErrorCode.WRITER_FENCED, ErrorCode.WRITER_EXCLUDED)
            return wins

    assert sum(await asyncio.gather(*(work(f"w{number}") for number in range(4)))) == 12
    assert (await info_of(peer)).segments[0].length == len(written) == 12
    assert refusals <= {ErrorCode.TAIL_CHANGED}


@pytest.mark.asyncio
async def test_nothing_is_committed_beside_an_exclusive_writer(peer: Peer) -> None:
    """What is open over the stream is aborted, and nothing begins until it is released."""
    (segment_id,) = open_ids(await create(peer))
    transaction = await PeerTransaction.begin(peer, STREAM)
    await transaction.write(b"of others")
    holder = await begin(peer, "ledger", expected=[m.SavedPosition(segment_id, 0, 0)])

    code = await code_of(peer.ask(transaction.commit_request(), m.TransactionReply))
    assert code is ErrorCode.TRANSACTION_ABORTED
    assert await code_of(PeerTransaction.begin(peer, STREAM)) is ErrorCode.WRITER_EXCLUDED
    assert (await info_of(peer)).segments[0].length == 0

    assert await release(peer, holder)
    await PeerTransaction.begin(peer, STREAM)


@pytest.mark.asyncio
async def test_an_opening_that_is_refused_aborts_nothing(peer: Peer) -> None:
    (segment_id,) = open_ids(await create(peer))
    transaction = await PeerTransaction.begin(peer, STREAM)
    await transaction.write(b"x")

    wrong = [m.SavedPosition(segment_id, 1, 0)]
    assert await code_of(begin(peer, "ledger", expected=wrong)) is ErrorCode.TAIL_CHANGED
    await peer.ask(transaction.commit_request(), m.TransactionReply)
    assert (await info_of(peer)).segments[0].length == 1
