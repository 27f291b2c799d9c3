"""Sequences of the caller: what a writer that resumes is told, what is refused, and what survives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.model.sequence_row import SequenceRow
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Outcome, Peer, RefusedError, Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.servers import BUSY, QUIET

HALF = KEY_SPACE // 2


@dataclass(slots=True)
class Life:
    """One life of a writer: its blocks of one event each, sent one after the other."""

    peer: Peer
    stream: m.StreamInfo
    opened: m.WriterOpened

    @classmethod
    async def begin(cls, peer: Peer, *, writer_id: str = "w", nonce: bytes = m.NO_NONCE) -> "Life":
        """Open the writer for the stream."""
        stream = await peer.ask(m.GetStream("shop/orders"), m.StreamInfo)
        ids = [segment.segment_id for segment in stream.segments]
        return cls(
            peer, stream, await peer.ask(m.OpenWriter(writer_id, ids, 0, stream.stream_id, nonce), m.WriterOpened)
        )

    @property
    def row(self) -> SequenceRow:
        """What it was told when it was opened."""
        return SequenceRow(self.opened.stored_through, self.opened.marks)

    @property
    def fields(self) -> dict[str, int]:
        """What its appends carry."""
        return {"writer_number": self.opened.writer_number, "writer_epoch": self.opened.writer_epoch}

    @property
    def segments(self) -> list[int]:
        """The open segments, in the order of their keys."""
        parts = sorted((each.low, each.segment_id) for each in self.stream.segments if not each.sealed_epoch)
        return [segment_id for _, segment_id in parts]

    def numbers(self) -> dict[int, int]:
        """The last event numbers, as told when it was opened."""
        return {state.segment_id: state.last_event_number for state in self.opened.states}

    async def send(self, segment_id: int, sequence: int, *, below: int, number: int) -> Outcome:
        """Send one event with a sequence, and return its outcome."""
        ids = await self.peer.append(
            segment_id, b"%d " % sequence, event_number=number, sequences=Sequences(sequence, sequence, below),
            **self.fields,
        )  # fmt: skip
        return (await self.peer.settled(ids))[0]

    async def send_plain(self, segment_id: int, *, number: int) -> Outcome:
        """Send one event without a sequence."""
        return (await self.peer.settled(await self.peer.append(segment_id, b"x", event_number=number, **self.fields)))[
            0
        ]

    async def tell(self, stored_below: int) -> bool:
        """Tell what is stored; return whether that was news."""
        fields: Any = self.fields
        request = m.TellStored(stream_id=self.stream.stream_id, stored_below=stored_below, **fields)
        return bool((await self.peer.ask(request, m.Done)).changed)


async def row_now(peer: Peer, stream_id: int, *, writer_id: str = "w", epoch: int = 0) -> SequenceRow:
    """Ask how far a writer is."""
    told = await peer.ask(m.GetWriter(writer_id, [], stream_id, epoch), m.WriterOpened)
    return SequenceRow(told.stored_through, told.marks)


async def create(peer: Peer, count: int = 2) -> m.StreamInfo:
    """Create the stream."""
    return await peer.ask(m.CreateStream("shop/orders", count, ""), m.StreamInfo)


def was_stored(outcomes: Sequence[Outcome]) -> bool:
    return all(isinstance(outcome, Stored) and not outcome.duplicate for outcome in outcomes)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_writer_that_resumes_is_told_what_is_stored_place_by_place(peer: Peer) -> None:
    """Behaviour 66."""
    await create(peer)
    first = await Life.begin(peer)
    assert first.row == SequenceRow()
    left, right = first.segments

    # Event 1 is on its way to the left segment, and does not arrive.
    assert was_stored([await first.send(left, 0, below=0, number=1), await first.send(right, 2, below=1, number=1)])
    second = await Life.begin(peer)

    assert second.row == SequenceRow(0, [(0, -1), (HALF, 2)])
    assert second.opened.writer_epoch > first.opened.writer_epoch
    assert was_stored([await second.send(left, 1, below=1, number=2), await second.send(right, 3, below=2, number=2)])
    assert (await Life.begin(peer)).row == SequenceRow(1, [(0, -1), (HALF, 3)])


@pytest.mark.parametrize("options", [QUIET, BUSY], ids=["in the log", "in the checkpoint"])
@pytest.mark.asyncio
async def test_what_is_stored_is_known_after_a_restart(scenario: Scenario, options: Any) -> None:
    """Behaviour 66."""
    async with scenario.running(container=options) as run, run.peer() as peer:
        await create(peer)
        life = await Life.begin(peer, nonce=bytes(range(16)))
        left, right = life.segments
        assert was_stored([await life.send(right, 7, below=5, number=1), await life.send(left, 9, below=5, number=1)])
        if options is BUSY:
            await run.published()
        await Life.begin(peer, writer_id="another")
    async with scenario.running(container=options) as run, run.peer() as peer:
        again = await Life.begin(peer, nonce=bytes(range(16)))
        assert again.row == SequenceRow(4, [(0, 9), (HALF, 7)])
        assert again.opened.writer_epoch == life.opened.writer_epoch, "the same opening, sent again"
        assert await again.tell(10)
        later = await Life.begin(peer)
        assert later.row == SequenceRow(9)
        assert later.opened.writer_epoch > life.opened.writer_epoch


@pytest.mark.asyncio
async def test_scaling_and_truncating_leave_it_alone(peer: Peer) -> None:
    """Behaviour 66."""
    stream = await create(peer)
    life = await Life.begin(peer)
    left, right = life.segments
    assert was_stored([await life.send(left, 5, below=5, number=1), await life.send(right, 6, below=5, number=1)])
    row = await row_now(peer, stream.stream_id)
    assert row == SequenceRow(4, [(0, 5), (HALF, 6)])

    last = KEY_SPACE - 1
    merged = await peer.ask(m.ScaleStream("shop/orders", [left, right], [m.KeyRangeRecord(0, last)]), m.StreamInfo)
    (one,) = [each.segment_id for each in merged.segments if not each.sealed_epoch]
    await peer.ask(m.TruncateStream("shop/orders", [m.SavedPosition(one, 0)]), m.StreamInfo)

    again = await Life.begin(peer)
    assert again.row == row
    # What the right half has is above what the left one lacks.
    assert await again.send(one, 6, below=6, number=1) == Stored(0, False)
    assert (await Life.begin(peer)).row == SequenceRow(5, [(0, 6)])


@pytest.mark.parametrize("options", [QUIET, BUSY], ids=["in the log", "in the checkpoint"])
@pytest.mark.asyncio
async def test_a_block_below_what_is_stored_is_refused_until_a_reset(scenario: Scenario, options: Any) -> None:
    """Behaviour 66: to continue would lose events, at the next start of the writer, without a word."""
    async with scenario.running(container=options) as run, run.peer() as peer:
        await create(peer)
        life = await Life.begin(peer)
        left, right = life.segments
        assert was_stored([await life.send(left, 5, below=5, number=1)])
        assert await life.send(left, 5, below=5, number=2) is ErrorCode.SEQUENCES_REFUSED
        assert await life.send(right, 9, below=9, number=1) is ErrorCode.SEQUENCES_REFUSED
        assert await code_of(life.tell(6)) is ErrorCode.SEQUENCES_REFUSED
        assert run.container.sequences_refused_total == 1
        if options is BUSY:
            await run.published()
    async with scenario.running(container=options) as run, run.peer() as peer:
        with pytest.raises(RefusedError, match=f"sequence 5 was sent to segment {left}") as refused:
            await Life.begin(peer)
        assert (refused.value.reply.code, refused.value.reply.subject) == (ErrorCode.SEQUENCES_REFUSED, "w")
        stream_id = life.stream.stream_id
        told = await peer.ask(m.GetWriter("w", [], stream_id), m.WriterOpened)
        assert (told.is_refused, told.known) == (1, 1)

        assert (await peer.ask(m.ResetSequences("w", stream_id, 7), m.Done)).changed
        assert not (await peer.ask(m.ResetSequences("w", stream_id, 3), m.Done)).changed
        assert await life_goes_on(life, peer, right) is ErrorCode.WRITER_FENCED
        again = await Life.begin(peer)
        assert again.row == SequenceRow(7)
        assert was_stored([await again.send(left, 8, below=8, number=2)])


async def life_goes_on(life: Life, peer: Peer, segment_id: int) -> Outcome:
    """Send on another connection."""
    life.peer = peer
    return await life.send(segment_id, 10, below=9, number=1)


@pytest.mark.asyncio
async def test_a_reset_is_about_something(peer: Peer) -> None:
    stream = await create(peer)
    reset = m.ResetSequences("w", stream.stream_id, -1)
    assert await code_of(peer.ask(reset, m.Done)) is ErrorCode.WRITER_UNKNOWN
    life = await Life.begin(peer)
    assert not (await peer.ask(reset, m.Done)).changed
    await life.send(life.segments[0], 5, below=5, number=1)
    await life.send(life.segments[0], 4, below=4, number=2)
    wrong = m.ResetSequences("w", stream.stream_id, -2)
    assert await code_of(peer.ask(wrong, m.Done)) is ErrorCode.INVALID_ARGUMENT
    assert (await peer.ask(reset, m.Done)).changed
    assert (await Life.begin(peer)).row == SequenceRow()


@pytest.mark.asyncio
async def test_events_with_and_without_sequences_are_not_mixed(peer: Peer) -> None:
    """All events of a named writer on a stream have a sequence, or none has."""
    await create(peer)
    mixed = ErrorCode.SEQUENCES_MIXED
    sequenced = await Life.begin(peer)
    left, right = sequenced.segments
    assert was_stored([await sequenced.send(left, 5, below=5, number=1)])
    assert await sequenced.send_plain(right, number=1) is mixed
    assert await (await Life.begin(peer)).send_plain(right, number=1) is mixed

    plain = await Life.begin(peer, writer_id="plain")
    assert not plain.opened.is_plain
    assert was_stored([await plain.send_plain(left, number=1)])
    assert await plain.send(right, 5, below=5, number=1) is mixed
    again = await Life.begin(peer, writer_id="plain")
    assert again.opened.is_plain
    assert await again.send(right, 5, below=5, number=1) is mixed
    assert was_stored([await again.send_plain(right, number=1)])


@pytest.mark.asyncio
async def test_events_from_before_the_writer_was_opened_for_the_stream_count(peer: Peer) -> None:
    stream = await create(peer)
    segment_id = stream.segments[0].segment_id
    opened = await peer.open_writer("w", segment_id)
    life = Life(peer, stream, opened)
    assert await life.send(segment_id, 5, below=5, number=1) is ErrorCode.SEQUENCES_MIXED
    assert was_stored([await life.send_plain(segment_id, number=1)])
    assert (await Life.begin(peer)).opened.is_plain


@pytest.mark.asyncio
async def test_sequences_are_for_named_writers_on_streams(peer: Peer) -> None:
    await create(peer)
    unnamed = await Life.begin(peer, writer_id="")
    assert await unnamed.send(unnamed.segments[0], 5, below=5, number=1) is ErrorCode.SEQUENCES_MIXED
    assert was_stored([await unnamed.send_plain(unnamed.segments[0], number=1)])
    raw = await peer.create_segment("raw/a")
    named = await Life.begin(peer)
    assert await named.send(raw, 5, below=5, number=1) is ErrorCode.SEQUENCES_MIXED
    assert await code_of(peer.ask(m.OpenWriter("w", [], 0, 999_999), m.WriterOpened)) is ErrorCode.STREAM_NOT_FOUND


@pytest.mark.asyncio
async def test_what_is_stored_is_told_without_an_append(peer: Peer) -> None:
    """Once more when the writer falls idle, and at its end."""
    await create(peer)
    life = await Life.begin(peer)
    left, right = life.segments
    assert was_stored([await life.send(left, 5, below=2, number=1), await life.send(right, 7, below=2, number=1)])
    assert await life.tell(4)
    assert not await life.tell(4)
    assert not await life.tell(1)
    assert await row_now(peer, life.stream.stream_id) == SequenceRow(3, [(0, 5), (HALF, 7)])
    assert await code_of(life.tell(9)) is ErrorCode.INVALID_ARGUMENT
    assert await code_of(life.tell(-1)) is ErrorCode.INVALID_ARGUMENT
    assert await life.tell(8)
    assert await row_now(peer, life.stream.stream_id) == SequenceRow(7)
    await Life.begin(peer)
    assert await code_of(life.tell(8)) is ErrorCode.WRITER_FENCED
    other = await Life.begin(peer, writer_id="")
    assert await code_of(other.tell(0)) is ErrorCode.SEQUENCES_MIXED


@pytest.mark.asyncio
async def test_an_opening_that_is_sent_again_is_the_same_opening(run: Run, peer: Peer) -> None:
    """Or one that arrives late would fence the writer that has sent it."""
    await create(peer)
    first = await Life.begin(peer, nonce=b"a" * 16)
    async with run.peer() as other:
        again = await Life.begin(other, nonce=b"a" * 16)
        assert (again.opened.writer_number, again.opened.writer_epoch) == (
            first.opened.writer_number, first.opened.writer_epoch
        )  # fmt: skip
        assert was_stored([await first.send(first.segments[0], 1, below=1, number=1)])
        another = await Life.begin(other, nonce=b"b" * 16)
        assert another.opened.writer_epoch > first.opened.writer_epoch
        assert await first.send(first.segments[0], 2, below=2, number=2) is ErrorCode.WRITER_FENCED
        assert await code_of(Life.begin(peer, nonce=b"a" * 16)) is ErrorCode.WRITER_FENCED
        without = [await Life.begin(other) for _ in range(2)]
        assert without[0].opened.writer_epoch < without[1].opened.writer_epoch


@pytest.mark.asyncio
async def test_openings_that_are_sent_together_get_their_own_epochs(peer: Peer) -> None:
    """Also when all are durable before the first one is answered; the same nonce gets the same epoch."""
    await create(peer)
    life = await Life.begin(peer)
    stream_id, first = life.stream.stream_id, life.opened.writer_epoch
    for nonces, count in (([b"a" * 16] * 3, 1), ([b"b" * 16, b"c" * 16, b"d" * 16], 3), ([m.NO_NONCE] * 3, 3)):
        ids = [await peer.start(m.OpenWriter("w", [], 0, stream_id, nonce)) for nonce in nonces]
        epochs = {(await peer.reply(request_id, m.WriterOpened)).writer_epoch for request_id in ids}
        assert epochs == set(range(first + 1, first + 1 + count))
        first += count


@pytest.mark.asyncio
async def test_the_fate_of_events_is_told_under_the_epoch(peer: Peer) -> None:
    """What was sent to a segment that is gone is stored if and only if the row says so; a fenced writer is told."""
    await create(peer, 1)
    life = await Life.begin(peer)
    (segment_id,) = life.segments
    stream_id = life.stream.stream_id
    ids = await peer.append(segment_id, b"x", event_number=1, sequences=Sequences(3, 3, 3), **life.fields)
    row = await row_now(peer, stream_id, epoch=life.opened.writer_epoch)
    assert row == SequenceRow(2, [(0, 3)]), "what was admitted before the question is not missing from the answer"
    assert was_stored(await peer.settled(ids))
    await Life.begin(peer)
    old_epoch = row_now(peer, stream_id, epoch=life.opened.writer_epoch)
    assert await code_of(old_epoch) is ErrorCode.WRITER_FENCED
    assert await code_of(row_now(peer, stream_id, writer_id="nobody", epoch=1)) is ErrorCode.WRITER_UNKNOWN


@pytest.mark.asyncio
async def test_a_deleted_stream_is_forgotten(peer: Peer) -> None:
    await create(peer)
    life = await Life.begin(peer)
    assert was_stored([await life.send(life.segments[0], 5, below=5, number=1)])
    await peer.ask(m.SealStream("shop/orders"), m.StreamInfo)
    await peer.ask(m.DeleteStream("shop/orders"), m.Done)
    assert await code_of(life.tell(6)) is ErrorCode.STREAM_NOT_FOUND
    await create(peer)
    assert (await Life.begin(peer)).row == SequenceRow()


@pytest.mark.asyncio
async def test_an_opening_tells_what_was_sent_before_it(peer: Peer) -> None:
    """It is answered when its record is applied, and what the life before had sent is in the log before that."""
    await create(peer, 1)
    life = await Life.begin(peer)
    ids = await peer.append(life.segments[0], b"x", event_number=1, sequences=Sequences(3, 3, 3), **life.fields)
    assert (await Life.begin(peer)).row == SequenceRow(2, [(0, 3)])
    assert was_stored(await peer.settled(ids))


@pytest.mark.asyncio
async def test_a_refusal_is_told_when_it_is_recorded(scenario: Scenario) -> None:
    """Or the server could be killed between, and the writer be opened again as if nothing had been."""
    async with scenario.running() as run, run.peer() as peer:
        await create(peer, 1)
        life = await Life.begin(peer)
        (segment_id,) = life.segments
        assert was_stored([await life.send(segment_id, 3, below=3, number=1)])
        scenario.log.is_stalled = True
        ids = await peer.append(segment_id, b"x", event_number=2, sequences=Sequences(2, 2, 2), **life.fields)
        for _ in range(3):
            await peer.ask(m.ListStreams("", "", 10), m.StreamList)
        assert not set(ids) & set(peer.outcomes)
        scenario.log.resume()
        assert await peer.settled(ids) == [ErrorCode.SEQUENCES_REFUSED]
        assert (await peer.ask(m.GetWriter("w", [], life.stream.stream_id), m.WriterOpened)).is_refused
