"""The operations of a history, put together from its lines."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

NEVER: Final = 1 << 62
"""The time of what did not happen."""
SHOWN_SIZE_MAX: Final = 300

Took = tuple[str, tuple[int, int], str]
"""Segment, place in it, and event."""


@dataclass(slots=True)
class Operation:
    """One operation. Times are those of the lines in the merged history, counted from 1.

    Attributes:
        answered: NEVER without an answer.
        answer: None without one.
        took: what a read was given, each time at the time of its line.
    """

    id: str
    client: str
    call: str
    fields: dict[str, Any]
    called: int
    answered: int = NEVER
    answer: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    took: list[tuple[int, list[Took]]] = field(default_factory=list)

    def __str__(self) -> str:
        until = "..." if self.answer is None else str(self.answered)
        asked, told = (_short(each) for each in (self.fields, self.result))
        taken = f", {sum(len(events) for _, events in self.took)} events" if self.took else ""
        return (
            f"[{self.called}, {until}] {self.id} of {self.client}: {self.call} {asked} -> {self.answer} {told}{taken}"
        )


def parse(lines: Iterable[str]) -> list[Operation]:
    """Return the operations by the time of their calls.

    Raises:
        ValueError: a line is none of a history.
    """
    records = [json.loads(line) for line in lines]
    # At one instant calls come before answers: so the two overlap, which claims less.
    records.sort(key=lambda record: (record["at"], "call" not in record))
    operations: dict[str, Operation] = {}
    for time, record in enumerate(records, 1):
        del record["at"]
        operation_id = record.pop("id")
        if "call" in record:
            if operation_id in operations:
                raise ValueError(f"{operation_id} is called twice")
            operations[operation_id] = Operation(
                operation_id, record.pop("client"), record.pop("call"), record, called=time
            )
            continue
        operation = operations.get(operation_id)
        if operation is None or operation.answer is not None:
            raise ValueError(f"{operation_id} is answered before its call, or twice: {record}")
        if "took" in record:
            events = [(segment, (offset, index), event) for segment, offset, index, event in record["took"]]
            operation.took.append((time, events))
        else:
            operation.answer = record.pop("answer")
            operation.answered, operation.result = time, record
    return list(operations.values())


def _short(fields: dict[str, Any]) -> str:
    text = json.dumps(fields)
    return text if len(text) <= SHOWN_SIZE_MAX else f"{text[:SHOWN_SIZE_MAX]}..."
