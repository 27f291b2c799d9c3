"""Compares the admitted view of a container with its durable one."""

from collections.abc import Iterator
from typing import Any, Final

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.apply import move_rows
from millrace.server.container.state.container_state import ContainerState, StateView
from millrace.server.container.state.current_batch import CurrentBatch
from millrace.server.container.state.sequences import SequenceView
from millrace.server.container.views import AdmittedView, MapView

ADMITTED_ONLY: Final = ("admitted_segments",)
"""What a record in flight will create or expire: empty while none is."""

Pair = tuple[str, Any, Any]
"""What it is, and how the admitted and the durable view have it."""


def _segments(state: ContainerState) -> Iterator[Pair]:
    for each in state.segments.present():
        if each.deleted:
            continue
        of = f"of segment {each.segment_id}"
        yield f"length {of}", each.next_offset, each.length
        yield f"event count {of}", each.next_event_count, each.event_count
        yield f"attribute bytes {of}", each.admitted_attribute_bytes, each.attribute_bytes
        yield f"seal {of}", each.closing or each.sealed, each.sealed
        yield f"end {of}", each.leaving, each.leaving and each.link is not None
        for number, progress in each.writers.items():
            yield f"progress of writer {number} {of}", progress.admitted, progress.durable


def _transactions(state: ContainerState) -> Iterator[Pair]:
    for each in state.transactions.present():
        of = f"of transaction {each.number} {each.name}"
        if not each.state.is_final:
            yield f"parts {of}", set(each.admitted_parts), set(each.parts)


def _pairs(state: ContainerState) -> Iterator[Pair]:
    yield from _segments(state)
    yield from _transactions(state)
    for stream in state.streams.present():
        yield f"epoch of stream {stream.name}", stream.admitted_epoch, stream.epoch
        for segment_id in stream.segment_ids:
            segment = state.segments.peek(segment_id)
            if segment is not None and stream.is_empty(segment_id):
                # Not two views, but one fact in two entities.
                yield f"length of empty segment {segment_id}", segment.start_offset, segment.length
    yield "attribute bytes", state.admitted_attribute_bytes, state.attribute_bytes
    for name in ADMITTED_ONLY:
        yield name, dict(getattr(state, name)), {}


class FoldedRows:
    """The durable rows of a kind, and what records that are not durable yet make of them."""

    def __init__(self, durable: Any) -> None:
        self._durable = durable
        self.changed: dict[int, Any] = {}

    def get(self, number: int) -> Any:
        return self.changed[number] if number in self.changed else self._durable.get(number)

    def find(self, name: str) -> Any:
        if not name:
            return None
        found = [row for row in self.changed.values() if row is not None and row.writer_id == name]
        before = self._durable.find(name)
        return found[-1] if found else None if before is None or before.number in self.changed else before

    def put(self, number: int, row: Any) -> None:
        self.changed[number] = row

    def __len__(self) -> int:
        raise NotImplementedError


class FoldedSequences:
    """How far writers are on streams, and what records that are not durable yet make of it."""

    def __init__(self, state: ContainerState) -> None:
        self._state = state
        self.changed: dict[tuple[int, int], SequenceView] = {}

    def __call__(self, writer_number: int, stream_id: int) -> SequenceView:
        found = self.changed.get((writer_number, stream_id))
        if found is None:
            writer = self._state.writers.peek(writer_number)
            before = None if writer is None else writer.streams.get(stream_id)
            found = SequenceView() if before is None else before.durable.copy()
            self.changed[writer_number, stream_id] = found
        return found


def _folded(container: SegmentContainer) -> Iterator[Pair]:
    """Fold what is in flight over the durable rows: the admitted rows are the same."""
    state = container.state
    rows = {name: FoldedRows(view) for name, view in state.durable.rows.items()}
    exclusive_writers, sequences = MapView(state.durable.exclusive_writers), FoldedSequences(state)
    view = StateView(rows=rows, exclusive_writers=exclusive_writers, sequences=sequences)
    batch = CurrentBatch(state, view, sequence=state.sequence + 1, wall_time_us=0)
    records = container.in_flight.records()
    for batch.item in records:
        move_rows(batch)
    yield "exclusive writers", dict(state.admitted.exclusive_writers), dict(exclusive_writers)
    for kind, folded in rows.items():
        admitted = state.admitted.rows[kind]
        assert isinstance(admitted, AdmittedView)
        for each in [*state.caches[kind].present(), *admitted.queued.values()]:
            of = f"row {each.number} {each.name} of {kind}"
            yield of, each.admitted, folded.changed.pop(each.number, each.durable)
        yield f"rows of {kind} that are not in memory", {}, folded.changed
    if len(records) == len(container.in_flight):  # else appends move what is admitted, too
        yield from _sequences(state, sequences)


def _sequences(state: ContainerState, folded: FoldedSequences) -> Iterator[Pair]:
    """Compare how far writers are that neither have expired nor are about to."""
    for each in [*state.writers.present(), *state.admitted_writers.queued.values()]:
        if each.admitted is not None and not each.admitted.expired_us:
            for stream_id, progress in each.streams.items():
                of = f"sequences on stream {stream_id} of writer {each.number} {each.name}"
                views = progress.admitted, folded(each.number, stream_id)
                admitted, durable = ((view.row, view.is_plain, view.refusal) for view in views)
                yield of, admitted, durable


def differences(container: SegmentContainer) -> list[str]:
    """Return where the admitted view of a container is not what it should be.

    Of kinds whose rows are moved by steps, it is the fold of the durable view and all that is in flight. Of others it
    is the durable view once nothing is in flight.
    """
    pairs = list(_folded(container))
    if not len(container.in_flight):
        pairs += _pairs(container.state)
    return [
        f"{name}: admitted {admitted!r}, durable {durable!r}"
        for name, admitted, durable in pairs
        if admitted != durable
    ]
