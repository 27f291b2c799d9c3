"""Decisions that waited, on a container that evicts every idle entity at once: what they change stays in memory."""

import asyncio
from pathlib import Path

import pytest

from millrace.model.producer import Producer
from millrace.server.errors import SegmentSealedError, TransactionUnknownError
from millrace.server.kinds.transactions.commands import AdmittedStep, TransactionCommands
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.server.kinds.writers.commands import WriterCommands
from millrace.wire import messages as m
from tests.server.streams.containers import WHOLE, Streams, halves, streams_in
from tests.support.clock import ManualClock
from tests.support.storage import MemoryStorage
from tests.support.views import differences
from tests.support.waiting import at_once

pytestmark = pytest.mark.asyncio


class Waiters:
    """Requests about the stream `a/b` that wait until it has a segment which the last checkpoint has stored.

    The stream changes without a pause from when they are made until that checkpoint is stored. So the segment exists
    only after they have begun to wait, and nothing holds it in memory when they continue.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._is_stored = False
        self._updates_count = 0

    async def hold(self) -> m.StreamScaled:
        """Begin to change the stream; return when its segment is replaced and nothing about that is durable yet."""
        stream = self._streams.controller.find("a/b")
        self._streams.opened.container.on_progress = self._update
        scaling = self._streams.controller.scale("a/b", sealed_ids=stream.segment_ids, ranges=WHOLE, cause="test")
        self._scaling = asyncio.create_task(scaling)
        await asyncio.sleep(0)
        (record,) = self._streams.opened.container.in_flight.records()
        assert isinstance(record, m.StreamScaled)
        return record

    async def release(self) -> None:
        """Store a checkpoint with the new segment, then leave the stream alone."""
        await self._scaling
        await self._streams.opened.flusher.checkpoint()
        self._is_stored = True

    def _update(self) -> None:
        container = self._streams.opened.container
        if not self._is_stored:
            self._updates_count += 1
            stream = self._streams.controller.find("a/b")
            configuration = f'{{"tags": ["{self._updates_count}"]}}'
            container.log_decision(m.StreamUpdated(stream.stream_id, configuration), "a/b")


async def begin(streams: Streams, transactions: TransactionCommands, *, events: bytes) -> int:
    """Begin a transaction over `a/b` with one part that has these bytes as an event; return its number."""
    (routed_id,) = [part.segment_id for part in streams.controller.find("a/b").open_parts]
    first = await transactions.reserve_ids(2)
    await transactions.settled(
        await transactions.begin(
            first,
            "",
            lease_ms=60_000,
            streams=[m.RoutedStream("a/b", 0, 0)],
            session_id=bytes(16),
            parts=[m.NewPart(first + 1, routed_id)],
        )
    )
    writer = await WriterCommands(streams.opened.container).open("")
    await streams.append(
        first + 1, events, writer_number=writer.writer_number, writer_epoch=writer.writer_epoch, event_number=1
    )
    return first


async def commit(transactions: TransactionCommands, number: int) -> AdmittedStep:
    admitted = await transactions.commit(number, [m.BranchCount(0, 1)], drops_others=False)
    await transactions.settled(admitted)
    return admitted


async def test_commits_that_waited_for_a_scale_are_merged_one_after_the_other(tmp_path: Path) -> None:
    """Behaviours 28, 96, 97: both go into a segment that did not exist when they began to wait."""
    storage, clock = MemoryStorage(), ManualClock()
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        await streams.controller.create("a/b", segment_count=1, configuration="")
        transactions = TransactionCommands(streams.opened.container, streams.controller, options=TransactionsOptions())
        numbers = [await begin(streams, transactions, events=events) for events in (b"first", b"second")]
        waiters = Waiters(streams)
        scaled = await waiters.hold()
        commits = [asyncio.create_task(commit(transactions, number)) for number in numbers]
        await waiters.release()
        await asyncio.gather(*commits)

        target = scaled.created[0].segment_id
        segment = streams.opened.container.segment(target)
        assert (segment.length, segment.event_count) == (11, 2)
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        segment = streams.opened.container.segment(target)
        assert (segment.length, segment.event_count) == (11, 2)


async def test_a_scale_that_waited_seals_the_segment_that_appends_find(tmp_path: Path) -> None:
    """Behaviours 23, 97: its segment did not exist when it began to wait, and is refused to appends from then on."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        await streams.controller.create("a/b", segment_count=1, configuration="")
        waiters = Waiters(streams)
        target = (await waiters.hold()).created[0].segment_id
        scaling = streams.controller.scale("a/b", sealed_ids=[target], ranges=halves(), cause="test")
        waiting = asyncio.create_task(scaling)
        await waiters.release()
        await at_once(lambda: streams.opened.container.queued(m.StreamScaled, "a/b") is not None)

        with pytest.raises(SegmentSealedError):
            await streams.append(target, b"late")
        await waiting


async def test_a_segment_that_a_commit_begins_and_fills_can_be_truncated(tmp_path: Path) -> None:
    """Behaviours 63, 97: of a commit that a split overtook, the segment between the epochs has equal views."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        container, controller = streams.opened.container, streams.controller
        stream, _ = await controller.create("a/b", segment_count=1, configuration="")
        transactions = TransactionCommands(container, controller, options=TransactionsOptions())
        number = await begin(streams, transactions, events=b"torn")
        await controller.scale("a/b", sealed_ids=stream.segment_ids, ranges=halves(), cause="test")
        await commit(transactions, number)
        assert stream.epoch == 3

        assert differences(container) == []
        await controller.truncate("a/b", [m.SavedPosition(part.segment_id, 0, 0) for part in stream.open_parts])

        (filled,) = [each for each in container.state.segments.present() if each.length and each.stream_id]
        assert (filled.start_offset, filled.length) == (4, 4)


async def test_a_commit_whose_outcome_is_forgotten_while_it_waits_is_unknown(tmp_path: Path) -> None:
    """Behaviour 29: what is sent again after all that time is told that the transaction is unknown."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        container = streams.opened.container
        await streams.controller.create("a/b", segment_count=1, configuration="")
        transactions = TransactionCommands(container, streams.controller, options=TransactionsOptions())
        number = await transactions.reserve_ids(1)
        routed, producer = m.RoutedStream("a/b", 0, 0), Producer("p", "host", "run", 0)
        await transactions.settled(
            await transactions.begin(
                number, "", lease_ms=60_000, streams=[routed], session_id=bytes(16), producer=producer
            )
        )
        await transactions.abort(number)
        await streams.opened.flusher.checkpoint()

        with await container.loader.pin(m.Required(transactions=[number])):
            committing = asyncio.create_task(transactions.commit(number, [], drops_others=False))
            await asyncio.sleep(0)
            forgotten = container.decide(m.OutcomesForgotten([number]))
            with pytest.raises(TransactionUnknownError):
                await committing
            await forgotten
