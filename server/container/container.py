"""The unit that owns segments: it admits requests, logs them, and applies durable batches.

The path of an append:

    append      checks it against the admitted view, pins its entities, gives it an offset and passes it to the log
    refuse      queues a rejected append; it is answered when the state that the rejection rests on is durable
                (`in_flight`)
    (the log)   makes a batch durable
    durable     applies the batch in the order of the log (`state.apply`), wakes readers at the tail, settles the owners

A decision (create, seal, ...) takes the same path as a record, so all of them are in one order with the appends: an
append admitted after a seal is rejected, one before it is stored.

Only `start`, and the futures of `decide`, wait; all of it runs in the event loop. Reads are in `segment_reads`.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millrace.server.container.state.apply import apply_batch, move_rows
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment, WriterProgress
from millrace.server.container.state.sequences import (
    StreamProgress,
    check_piece_count,
    check_plain,
    check_sequenced,
    refusal_of,
)
from millrace.server.container.state.transaction import Transaction
from millrace.server.errors import (
    CheckpointDamagedError,
    DiskUnavailableError,
    LogFailedError,
    NoSpaceError,
    OwnerFencedError,
    SegmentNotFoundError,
    ServerError,
    ShuttingDownError,
    ThrottledError,
)
from millrace.server.host.clock import Clock
from millrace.server.ownership import Ownership
from millrace.server.wal import Log
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import encode
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX

from .admission import (
    PendingAppend,
    ReplyTarget,
    check_condition,
    check_event_count,
    check_event_number,
    check_exclusive,
    check_size,
    check_writer,
    deduplicate,
    owner_of_part,
    take_room,
)
from .catch_up_reader import CatchUpReader
from .decision_checks import check_decision
from .entity_cache import Pins
from .event_times import EventTimeClamp, check_times
from .in_flight import InFlight, PendingDecision
from .loader import EntityLoader
from .log_loss import LogLoss
from .options import ContainerOptions
from .segment_reads import SegmentReads
from .wakeup_filter import is_watched, wakes_somebody

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = 200


class SegmentContainer:
    """Segments, their log and their tier 2. Made and started by `startup.open_container`."""

    def __init__(
        self,
        *,
        state: ContainerState,
        log: Log,
        reader: CatchUpReader,
        options: ContainerOptions,
        clock: Clock,
        ownership: Ownership,
        loss: LogLoss | None = None,
    ) -> None:
        self.state = state
        self.log = log
        self.options = options
        self.clock = clock
        self.reader = reader
        self.reads = SegmentReads(state, reader, loss)
        # No single append, and no run of several, may have more bytes, headers included.
        self.run_size_bytes_max = min(log.run_size_bytes_max, FRAME_SIZE_BYTES_MAX)
        self._ownership = ownership
        # Whether the log has failed: the state may have less than the disk. Also set if the container was fenced.
        self.has_failed = False
        # Set when another server owns the container: it stays failed, and may neither store nor delete anything.
        self.fence: OwnerFencedError | None = None
        # Set when the checkpoint is damaged: the container must be started again, from a copy of it.
        self.checkpoint_damage: CheckpointDamagedError | None = None
        self.loader = EntityLoader(state)
        # Called after each applied batch: the flusher checks whether there is work.
        self.on_progress: Callable[[], None] = lambda: None
        # Called once if the log or the checkpoint fails, or the container is fenced; it then rejects all requests.
        self.on_failure: Callable[[ServerError], None] = lambda error: None
        # How often a writer was rejected for its sequences, until a reset.
        self.sequences_refused_total = 0
        # The loss of the log: the container is read-only then, and the log is not started.
        self.loss = loss
        # Why requests that change anything are rejected, None if they are not.
        self._failure: ServerError | None = None if loss is None else loss.error()
        # Callbacks of writers that wait for space: each is called once when there is some.
        self._waiting_for_room: set[Callable[[], None]] = set()
        self.in_flight = InFlight()
        # Clamps times outside of clamping bounds before a run is appended.
        self.clamp = EventTimeClamp(state, clock)

    async def start(self) -> None:
        """Start the log, from which the state was recovered, and accept requests from now on; see `Log.start`."""
        # The state may know batches that the log has lost: their sequences are not used again.
        self.state.scalars.log_capacity_bytes = self.log.capacity_bytes
        self._trim_idle_between_steps()
        await self.log.start(after_sequence=self.state.sequence, on_durable=self.durable, on_failure=self.log_failed)
        self.state.sequence = self.log.durable_sequence

    def _trim_idle_between_steps(self) -> None:
        """Evict idle entities above the limit, but never within a step of the event loop: see `idle_budget`."""
        loop, idle = asyncio.get_running_loop(), self.state.idle

        def trim_soon() -> None:
            if not loop.is_closed():
                loop.call_soon(idle.trim)

        idle.on_full = trim_soon
        idle.trim()

    def stop(self) -> None:
        """Reject requests from now on; runs queued for the log still become durable."""
        if self._failure is None:
            self._failure = ShuttingDownError("the server is shutting down", retry_after_ms=1000)

    # --- appends ---

    def append(self, run: AppendRun, owner: ReplyTarget, *, is_internal: bool = False) -> list[PendingAppend]:
        """Admit a run of appends and queue it for the log.

        Args:
            run: from `scan_run`; kept, and given its place in the segment.
            owner: `settle` is called once the outcome of the result is known.
            is_internal: whether the server itself appends; only the server may append to internal segments that are not
                parts of a transaction.

        Returns:
            One or two pending appends in the order of their request ids.

        Raises:
            ServerError: nothing of the run was or will be stored.
        """
        self._check_running()
        segment = self._admitted_segment(run.segment_id)
        # Appends of a transaction share a batch with its commit, if that arrives in this turn of the loop.
        transaction = owner_of_part(self.state, segment, run) if segment.is_internal and not is_internal else None
        if run.writer_number:
            check_writer(self.state, run.writer_number, run.writer_epoch)
            # Stored in the segment only once something of the writer is admitted.
            progress = segment.writers.get(run.writer_number) or WriterProgress()
            if run.event_number <= progress.admitted:
                # Even if the segment was sealed since: stored events stay stored.
                return self._append_again(run, owner, segment, progress, transaction)
            return [self._admit(run, owner, segment, progress, transaction)]
        return [self._admit(run, owner, segment, None, transaction)]

    def _admit(
        self,
        run: AppendRun,
        owner: ReplyTarget,
        segment: Segment,
        progress: WriterProgress | None,
        transaction: Transaction | None,
    ) -> PendingAppend:
        state = self.state
        segment.check_appendable()
        if state.quarantine:
            state.quarantine.check_appendable(run.segment_id, run.writer_number)
        if exclusive_writers := state.admitted.exclusive_writers:
            check_exclusive(segment, run, exclusive_writers)
        if progress is not None:
            check_event_number(segment, progress, run)
        if state.event_times:
            check_times(state, run, segment, transaction, now_us=self.clock.unix_us())
        check_size(segment, len(run.frames), size_max=self.run_size_bytes_max)
        check_event_count(segment, run.event_count)
        check_condition(segment, run)
        on_stream = None if progress is None else self._check_sequences(segment, run)
        self.check_room()
        size = run.payload_size
        if transaction is not None:
            take_room(state, transaction, size, size_max=self.options.transaction_size_bytes_max)
        pending = PendingAppend(owner, run)
        run.offset = pending.offset = segment.next_offset
        # Pin first, then queue in the log, which may reject; only then move the admitted view.
        pins = pending.pins = Pins()
        try:
            if transaction is None:  # otherwise the transaction pins it, and does not end before this
                state.segments.pin((run.segment_id,), into=pins)
            if progress is not None:
                state.writers.pin((run.writer_number,), into=pins)
            assert state.admitted_segment(run.segment_id) is segment, "the append was admitted to another object"
            self.log.submit(run, is_followed=transaction is not None)
        except BaseException:
            pins.release()
            raise
        if progress is not None:
            progress.admitted = run.last_event_number
            segment.writers[run.writer_number] = progress
        if on_stream is not None:
            on_stream.admit(segment, run.sequences)
        segment.next_offset += size
        segment.next_event_count += run.event_count
        self.in_flight.add(pending)
        return pending

    def _check_sequences(self, segment: Segment, run: AppendRun) -> StreamProgress | None:
        """Return the writer's progress on the stream, None if it was not opened for it; raise like `append`.

        A block rejected for its sequences is recorded, so that its writer cannot be reopened as if nothing had
        happened.
        """
        writer = self.state.writers.peek(run.writer_number)
        assert writer is not None, "it was checked before"
        on_stream = writer.streams.get(segment.stream_id)
        if run.sequences is None:
            if on_stream is not None:
                check_plain(on_stream, subject=writer.writer_id)
            return on_stream
        on_stream = check_sequenced(on_stream, segment, subject=writer.writer_id)
        refusal = refusal_of(on_stream, segment, run.sequences)
        if refusal is not None:
            # Not awaited: the append follows it.
            self.log_decision(
                m.SequencesRefused(
                    writer_number=run.writer_number,
                    stream_id=segment.stream_id,
                    segment_id=refusal.segment_id,
                    first_sequence=refusal.first_sequence,
                    stored_through=refusal.stored_through,
                )
            )
            self.sequences_refused_total += 1
            logger.error(
                "sequences refused writer=%s stream_id=%d segment_id=%d first_sequence=%d stored_through=%d",
                writer.writer_id, segment.stream_id, *refusal,
            )  # fmt: skip
            raise refusal.error(writer.writer_id)
        check_piece_count(on_stream, run.sequences, subject=writer.writer_id)
        return on_stream

    def _append_again(
        self,
        run: AppendRun,
        owner: ReplyTarget,
        segment: Segment,
        progress: WriterProgress,
        transaction: Transaction | None,
    ) -> list[PendingAppend]:
        """Admit a run that was sent before, completely or in part."""
        known, new = deduplicate(segment, run, stored=progress.admitted)
        again = PendingAppend(owner, known)
        again.duplicate = True
        if known.last_event_number == progress.durable and known.frame_count == 1:
            again.offset = progress.last_offset
        result = [again]
        if new is not None:
            try:
                result.append(self._admit(new, owner, segment, progress, transaction))
            except ServerError as error:
                # Only for this part: the other part is acknowledged as a duplicate.
                result.append(self.refuse(new, owner, error))
        if known.last_event_number <= progress.durable:
            again.settle()
        else:
            # Stored by an earlier append still in flight: no ack before that one is durable.
            self.in_flight.follow(again)
        return result

    def refuse(self, run: AppendRun, owner: ReplyTarget, error: ServerError) -> PendingAppend:
        """Return the appends of a run that was refused: settled, or to be settled when the reason is durable."""
        refused = PendingAppend(owner, run)
        # The traceback would keep the run and all its frames alive until it is answered.
        refused.error = error.with_traceback(None)
        if error.tells_state:
            self.in_flight.follow(refused)
        else:
            refused.settle()
        return refused

    @property
    def refusal(self) -> str:
        """Why appends are refused now, for people; empty if they are not."""
        return str(self._failure) if self._failure is not None else self.log.refusal or ""

    @property
    def must_recover(self) -> bool:
        """Whether to close and reopen the container: its log has failed, or its checkpoint is damaged."""
        is_damaged = self.checkpoint_damage is not None and self.loss is None
        return self.fence is None and (self.has_failed or is_damaged)

    @property
    def is_lapsed(self) -> bool:
        """True if the lease has expired, so another server may be the owner; clients are then ignored."""
        return self._ownership.is_lapsed

    def stay_failed(self, reason: str) -> None:
        """Reject requests for this reason from now on, after a failure of log or checkpoint."""
        self._failure = self.fence or DiskUnavailableError(reason, retry_after_ms=1000)

    def _check_running(self) -> None:
        # A stalled process must not acknowledge duplicates either.
        if self._failure is None:
            self._has_stalled()
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # otherwise each request would extend the traceback

    def check_room(self) -> None:
        """Check that there is space for new content; records that end something use the headroom of the log.

        Raises:
            NoSpaceError, ThrottledError: the log, or the memory for unflushed bytes, is full.
        """
        # `_check_running` has already ruled out a closed log.
        refusal = self.log.refusal
        if refusal is not None:
            raise NoSpaceError(f"{refusal}; reads, truncates and deletes work", retry_after_ms=1000)
        if self.state.tail_bytes > 2 * self.options.tail_size_bytes_high:
            raise ThrottledError("memory for unflushed bytes is full", retry_after_ms=RETRY_AFTER_MS)

    @property
    def is_full(self) -> bool:
        """Whether new bytes wait, or are rejected, until the log can be recycled or unflushed bytes leave memory."""
        is_memory_full = self.state.tail_bytes > self.options.tail_size_bytes_high
        return self._failure is None and (is_memory_full or self.log.refusal is not None)

    @property
    def throttle_reason(self) -> str:
        """The full resource, for people; empty if appends are accepted.

        Above its high mark a resource is full. Once a writer waits for space, it counts as full for all until it is
        below its low mark, so that appends do not stop and go with each batch (hysteresis).
        """
        if self._failure is not None:
            return ""  # they are refused, with the reason
        options = self.options
        queued, tail = self.log.queued_bytes + self.in_flight.held_bytes, self.state.tail_bytes
        is_throttling = bool(self._waiting_for_room)
        if queued > (options.queue_size_bytes_low if is_throttling else options.queue_size_bytes_high):
            return f"{queued} bytes wait for the log"
        if tail > (options.tail_size_bytes_low if is_throttling else options.tail_size_bytes_high):
            return f"{tail} bytes wait for tier 2"
        return ""

    def wait_for_room(self, callback: Callable[[], None]) -> None:
        """Call back once when `throttle_reason` is empty, or when the container ends."""
        self._waiting_for_room.add(callback)

    def stop_waiting_for_room(self, callback: Callable[[], None]) -> None:
        """Cancel a callback; does nothing if it is not waiting."""
        self._waiting_for_room.discard(callback)

    def room_changed(self) -> None:
        """Wake writers waiting for space."""
        if self._waiting_for_room and (self._failure is not None or not self.throttle_reason):
            callbacks, self._waiting_for_room = self._waiting_for_room, set()
            for callback in callbacks:
                callback()

    # --- decisions ---

    def decide(self, record: m.Record, *subject: int | str) -> asyncio.Future[None]:
        """Log a decision; the future resolves when it is durable and applied.

        The caller has checked the decision against the admitted view. The transitions of the record move the rows of
        that view here; the caller moves the counters of segments and streams, in the same step. The entities that the
        record names are pinned until it is settled. Cancelling the wait does not undo the decision.

        Args:
            record: of the decision.
            subject: with the type of the record, the key under which `queued` returns the decision until it is settled.

        Raises:
            ContentLostError: an entity that it would change is damaged.
            ServerError: the container accepts no requests.
        """
        return self.log_decision(record, *subject).durable()

    def log_decision(
        self, record: m.Record, *subject: int | str, is_followed: bool = False, required: m.Required | None = None
    ) -> PendingDecision:
        """Log a decision; the caller may wait for it, or let an answer follow it. See `decide`.

        Args:
            is_followed: see `Log.submit`.
            required: the entities of the record to pin until it is settled, without those pinned anyway; None for all.
        """
        self._check_running()
        if self.state.quarantine:
            self.state.quarantine.check_changeable(record)
        frame = encode(record)
        pins = Pins()
        try:
            self.state.pin_required(required or m.required_entities(record), into=pins)
            admission = check_decision(self.state, record)
            self.log.submit(AppendRun.of_record(frame), is_followed=is_followed)
        except BaseException:
            pins.release()
            raise
        decision = PendingDecision(record, (type(record), *subject), pins)
        self.in_flight.add(decision)
        move_rows(admission)
        return decision

    def queued(self, kind: type[m.Record], *subject: int | str) -> PendingDecision | None:
        """Return the last decision of a type about a subject, if it is not settled yet: the admitted view of that."""
        return self.in_flight.queued((kind, *subject))

    def is_resident(self, run: AppendRun) -> bool:
        """Return whether `append` finds segment and writer of a run, or their absence, without loading."""
        state = self.state
        return state.segments.is_resident(run.segment_id) and (
            not run.writer_number or state.writers.is_resident(run.writer_number)
        )

    def segment(self, segment_id: int) -> Segment:
        """Return a segment by id.

        Raises:
            SegmentNotFoundError: it does not exist.
        """
        return self._found(self.state.segments.get(segment_id), segment_id)

    def _admitted_segment(self, segment_id: int) -> Segment:
        """Return a segment by id, even if its creation is still queued. Raises like `segment`."""
        return self._found(self.state.admitted_segment(segment_id), segment_id)

    def _found(self, segment: Segment | None, segment_id: int) -> Segment:
        if segment is None or segment.link is not None:
            raise self.absent(SegmentNotFoundError(f"segment {segment_id} does not exist"))
        return segment

    def absent(self, error: ServerError) -> ServerError:
        """Return `error`, or ContentLostError if the entity may have been lost with the log."""
        return error if self.loss is None else self.loss.error()

    # --- what became durable ---

    def durable(self, runs: list[AppendRun], sequence: int, wall_time_us: int) -> None:
        """Apply a batch that the log has synced, and settle its owners: called by the log, in order."""
        if self.has_failed or self._has_stalled():
            return  # the recovery from disk includes it
        state = self.state
        # The log hands runs back in the order submitted.
        items = self.in_flight.items(runs)
        # Every later request sees the batch applied. So the ack of a lone append, and replies about transactions, need
        # not wait for that, if no reader has to be woken first.
        if self.in_flight.replies_count:
            if not wakes_somebody(state, items):
                for owner in self.in_flight.tell(len(runs)):
                    owner.settle()
        elif len(runs) == 1 and not is_watched(state, runs[0].segment_id):
            self.in_flight.tell_lone()
        try:
            woken = apply_batch(
                state,
                items,
                sequence=sequence,
                wall_time_us=wall_time_us,
                bytes_sink=state.hold,
            )
        except Exception as error:
            # Applying never fails: a contradiction is damage. If it did fail, memory would differ from the log, and
            # must not be stored.
            logger.critical("batch cannot be applied sequence=%d", sequence, exc_info=error)
            self.log_failed(error)
            return
        if state.quarantine:
            for damage in state.quarantine.take_news():
                logger.critical("durable record contradicts the state damage=%s", damage)
        owners = self.in_flight.durable(runs)
        # Readers at the tail first: a client that reads after its ack finds the pushed bytes already sent.
        for segment in woken:
            segment.notify()
        for owner in owners:
            owner.settle()
        self.room_changed()
        self.on_progress()

    def log_failed(self, error: BaseException) -> None:
        """Fail everything that waits for the log, with an unknown outcome: called by the log, once."""
        # Later requests were certainly not stored, and may be retried.
        self.stay_failed(f"the log failed and is being recovered: {error}")
        logger.error("log failed sequence=%d waiting=%d error=%r", self.state.sequence, len(self.in_flight), error)
        self._fail(LogFailedError(f"the log failed, the outcome is unknown: {error}", retry_after_ms=1000))

    def fenced(self, error: OwnerFencedError) -> None:
        """End: another server owns the container. Pending requests have an unknown outcome; later ones are rejected."""
        if self.fence is None:
            self.fence = self._failure = error
            logger.critical("container fenced sequence=%d waiting=%d", self.state.sequence, len(self.in_flight))
            self._fail(LogFailedError(f"{error}; the outcome is unknown"), reason=error)

    def _has_stalled(self) -> bool:
        """Fail like a failed log, and return True, if another server may have taken over unnoticed."""
        if not self.has_failed and self._ownership.is_stalled:
            self.log_failed(TimeoutError("this process stalled for longer than its lease"))
        return self.has_failed

    def _fail(self, outcome: LogFailedError, *, reason: ServerError | None = None) -> None:
        """Settle everything that waits for the log with an outcome; reject later requests, by default alike."""
        self.has_failed = True
        for owner in self.in_flight.fail(outcome):
            owner.settle()
        self.room_changed()
        self.on_failure(reason or outcome)

    def checkpoint_damaged(self, error: CheckpointDamagedError) -> None:
        """Reject everything from now on: the state of idle segments is unknown. Queued runs still become durable."""
        if self.checkpoint_damage is None:
            logger.error("checkpoint damaged error=%s", error)
            self.checkpoint_damage = error
            if self._failure is None:
                self.stay_failed("the checkpoint is damaged and is being restored")
                self.on_failure(error)
