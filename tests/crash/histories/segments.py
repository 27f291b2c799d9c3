"""What a segment is, in a few lines: the specification that histories of requests to one name are checked by."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from .linearizability import Operation, is_linearizable

UNKNOWN_ID = -1
"""Of a segment whose creation had no answer."""


class SegmentState(NamedTuple):
    """The segment of a name; without one `segment_id` is 0."""

    segment_id: int = 0
    content: bytes = b""
    is_sealed: bool = False
    attribute: bytes | None = None


ABSENT = SegmentState()


class SegmentSpecification:
    """The calls, and which answers are right.

    create                       created id | exists
    find                         found id length is_sealed | missing
    append id data expected      stored offset | moved length | sealed | missing      (expected -1: no condition)
    set id expected value        set | differs | missing                              (None: absent)
    get id                       value value | missing
    seal id                      done | missing
    delete id                    done | missing
    read id                      content bytes length | missing                       (bytes: the beginning)

    Args:
        found_ids: of the segments that were found, but whose creation had no answer.
    """

    def __init__(self, found_ids: Iterable[int]) -> None:
        self._found_ids = frozenset(found_ids)

    def step(self, state: SegmentState, call: tuple[Any, ...], answer: tuple[Any, ...] | None) -> SegmentState | None:
        """Return the state after a call that got this answer, None if it cannot get it."""
        kind, *arguments = call
        if kind == "create":
            return self._create(state, answer)
        if kind == "find":
            return self._find(state, answer)
        state = self._named(state, arguments[0])
        if arguments[0] != state.segment_id:
            return state if answer in (None, ("missing",)) else None
        expected, after = _outcome(state, kind, arguments[1:], answer)
        return after if answer in (None, expected) else None

    def _create(self, state: SegmentState, answer: tuple[Any, ...] | None) -> SegmentState | None:
        if state.segment_id:
            return state if answer in (None, ("exists",)) else None
        if answer is None:
            return SegmentState(UNKNOWN_ID)
        return SegmentState(answer[1]) if answer[0] == "created" else None

    def _find(self, state: SegmentState, answer: tuple[Any, ...] | None) -> SegmentState | None:
        if answer is None:
            return state
        if answer == ("missing",):
            return None if state.segment_id else state
        state = self._named(state, answer[1])
        return state if answer == ("found", state.segment_id, len(state.content), state.is_sealed) else None

    def _named(self, state: SegmentState, segment_id: int) -> SegmentState:
        """Return the state, in which a segment of unknown id has the id that is asked for, if it can have it."""
        if state.segment_id == UNKNOWN_ID and segment_id in self._found_ids:
            return state._replace(segment_id=segment_id)
        return state


def _outcome(
    state: SegmentState, kind: str, arguments: list[Any], answer: tuple[Any, ...] | None
) -> tuple[tuple[Any, ...], SegmentState]:
    """Return the one right answer of a call to the segment that is there, and the state after it."""
    length = len(state.content)
    match kind, arguments:
        case "append", [data, expected]:
            if state.is_sealed:
                return ("sealed",), state
            if expected not in (-1, length):
                return ("moved", length), state
            return ("stored", length), state._replace(content=state.content + data)
        case "set", [expected, value]:
            if state.attribute != expected:
                return ("differs",), state
            return ("set",), state._replace(attribute=value)
        case "get", []:
            return ("value", state.attribute), state
        case "seal", []:
            return ("done",), state._replace(is_sealed=True)
        case "delete", []:
            return ("done",), ABSENT
        case "read", []:
            # A read may return less than there is.
            size = len(answer[1]) if answer is not None and answer[0] == "content" else 0
            return ("content", state.content[:size], length), state
    raise AssertionError(f"no such call: {kind}")


def is_right(history: list[Operation]) -> bool:
    """Return whether the history of one name is linearizable."""
    ids: dict[str, set[int]] = {"created": set(), "found": set()}
    for operation in history:
        if operation.answer and operation.answer[0] in ids:
            ids[operation.answer[0]].add(operation.answer[1])
    return is_linearizable(history, ABSENT, SegmentSpecification(ids["found"] - ids["created"]).step)
