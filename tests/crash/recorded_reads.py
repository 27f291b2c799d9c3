"""Reads and lineages of the client, as a history records them."""

from collections.abc import Iterable
from typing import Any, Final

from millrace.model.cut import StreamCut
from millrace.model.lineage import Epoch, Lineage, parts_of_history
from tests.support.history import Recorder

TAKEN_AT_ONCE: Final = 100
"""Events in a line: that a read is said to have been given them a little late claims less, and nothing wrong."""


class RecordedRead:
    """One reader, from where it begins to where it stops, or is killed.

    Args:
        start: None for the head.
    """

    def __init__(self, recorder: Recorder, client: str, stream: str, *, start: StreamCut | None = None) -> None:
        self._recorder = recorder
        fields = {} if start is None else {"from": recorded_cut(start)}
        self._call = recorder.call(client, "read", stream=stream, **fields)
        self._taken: list[tuple[str, int, int, str]] = []

    def take(self, event: str, *, segment: int, offset: int, index: int) -> None:
        """Record that it was given an event."""
        self._taken.append((str(segment), offset, index, event))
        if len(self._taken) >= TAKEN_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Record what is not yet."""
        if self._taken:
            self._recorder.took(self._call, self._taken)
            self._taken.clear()

    def end(self, cut: StreamCut, *, is_tail: bool = False) -> None:
        """Record where it stopped; `is_tail` says that there was nothing after it, and will be nothing."""
        self.flush()
        more = {"tail": recorded_cut(cut)} if is_tail else {}
        self._recorder.answer(self._call, "read", to=recorded_cut(cut), **more)


def recorded_cut(cut: StreamCut) -> dict[str, Any]:
    """Return a cut as it is recorded."""
    return {str(segment_id): list(position) for segment_id, position in cut.positions}


def record_lineage(recorder: Recorder, stream: str, epochs: Iterable[Epoch]) -> None:
    """Record which segments of a stream replaced which."""
    lineage = Lineage(parts_of_history(epochs))
    after: dict[str, list[str]] = {}
    for segment_id in lineage.by_id:
        replacement = lineage.replacement(segment_id)
        for successor in replacement.successors if replacement is not None else ():
            after.setdefault(str(successor.segment_id), []).append(str(segment_id))
    recorder.answer(recorder.call("lineage", "history", stream=stream), "history", after=after)
