"""Compares the admitted view of a container with its durable one."""

from collections.abc import Iterator
from typing import Any, Final

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.container_state import ContainerState

ADMITTED_ONLY: Final = (
    "admitted_writers",
    "admitted_producers",
    "admitted_transactions",
    "admitted_segments",
    "expiring_writers",
)
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


def _writers(state: ContainerState) -> Iterator[Pair]:
    for each in state.writers.present():
        of = f"of writer {each.writer_number} {each.writer_id}"
        yield f"epoch {of}", each.admitted_epoch, each.epoch
        yield f"nonces {of}", each.admitted_nonces, each.nonces
        for stream_id, on_stream in each.streams.items():
            admitted, durable = on_stream.admitted, on_stream.durable
            on = f"on stream {stream_id} {of}"
            yield f"is_plain {on}", admitted.is_plain, durable.is_plain
            yield f"refusal {on}", admitted.refusal, durable.refusal
            yield f"stored_through {on}", admitted.row.through, durable.row.through
            yield f"marks {on}", list(admitted.row.pieces()), list(durable.row.pieces())


def _transactions(state: ContainerState) -> Iterator[Pair]:
    for each in state.transactions.present():
        of = f"of transaction {each.number} {each.name}"
        yield f"state {of}", each.admitted_state, each.state
        yield f"digest {of}", each.admitted_digest, each.digest
        if not each.state.is_final:
            yield f"parts {of}", set(each.admitted_parts), set(each.parts)
            yield f"branches {of}", list(each.admitted_branches), list(each.branches)


def _pairs(state: ContainerState) -> Iterator[Pair]:
    yield from _segments(state)
    yield from _writers(state)
    yield from _transactions(state)
    for stream in state.streams.present():
        yield f"epoch of stream {stream.name}", stream.admitted_epoch, stream.epoch
        for segment_id in stream.segment_ids:
            segment = state.segments.peek(segment_id)
            if segment is not None and stream.is_empty(segment_id):
                # Not two views, but one fact in two entities.
                yield f"length of empty segment {segment_id}", segment.start_offset, segment.length
    for producer in state.producers.present():
        yield f"row of producer {producer.writer_id}", producer.admitted, producer.row
    yield "exclusive writers", state.exclusive_writers.admitted, state.exclusive_writers.durable
    yield "attribute bytes", state.admitted_attribute_bytes, state.attribute_bytes
    for name in ADMITTED_ONLY:
        yield name, dict(getattr(state, name)), {}


def differences(container: SegmentContainer) -> list[str]:
    """Return where the two views of a container differ; nothing must be in flight."""
    return [
        f"{name}: admitted {admitted!r}, durable {durable!r}"
        for name, admitted, durable in _pairs(container.state)
        if admitted != durable
    ]
