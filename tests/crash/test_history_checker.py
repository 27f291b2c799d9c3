"""The checker of histories accepts what can have been, and rejects each small change that makes it impossible."""

from dataclasses import replace
from typing import Any

from tests.crash.histories.linearizability import Operation
from tests.crash.histories.segments import is_right
from tests.support.tables import table


def history(*operations: tuple[int, int, tuple[Any, ...], tuple[Any, ...] | None]) -> list[Operation]:
    """Return operations given as when they were called and answered, the call, and the answer."""
    return [
        Operation(client, call, answer, called, answered)
        for client, (called, answered, call, answer) in enumerate(operations)
    ]


CREATED = (1, 2, ("create",), ("created", 7))
STORED = (3, 4, ("append", 7, b"ab", 0), ("stored", 0))

RIGHT: dict[str, list[Any]] = {
    "nothing": [],
    "one after the other": [
        CREATED,
        STORED,
        (5, 6, ("append", 7, b"c", 0), ("moved", 2)),
        (7, 8, ("read", 7), ("content", b"ab", 2)),
        (9, 10, ("find",), ("found", 7, 2, False)),
        (11, 12, ("create",), ("exists",)),
        (13, 14, ("set", 7, None, b"1"), ("set",)),
        (15, 16, ("set", 7, None, b"2"), ("differs",)),
        (17, 18, ("get", 7), ("value", b"1")),
        (19, 20, ("seal", 7), ("done",)),
        (21, 22, ("append", 7, b"d", -1), ("sealed",)),
        (23, 24, ("delete", 7), ("done",)),
        (25, 26, ("append", 7, b"e", -1), ("missing",)),
        (27, 28, ("delete", 7), ("missing",)),
        (29, 30, ("find",), ("missing",)),
        (31, 32, ("create",), ("created", 8)),
        (33, 34, ("read", 8), ("content", b"", 0)),
    ],
    "two at the same time, in either order": [
        CREATED,
        (3, 6, ("append", 7, b"ab", 0), ("moved", 3)),
        (4, 5, ("append", 7, b"xyz", 0), ("stored", 0)),
    ],
    "an append without an answer that happened": [
        CREATED,
        (3, 0, ("append", 7, b"ab", -1), None),
        (5, 6, ("append", 7, b"c", 0), ("moved", 2)),
    ],
    "an append without an answer that never happened": [
        CREATED,
        (3, 0, ("append", 7, b"ab", -1), None),
        (5, 6, ("append", 7, b"c", 0), ("stored", 0)),
    ],
    "an append without an answer that happened late": [
        CREATED,
        (3, 0, ("append", 7, b"ab", -1), None),
        (5, 6, ("append", 7, b"c", 0), ("stored", 0)),
        (7, 8, ("read", 7), ("content", b"cab", 3)),
    ],
    "a creation without an answer, found later": [
        (1, 0, ("create",), None),
        (3, 4, ("find",), ("found", 9, 0, False)),
        (5, 6, ("append", 9, b"a", 0), ("stored", 0)),
    ],
    "a read of a part": [CREATED, STORED, (5, 6, ("read", 7), ("content", b"a", 2))],
}

WRONG: dict[str, list[Any]] = {
    "refused for bytes that were lost": [
        CREATED,
        (3, 0, ("append", 7, b"ab", -1), None),
        (4, 5, ("append", 7, b"c", 0), ("moved", 2)),
        (6, 7, ("find",), ("found", 7, 0, False)),
    ],
    "refused for an attribute that was never set": [
        CREATED,
        (3, 0, ("set", 7, None, b"1"), None),
        (4, 5, ("set", 7, None, b"2"), ("differs",)),
        (6, 7, ("get", 7), ("value", None)),
    ],
    "refused for a creation that was lost": [
        (1, 0, ("create",), None),
        (2, 3, ("create",), ("exists",)),
        (4, 5, ("find",), ("missing",)),
    ],
    "refused for a seal that was lost": [
        CREATED,
        (3, 0, ("seal", 7), None),
        (4, 5, ("append", 7, b"a", -1), ("sealed",)),
        (6, 7, ("append", 7, b"a", -1), ("stored", 0)),
    ],
    "refused as sealed where nobody seals": [CREATED, (3, 4, ("append", 7, b"a", -1), ("sealed",))],
    "deleted twice": [CREATED, (3, 5, ("delete", 7), ("done",)), (4, 6, ("delete", 7), ("done",))],
    "created twice": [CREATED, (1, 4, ("create",), ("created", 8))],
    "two winners of one offset": [
        CREATED,
        (3, 6, ("append", 7, b"a", 0), ("stored", 0)),
        (4, 5, ("append", 7, b"b", 0), ("stored", 0)),
    ],
    "an acknowledged append that is gone": [CREATED, STORED, (5, 6, ("read", 7), ("content", b"", 0))],
    "other bytes": [CREATED, STORED, (5, 6, ("read", 7), ("content", b"aa", 2))],
    "a length that never was": [CREATED, STORED, (5, 6, ("append", 7, b"c", 0), ("moved", 3))],
    "an answer from before the call": [CREATED, STORED, (5, 6, ("find",), ("found", 7, 0, False))],
    "a state that goes back": [
        CREATED,
        (3, 8, ("append", 7, b"ab", -1), ("stored", 0)),
        (4, 5, ("find",), ("found", 7, 2, False)),
        (6, 7, ("find",), ("found", 7, 0, False)),
    ],
}


@table("operations", RIGHT.values(), ids=list(RIGHT))
def test_what_can_have_been_is_accepted(operations: list[Any]) -> None:
    assert is_right(history(*operations))


@table("operations", WRONG.values(), ids=list(WRONG))
def test_what_cannot_have_been_is_rejected(operations: list[Any]) -> None:
    assert not is_right(history(*operations))


OTHER_ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "create": [("created", 99), ("exists",)],
    "find": [("found", 7, 1, False), ("found", 7, 2, True), ("found", 99, 2, False), ("missing",)],
    "append": [("stored", 1), ("moved", 1), ("sealed",), ("missing",)],
    "set": [("set",), ("differs",), ("missing",)],
    "get": [("value", b"2"), ("value", None), ("missing",)],
    "seal": [("missing",)],
    "delete": [("done",), ("missing",)],
    "read": [("content", b"b", 2), ("content", b"ab", 3), ("missing",)],
}


def test_any_other_answer_of_any_operation_is_rejected() -> None:
    """In a history without overlaps each call has one right answer: the checker must accept no other."""
    right = history(*RIGHT["one after the other"])
    tried = 0
    for place, operation in enumerate(right):
        for answer in OTHER_ANSWERS[operation.call[0]]:
            if answer == operation.answer or (operation.call == ("create",) and answer[0] == operation.answer[0]):  # type: ignore[index]
                continue
            wrong = [*right]
            wrong[place] = replace(operation, answer=answer)
            assert not is_right(wrong), f"{operation}: {answer}"
            tried += 1
    assert tried > 25
