"""Delivers the blocks of one writer, within its bound of memory, until each is durable.

The segment writers say what may be sent and what became of it, the block sender sends it; here it is counted and told.
All calls go down, from the writer to this to those; what comes up are only the answers of the connection. There is one
`Retry` for all segments, since what interrupts one (a lost connection, a full disk) interrupts all: it starts with the
first failure and ends with the first block that is stored. The one for finding successors ends when no segment refuses
any more: what other segments store says nothing of those.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from millrace.client.errors import DeliveryTimeoutError, NotOpenError
from millrace.client.exit_flush import UnclosedWriter
from millrace.client.transport.channel import Channel
from millrace.client.transport.retry import Retry, may_resend
from millrace.model.block_packing import EventColumns, size_of_single
from millrace.model.block_scan import fields_at
from millrace.model.errors import MillraceError
from millrace.model.event_times import unit_hint
from millrace.model.limits import APPEND_SIZE_BYTES_MAX, EVENT_SIZE_BYTES_MAX, ROUTING_KEY_SIZE_BYTES_MAX
from millrace.model.sequence_row import SequenceRow

from .block_sender import BlockSender
from .events import Block, BlockOutcome, Call, Events, WriteResult, block_of
from .opening import Opening
from .options import WriterOptions
from .outcomes import Outcomes
from .refused_events import RefusedEvents
from .reroute import Rerouter, Successors, is_block_stored, left_over, redistributed
from .segment_writer import SegmentWriter, SenderState
from .sequences import NO_SEQUENCES
from .stored_notice import StoredNotice
from .targets import Targets

logger = logging.getLogger(__name__)

_SINGLE_OVERHEAD_BYTES_MAX: Final = size_of_single(0, key_size=ROUTING_KEY_SIZE_BYTES_MAX) + 8
"""What a block of one event is larger than its value, at most."""


class Delivery:
    """The blocks of one writer, from the accumulators to its segments. Belongs to one event loop.

    Args:
        limit_s: how long blocks are sent again while none is stored, before the writer gives up.

    Attributes:
        pending_bytes: what was written and has no outcome yet; `Writer.write` adds what it takes.
        stored_count: events that are known to be stored,
        lost_count: and that were given up, stored or not.
        refusal: why nothing more can be written; set once.
        failure: why events were lost, until a caller has seen it.
        refused: events that were refused after the call that wrote them.
        at_exit: flushes and counts the events when the program ends; None for the writers of a transaction.
        append_size_max, block_size_bytes: of the largest append of the server, and of a block that is not full.
        event_size_unchecked: an event up to this size fits an append, whatever its key.
        targets: where blocks are sent.
        sender: sends them.
    """

    __slots__ = (
        "_answered", "_channel", "_drain_turn", "_draining_count", "_last_order", "_limit_s", "_loop",
        "_notice", "_number", "_options", "_outcomes", "_reroute_retry", "_rerouter", "_rerouting",
        "_resuming", "_retry", "_sequences", "_stream", "_unit_is_checked", "append_size_max",
        "at_exit", "block_size_bytes", "event_size_unchecked", "failure", "lost_count", "pending_bytes",
        "refusal", "refused", "reroutes", "retries", "sender", "stored_count", "targets",
    )  # fmt: skip

    def __init__(self, channel: Channel, stream: str, options: WriterOptions, *, limit_s: float) -> None:
        self._channel = channel
        self._stream = stream
        self._options = options
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self.sender = BlockSender(
            channel,
            in_flight_bytes_max=options.in_flight_bytes_max,
            stored_below=self.stored_below,
            on_acked=self._block_acked,
            on_failed=self._block_failed,
            on_missing=self._resume_later,
        )
        self._rerouter: Rerouter
        self._number = 0
        self._sequences = NO_SEQUENCES
        self._notice: StoredNotice | None = None
        self.targets = Targets(options.compression)
        self._outcomes = Outcomes()
        self._last_order = 0
        self.refusal: MillraceError | None = NotOpenError(
            "the writer was not opened yet: use `async with`, or `await writer.open()`"
        )
        self.failure: Exception | None = None
        self.refused = RefusedEvents()
        self.at_exit: UnclosedWriter | None = None
        self.append_size_max = APPEND_SIZE_BYTES_MAX
        self.block_size_bytes = options.block_size_bytes
        self.event_size_unchecked = 0
        self.pending_bytes = 0
        self.stored_count = 0
        self.lost_count = 0
        self.retries = 0
        self.reroutes = 0
        # The attempts since a block was stored last; None as long as none failed.
        self._retry: Retry | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._rerouting: asyncio.Task[None] | None = None
        # The attempts to find successors since a segment began to refuse, over all tasks.
        self._reroute_retry: Retry | None = None
        # How many wait in `drain`, and the turn of the first of them.
        self._draining_count = 0
        self._drain_turn = asyncio.Lock()
        # Set with each answer, and when blocks were moved to other segments.
        self._answered = asyncio.Event()
        self._unit_is_checked = False

    def start(self, opening: Opening, rerouter: Rerouter) -> None:
        """Take blocks from now on."""
        self._number = opening.number
        self.sender.start(opening.number, opening.epoch)
        self._rerouter = rerouter
        self._sequences = opening.sequences
        self._notice = StoredNotice(
            self._channel, opening, stored_below=lambda: None if self.pending_bytes else self.stored_below()
        )
        self._apply_server_limits()
        last = opening.last_event_numbers
        self.targets.route(opening.router, last, start=opening.number)
        self.refusal = None

    def stored_below(self) -> int:
        """Return the sequence below which all that was written is stored."""
        return self._sequences.stored_below(self.targets.first_sequence)

    @property
    def has_taken(self) -> bool:
        """Whether an event was taken since the writer was opened."""
        return self._last_order > 0 or self.has_gathered

    @property
    def held_count(self) -> int:
        """The number of events without an outcome."""
        return sum(segment.held_count for segment in self.targets.segments)

    @property
    def taken_count(self) -> int:
        """How many events were taken since the writer was opened, whatever became of them."""
        return self.stored_count + self.lost_count + self.held_count

    # --- events in ---

    def schedule(self, segment: SegmentWriter) -> None:
        """Pack what was gathered in the next turn of the loop, if no block is before it; else after those."""
        segment.accumulator.scheduled = True
        if segment.is_idle:
            self._loop.call_soon(self._turn, segment)

    def send_gathered(self, segment: SegmentWriter) -> None:
        """Send what was gathered, as far as there is room."""
        self._add_gathered(segment)
        self.sender.pump(segment)

    def pack(self, segment: SegmentWriter, events: Events) -> Block:
        """Return the block of events, for `send_packed`; nothing is taken yet. Raises like `Accumulator.packed`."""
        return segment.accumulator.packed(events, self.append_size_max)

    def send_packed(self, call: Call, packed: Sequence[tuple[SegmentWriter, Block]]) -> None:
        """Send the blocks of a call, which `pack` returned last for their segments, after what was gathered."""
        for segment, _ in packed:
            self._add_gathered(segment)
        call.order = call.order or self._next_order()
        self._outcomes.expect(call, len(packed))
        for segment, block in packed:
            block.order = call.order
            block.cost_bytes = len(block.payload)
            self.pending_bytes += block.cost_bytes
            segment.accumulator.number(block)
            self._add(segment, block)
        for segment, _ in packed:
            self.sender.pump(segment)

    def send_columns(self, call: Call, pieces: Sequence[tuple[SegmentWriter, EventColumns]]) -> None:
        """Send the events of a call, a block for each piece, after what was gathered. Each piece fits an append."""
        segments = dict.fromkeys(segment for segment, _ in pieces)
        for segment in segments:
            self._add_gathered(segment)
        call.order = self._next_order()
        self._outcomes.expect(call, len(pieces))
        for segment, events in pieces:
            block = segment.accumulator.pack_columns(events, call, self.append_size_max)
            block.order = call.order
            self.pending_bytes += block.cost_bytes
            self._add(segment, block)
        for segment in segments:
            self.sender.pump(segment)

    def _next_order(self) -> int:
        self._last_order += 1
        return self._last_order

    async def drain(self) -> None:
        """Wait if more than `drain_high_bytes` is pending, until it is `drain_low_bytes`, or nothing more is taken.

        First come, first served: who comes while others wait, waits after them.
        """
        if self.has_room(0):
            return
        self._draining_count += 1
        try:
            async with self._drain_turn:
                limit_bytes = self._options.drain_high_bytes  # for those who waited for their turn
                while self.refusal is None and self.pending_bytes > limit_bytes:
                    limit_bytes = self._options.drain_low_bytes
                    await self._next_answer()
        finally:
            self._draining_count -= 1

    def has_room(self, size_bytes: int) -> bool:
        """Whether `drain` would not wait if so much more were pending. May be called in any thread."""
        return self.pending_bytes + size_bytes <= self._options.drain_high_bytes and not self._draining_count

    async def flush(self) -> None:
        """Wait until everything written before this call has its outcome. Cancelling is safe."""
        while True:
            reroutes = self.reroutes
            for segment in self.targets.segments:
                self.send_gathered(segment)
            for segment, last_number in [(each, each.accumulator.last_number) for each in self.targets.segments]:
                while segment.holds(last_number):
                    await self._next_answer()
            if reroutes == self.reroutes:
                return
            # What was waited for was moved to other segments: wait there.

    @property
    def has_gathered(self) -> bool:
        """Whether there are events that are not packed yet."""
        return any(segment.accumulator.values for segment in self.targets.segments)

    def pack_gathered(self) -> None:
        """Pack what was gathered, and send it as far as there is room."""
        for segment in self.targets.segments:
            self.send_gathered(segment)

    def pump_all(self) -> None:
        """Send what may be sent now and was held back before."""
        for segment in self.targets.segments:
            self.sender.pump(segment)

    async def sent(self) -> None:
        """Wait until everything written before this call is in flight or has its outcome. Cancelling is safe."""
        while self.refusal is None:
            if self.has_gathered:
                self.pack_gathered()
            if all(segment.is_all_sent for segment in self.targets.segments):
                return
            await self._next_answer()

    def all_stored(self) -> None:
        """Know that everything is stored that was sent and is not in flight now, whatever became of its acks."""
        for segment in self.targets.segments:
            for block in segment.take_stored():
                self._settle(block, WriteResult(segment.segment_id, None, block.event_number, block.event_count))
        self._answered.set()

    async def _next_answer(self) -> None:
        self._answered.clear()
        await self._answered.wait()

    def _add_gathered(self, segment: SegmentWriter) -> None:
        gathered = segment.accumulator
        if gathered.values:
            for block in gathered.pack_gathered(self.append_size_max, order=self._next_order()):
                self._add(segment, block)

    def _add(self, segment: SegmentWriter, block: Block) -> None:
        if segment.answered_state is SenderState.STOPPED:
            assert self.refusal is not None
            self._settle(block, block.error or self.refusal)
            return
        if not self._unit_is_checked:
            self._check_unit(block)
        segment.add(block)
        if block.error is not None:  # what follows may not overtake it
            self.fail(block.error)

    def _check_unit(self, block: Block) -> None:
        """Log a warning if the first block has times that are likely in another unit than microseconds."""
        self._unit_is_checked = True
        hint = "" if block.error is not None else unit_hint(fields_at(block.payload).timestamp_us_max)
        if hint:
            logger.warning("event times suspicious stream=%s hint=%s", self._stream, hint)

    def _turn(self, segment: SegmentWriter) -> None:
        segment.accumulator.scheduled = False
        if segment.is_idle:
            self.send_gathered(segment)

    # --- answers in ---

    def _block_acked(self, segment: SegmentWriter, block: Block, offset: int | None) -> None:
        """Resolve a block that is durable, and send what gathered meanwhile."""
        for each in segment.acked(block):
            at = offset if each is block else None
            self._settle(each, WriteResult(segment.segment_id, at, each.event_number, each.event_count))
        if self._retry is not None:
            self._retry.end()
            self._retry = None
        if self._reroute_retry is not None and not any(each.is_refusing for each in self.targets.segments):
            self._reroute_retry = None
        self._after_answer(segment)
        self.note_idle()

    def note_idle(self) -> None:
        """Tell in a while what is stored, if nothing is on its way that says it."""
        if self._notice is not None and self._sequences.is_required and not self.pending_bytes:
            self._notice.fell_idle()

    def tell_stored(self) -> None:
        """Tell what is stored; nothing more is written."""
        if self._notice is not None:
            self._notice.tell_now()

    def _block_failed(self, segment: SegmentWriter, block: Block, error: MillraceError) -> None:
        """Keep a block for another attempt, or end the writer."""
        segment.failed(block, error)
        if block.error is not None:
            self.fail(block.error)
        self._after_answer(segment)

    def _after_answer(self, segment: SegmentWriter) -> None:
        """Do what the state of a segment asks for after an answer."""
        self._answered.set()
        self.sender.pump_waiting()
        if segment.state is SenderState.SENDING:
            if segment.is_idle:
                self.send_gathered(segment)
            else:
                self.sender.pump(segment)
        elif segment.answered_state is SenderState.INTERRUPTED:
            assert segment.interruption is not None
            self._resume_later(segment.interruption)
        elif segment.answered_state is SenderState.REJECTED:
            self._reroute_later()
        elif segment.answered_state is SenderState.STOPPED:
            self._abandon(segment)

    def _settle(self, block: Block, outcome: BlockOutcome) -> None:
        """Tell those who wait, and give the memory back."""
        if isinstance(outcome, WriteResult):
            self.stored_count += block.event_count
        else:
            self.lost_count += block.event_count
            if block.sequences is not None:
                self._sequences.fail(block.sequences[0])
        self._outcomes.settle(block, outcome)
        self.pending_bytes -= block.cost_bytes
        assert self.pending_bytes >= 0

    # --- another attempt ---

    def _resume_later(self, error: MillraceError) -> None:
        if self._resuming is None and self.refusal is None:
            self._resuming = self._start(self._resume(error), "resumes")

    async def _resume(self, error: MillraceError) -> None:
        """Wait, connect, and let the segments continue; or end the writer when its patience is over."""
        if self._retry is None:
            self._retry = self._channel.retry(self._limit_s, is_transient=may_resend)
        retry = self._retry
        self.retries += 1
        try:
            await retry.wait(error)
            await self._channel.connection_by(retry)
        except MillraceError as last:
            self.fail(self._given_up(last))
            return
        finally:
            if self._retry is not retry:  # another segment has stored a block meanwhile
                retry.end()
        self._resuming = None
        self._apply_server_limits()
        for segment in self.targets.segments:
            if segment.answered_state is SenderState.INTERRUPTED:
                segment.resume()
            self.sender.pump(segment)

    def _apply_server_limits(self) -> None:
        """Keep blocks below the largest append of the server, which is what the last connection said."""
        self.append_size_max = self._channel.append_size_max
        self.block_size_bytes = min(self._options.block_size_bytes, self.append_size_max // 2)
        self.event_size_unchecked = min(EVENT_SIZE_BYTES_MAX, self.append_size_max - _SINGLE_OVERHEAD_BYTES_MAX)

    # --- a stream that is scaled ---

    def reroute(self) -> None:
        """Find successors, if there are some though no segment has rejected anything."""
        if self._rerouter.is_needed:
            self._reroute_later()

    def _reroute_later(self) -> None:
        if self._rerouting is None and self.refusal is None:
            self._rerouting = self._start(self._reroute(), "finds successors")

    async def _reroute(self) -> None:
        """Move what replaced segments did not store to their successors; or end the writer if there are none."""
        if self._reroute_retry is None:
            self._reroute_retry = self._channel.retry(self._limit_s, is_transient=may_resend)
        retry = self._reroute_retry
        try:
            while self._rerouter.is_needed or any(
                segment.answered_state is SenderState.REJECTED for segment in self.targets.segments
            ):
                successors = await self._rerouter.find(self.targets.segments, retry)
                if successors is None:
                    for segment in self.targets.segments:
                        self.sender.pump(segment)
                    continue
                replaced = successors.replaced(self.targets.segments)
                while not all(segment.is_drained for segment in replaced):
                    lost = [segment for segment in replaced if segment.is_lost]
                    if lost:
                        self._decide_lost(lost, await self._rerouter.fetch_row(retry))
                    else:
                        await self._next_answer()
                self._switch(successors, replaced)
        except MillraceError as error:
            self.fail(self._given_up(error))
        self._rerouting = None

    def _decide_lost(self, segments: Iterable[SegmentWriter], row: SequenceRow) -> None:
        """Settle what segments that are gone had stored without an ack, as far as the row of the writer says."""
        for segment in segments:
            for block in segment.decide_unknown(lambda block: is_block_stored(block, row)):
                self._settle(block, WriteResult(segment.segment_id, None, block.event_number, block.event_count))
        self._answered.set()

    def _switch(self, successors: Successors, replaced: list[SegmentWriter]) -> None:
        """Give the events of replaced segments to the successors; from now on all are written there."""
        for segment in replaced:
            self._add_gathered(segment)
        if self.refusal is not None:
            return  # they hold what no append can, and nothing moves any more
        numbers = self.targets.last_event_numbers | successors.last_numbers
        self.targets.route(successors.router, numbers, start=self._number)
        for segment in replaced:
            segment.stop()
        for events in left_over(replaced):
            self._write_again(events)
        self.reroutes += 1
        self._reroute_retry = None
        self._answered.set()
        replaced_ids = [segment.segment_id for segment in replaced]
        logger.debug("writer rerouted after scaling stream=%s replaced=%s", self._stream, replaced_ids)
        for segment in self.targets.segments:
            if segment.accumulator.values and not segment.accumulator.scheduled:
                self.schedule(segment)
            self.sender.pump(segment)

    def _write_again(self, events: Events) -> None:
        """Put events that a replaced segment did not store where they belong now."""
        self.pending_bytes -= events.cost_bytes
        blocks: list[tuple[SegmentWriter, Block]] = []
        for segment, part in redistributed(events, self.targets):
            self.pending_bytes += part.cost_bytes
            if part.call is None:
                segment.accumulator.extend(part)
                if segment.accumulator.gathered_bytes >= self.block_size_bytes:
                    self._add_gathered(segment)
            else:
                self._add_gathered(segment)
                blocks += [(segment, block) for block in segment.accumulator.pack(part, self.append_size_max)]
        if events.call is not None:
            self._outcomes.expect(events.call, len(blocks) - events.block_count)
        for segment, block in blocks:
            self._add(segment, block)

    # --- the end ---

    def fail(self, error: MillraceError) -> None:
        """End the writer: nothing more can be stored in order."""
        if self.refusal is None:
            self.failure = error
            logger.warning("writer failed stream=%s error=%s", self._stream, error)
            self.stop(error)

    def _given_up(self, error: MillraceError) -> MillraceError:
        """Return why the writer ends after an error: with what is stored, if another attempt could have succeeded."""
        if not may_resend(error):
            return error
        unknown_count = sum(segment.unknown_count for segment in self.targets.segments)
        unstored_count = self.held_count - unknown_count
        timeout = DeliveryTimeoutError(
            f"given up after {self._limit_s:g} s: {error}; since the writer was opened, {self.stored_count} events were"
            f" stored, {unknown_count} were sent and may be stored, {unstored_count} are not stored",
            stored_count=self.stored_count,
            unknown_count=unknown_count,
            unstored_count=unstored_count,
        )
        timeout.__cause__ = error
        return timeout

    def stop(self, error: MillraceError) -> None:
        """Take nothing more. What is in flight ends with its own answer, all else with `error`, in order."""
        if self.refusal is None:
            self.refusal = error
        if self._retry is not None:
            self._retry.end()
        if self._notice is not None:
            self._notice.stop()
        for task in (self._resuming, self._rerouting):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for segment in self.targets.segments:
            segment.stop()
            if segment.answered_state is SenderState.STOPPED:
                self._abandon(segment)
        self._answered.set()

    def _abandon(self, segment: SegmentWriter) -> None:
        """Fail what a segment writer holds that was stopped."""
        error = self.refusal
        assert error is not None
        if segment.is_idle and not segment.accumulator.values:
            return
        blocks = segment.remove_all()
        gathered = segment.accumulator.remove_all()
        if gathered.values:
            gathered = gathered._replace(order=gathered.order or self._next_order())
            blocks.append(block_of(bytearray(), gathered, error=error))
        for block in blocks:
            self._settle(block, segment.reason(block, error))

    def _start(self, body: Coroutine[Any, Any, None], purpose: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(body, name=f"writer of {self._stream} {purpose}")
        task.add_done_callback(_report)
        return task


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.result()  # our own bug, if anything: the loop's exception handler names it
