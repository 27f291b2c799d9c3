"""Histories of requests to one name, as lines for the checker of long histories: two checkers, one verdict.

The search over all orders knows more, such as creations and deletions, and takes a time that grows with all orders; the
checker takes a time that grows with the history. Of what both know, neither may find what the other cannot have.
"""

import json
from collections.abc import Iterable
from typing import Any

from .linearizability import Operation

TOKEN_SIZE = len(b"<0000>")
"""Bytes of each append."""


def lines_of(name: str, operations: Iterable[Operation]) -> list[str]:
    """Return appends, reads, lengths and the attribute, of each segment that had the name."""
    lines: list[str] = []
    for number, operation in enumerate(operations):
        recorded = _recorded(name, operation)
        if recorded is None:
            continue
        asked, told = recorded
        operation_id = f"{name}.{number}"
        call = {"at": operation.called, "id": operation_id, "client": str(operation.client), **asked}
        lines.append(json.dumps(call))
        if (took := told.pop("took", None)) is not None:
            lines.append(json.dumps({"at": operation.answered, "id": operation_id, "took": took}))
        if told:
            lines.append(json.dumps({"at": operation.answered, "id": operation_id, **told}))
    return lines


def _recorded(name: str, operation: Operation) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return what was asked for and told; None if the checker does not know it."""
    match operation.call, operation.answer:
        case ("append", segment_id, data, expected), answer:
            asked: dict[str, Any] = {"call": "write", "stream": f"{name}/{segment_id}", "events": [data.decode()]}
            if expected != -1:
                asked |= {"segment": "0", "expected": expected}
            return asked, _append_told(answer)
        case ("read", segment_id), ("content", data, length):
            took = [
                ["0", offset, 0, data[offset : offset + TOKEN_SIZE].decode()]
                for offset in range(0, len(data) - TOKEN_SIZE + 1, TOKEN_SIZE)
            ]
            end = {"0": [len(data) // TOKEN_SIZE * TOKEN_SIZE, 0]}
            told: dict[str, Any] = {"took": took, "answer": "read", "to": end, "tail": {"0": [length, 0]}}
            return {"call": "read", "stream": f"{name}/{segment_id}"}, told
        case ("find",), ("found", segment_id, length, _):
            stream = f"{name}/{segment_id}"
            return {"call": "cut", "streams": [stream]}, {"answer": "cut", "cuts": {stream: {"0": [length, 0]}}}
        case ("get", segment_id), ("value", value):
            told = {"answer": "value", "value": _text(value)}
            return {"call": "look", "register": f"{name}/{segment_id}"}, told
        case ("set", segment_id, expected, value), (None | ("set",) | ("differs",)) as answer:
            asked = {"call": "move", "register": f"{name}/{segment_id}", "value": _text(value)}
            return asked | {"expected": _text(expected)}, _set_told(answer)
    return None


def _append_told(answer: tuple[Any, ...] | None) -> dict[str, Any]:
    match answer:
        case ("stored", offset):
            return {"answer": "stored", "places": [["0", offset, 0]]}
        case ("moved", length):
            return {"answer": "refused", "segment": "0", "length": length}
        case ("sealed",) | ("missing",):
            return {"answer": "refused"}
    return {}


def _set_told(answer: tuple[Any, ...] | None) -> dict[str, Any]:
    return {} if answer is None else {"answer": "moved" if answer == ("set",) else "refused"}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
