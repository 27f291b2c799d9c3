"""The one fold: what a batch of the log does to the state of a container.

`apply_batch` is the only code that turns log records into state: for a batch that the log has just synced, for one that
is read again after a restart, and for `verify` and `inspect`, which judge by the very fold that the server uses. So the
state is a function of the log, and a checkpoint of it is only a shortcut.

    items of a batch         what applies them
    runs of appends          here
    ranges lost to damage    here
    records of decisions     the steps that their kinds declare: `Kind.records`

There is no loop, future, clock or I/O in it: what a batch is about is pinned before, by admission in the running server
and by `apply_recovered` otherwise. Nor does it notify: it returns the segments whose watchers are to be told. What
happens to the bytes of a run is the business of the sink: the running server holds all of them in the tail of the
segment, recovery those that are not in tier 2, and `verify` only where these are.

What a record says was decided and checked before it was written; it is checked again here before it changes anything.
One that does not fit is damage: it is not applied, and the entity that it contradicts is refused from then on (see
`quarantine`). Of a commit, the parts that fit are merged. A record about something that damage has made unknown is left
aside. A batch that the state contains already, which is known by its sequence, adds only its bytes, which no checkpoint
has.
"""

from collections.abc import Callable, Iterable

from millrace.server.container.entity_cache import Pins
from millrace.server.container.memtable import Extent
from millrace.server.wal import Damage, RecoveredBatch
from millrace.wire import messages as m
from millrace.wire.append_run import KIND_APPENDS, AppendRun
from millrace.wire.errors import CodecError
from millrace.wire.framing import decode

from .clock_history import ClockHistory
from .container_state import ContainerState
from .current_batch import OFFSET_MAX, CurrentBatch, UnstorableRecord, checked_record
from .quarantine import CONTAINER, UnfitRecordError
from .segment import DamagedRange, Segment
from .writer_progress import advance

BatchItem = AppendRun | m.Record | Damage | UnstorableRecord
"""A run of appends, the record of a decision, or a range of the log that cannot be read."""

BytesSink = Callable[[Segment, Extent], None]
"""Given the bytes of each run after it was applied. Those of a batch that the state contained already do not say how
many events there were before them: their `end_events` is 0."""


def apply_batch(
    state: ContainerState,
    items: Iterable[BatchItem],
    *,
    sequence: int,
    wall_time_us: int,
    bytes_sink: BytesSink,
    may_block: bool = False,
) -> set[Segment]:
    """Carry out a batch of the log; return the segments with watchers to notify.

    Of these there is more to read, or nothing more will come.

    Args:
        state: changed in place.
        items: in the order of the log.
        sequence: of the batch; that of the state itself for damage that is not part of any batch.
        wall_time_us: when the log wrote it.
        bytes_sink: given the bytes of each run.
        may_block: see `CurrentBatch`.
    """
    batch = CurrentBatch(state, state.durable, sequence=sequence, wall_time_us=wall_time_us, may_block=may_block)
    is_new = sequence > state.sequence
    for batch.index, batch.item in enumerate(items):
        item = batch.item
        try:
            if isinstance(item, AppendRun):
                _apply_run(batch, item, is_new=is_new, bytes_sink=bytes_sink)
            elif is_new or isinstance(item, Damage):
                check_item(batch, item)
                if isinstance(item, Damage):
                    _apply_damage(batch, item)
                else:
                    step = state.kinds.records[type(item)]
                    if step.apply is not None:
                        step.apply(batch, item)
                    move_rows(batch)
                    if step.after is not None:
                        step.after(batch, item)
        except UnfitRecordError as error:
            batch.refuse(error)
    # Only now: a batch that was applied in part must not pass for one that the state contains.
    if is_new:
        state.sequence, state.scalars.wall_time_us = sequence, wall_time_us
    return state.take_woken()


def move_rows(batch: CurrentBatch) -> None:
    """Move the rows of the view of a batch by its current record, which was checked.

    The fold does it to the durable view, and admission to the admitted view when a record is queued.
    """
    for transition in batch.state.kinds.transitions.get(type(batch.item), ()):
        transition(batch, batch.item)


def pin_items(state: ContainerState, items: Iterable[BatchItem]) -> Pins:
    """Load and pin what a batch is about, as far as it exists; blocks."""
    with Pins() as pins:
        for item in items:
            if isinstance(item, AppendRun):
                state.segments.pin([item.segment_id], into=pins)
                state.writers.pin([item.writer_number], into=pins)
            elif isinstance(item, Damage):
                state.segments.pin([segment_id for segment_id, _, _ in item.runs], into=pins)
            elif not isinstance(item, UnstorableRecord):
                state.pin_required(m.required_entities(item), into=pins)
        return pins.transfer()


def apply_recovered(
    state: ContainerState, item: RecoveredBatch | Damage, *, before_hold: Callable[[Extent], None]
) -> None:
    """Apply what was read back from a log; blocks, for what it is about is loaded before.

    Args:
        before_hold: given the runs that are held in tails, because their bytes are neither in tier 2 nor truncated: the
            frames are views of a whole log file, and must be copied or dropped.

    Raises:
        WireError: a record cannot be decoded; nothing was applied.
    """

    def hold(segment: Segment, extent: Extent) -> None:
        if (
            extent.end > max(segment.flushed_offset, segment.start_offset)
            and not segment.has_lost(extent)
            and (extent.offset >= segment.flushed_offset and segment.tail.has_room(extent))  # else it did not fit
        ):
            before_hold(extent)
            state.hold(segment, extent)

    items: list[BatchItem] = [item] if isinstance(item, Damage) else items_of(item)
    # Damage is not a batch itself. It follows what was salvaged from its batch: whole appends keep their places.
    sequence, wall_time_us = (state.sequence, 0) if isinstance(item, Damage) else (item.sequence, item.wall_time_us)
    with pin_items(state, items):
        apply_batch(state, items, sequence=sequence, wall_time_us=wall_time_us, bytes_sink=hold, may_block=True)
    state.idle.trim()


def items_of(batch: RecoveredBatch) -> list[BatchItem]:
    """Return the items of a batch that was read back.

    Raises:
        WireError: a record cannot be decoded.
    """
    return [run if run.kind == KIND_APPENDS else _record_of(run) for run in batch.runs]


def _record_of(run: AppendRun) -> m.Record | UnstorableRecord:
    _, message = decode(run.frames)
    if not isinstance(message, m.Record):
        raise CodecError(message.type.name, "type", "it is not a record of a decision")
    return checked_record(message)


def check_item(batch: CurrentBatch, item: m.Record | Damage | UnstorableRecord) -> None:
    """Raise UnfitRecordError unless a record can be applied; nothing is changed.

    Records that name several entities are checked for each of these once more, when they are applied.
    """
    if isinstance(item, UnstorableRecord):
        raise _unstorable(batch, item)
    if isinstance(item, m.Record) and (check := batch.state.kinds.records[type(item)].check) is not None:
        check(batch, item)


def _apply_run(batch: CurrentBatch, run: AppendRun, *, is_new: bool, bytes_sink: BytesSink) -> None:
    state = batch.state
    segment = state.segments.loaded(run.segment_id)
    if segment is None:
        if not is_new:
            return  # deleted before the checkpoint
        # Nothing is appended after the record of a delete: it is the record of the creation that was lost.
        batch.check_number("segments", run.segment_id)
        _check_numbers(batch, run)
        segment = state.add_lost_segment(run.segment_id)
    elif is_new:
        _check_run(batch, segment, run)
    end_events = segment.event_count + run.event_count if is_new else 0
    extent = Extent(run, sequence=batch.sequence, end_events=end_events, wall_time_us=batch.wall_time_us)
    if is_new:
        segment.index.add(run.offset, events=segment.event_count, wall_time_us=batch.wall_time_us)
        if run.offset > segment.length:
            # Damage took the bytes between.
            segment.damages.append(DamagedRange(segment.length, run.offset, "the log"))
        segment.length = max(segment.length, extent.end)
        segment.event_count = end_events
        if run.writer_number:
            advance(batch, segment, run)
        state.segments.changed(segment)
        if segment.stream_id:
            state.written_bytes[segment.stream_id] += extent.size
            state.written_events[segment.stream_id] += run.event_count
        state.wake(segment)
    bytes_sink(segment, extent)


def _check_run(batch: CurrentBatch, segment: Segment, run: AppendRun) -> None:
    """Raise unless a run can be added to a segment."""
    batch.check_room(segment, run.offset, size=run.payload_size, event_count=run.event_count)
    if segment.sealed:
        end = run.offset + run.payload_size
        raise batch.unfit("segments", segment.segment_id, "it is sealed, and accepts no append", end=end)
    _check_numbers(batch, run)


def _check_numbers(batch: CurrentBatch, run: AppendRun) -> None:
    """Raise unless the numbers of a run can be stored."""
    sequences = run.sequences or (0,)
    largest = max(run.offset + run.payload_size, run.writer_number, run.last_event_number, *sequences)
    if largest > OFFSET_MAX:
        raise batch.unfit("segments", run.segment_id, f"{largest} is above {OFFSET_MAX}")


def _unstorable(batch: CurrentBatch, item: UnstorableRecord) -> UnfitRecordError:
    """Return the error of a record that cannot be stored, about the first entity that it names."""
    kinds = batch.state.kinds
    reason = f"{item.field_name} has {item.value}, above {OFFSET_MAX}"
    named = m.required_entities(item.record)
    for kind in kinds:
        for number in kinds.named(kind.name, named):
            if isinstance(number, int) and number <= OFFSET_MAX:
                return batch.unfit(kind.name, number, reason)
    return batch.unfit(CONTAINER, 0, reason)


def _apply_damage(batch: CurrentBatch, damage: Damage) -> None:
    """Let segments be as long as they were, and refuse reads of what is lost of them."""
    state = batch.state
    state.scalars.clock_history = ClockHistory()  # a jump of the wall clock may be among what is lost
    for segment_id, offset, size in damage.runs:
        segment = state.segments.loaded(segment_id)
        if segment is not None and offset >= segment.flushed_offset and size:
            segment.length = max(segment.length, offset + size)
            state.add_damage(segment, offset, offset + size, f"{damage.place} at {damage.offset}")
