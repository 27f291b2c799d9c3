"""Filter of wake-ups: only a batch that changes a segment with readers at its tail wakes them."""

from collections.abc import Iterable
from typing import Final

from millrace.server.container.state.container_state import ContainerState
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun

_WAKES_NOBODY: Final = (
    m.IdsReserved,
    m.TransactionBegun,
    m.PartsAdded,
    m.TransactionPrepared,
    m.ProducerTaken,
    m.SequenceDescribed,
)
"""Records that change no segment that anybody reads."""


def wakes_somebody(state: ContainerState, items: Iterable[AppendRun | m.Record]) -> bool:
    """Return whether a batch, when it is applied, may wake those who wait at the tail of a segment."""
    if not state.watched:
        return False
    changed: list[int] = []
    for item in items:
        if isinstance(item, AppendRun):
            changed.append(item.segment_id)
        elif isinstance(item, m.TransactionCommitted):
            changed += [part.target_id for part in item.parts]
            changed += [segment_id for epoch in item.epochs for segment_id in epoch.sealed_ids]
        elif not isinstance(item, _WAKES_NOBODY):
            return True
    return any(is_watched(state, segment_id) for segment_id in changed)


def is_watched(state: ContainerState, segment_id: int) -> bool:
    """Return whether somebody waits at the tail of a segment."""
    segment = state.segments.peek(segment_id)
    return segment is not None and bool(segment.watchers)
