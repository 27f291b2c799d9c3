"""Recording of a history, by one process."""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self


class Recorder:
    """Records what operations were called and what they were answered: in memory or, with a path, in a file.

    Each line of a file is with the operating system before the method returns: a process that is killed loses none.

    Args:
        name: begins the ids of the operations, and must be that of no other recorder of the history.
        path: of a file that is appended to.
        now_ns: the clock of `at`.
    """

    def __init__(
        self, name: str = "h", path: Path | None = None, *, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.lines: list[str] = []
        self._name = name
        self._now_ns = now_ns
        self._count = 0
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def call(self, client: str, call: str, **fields: Any) -> str:
        """Record that an operation is about to be asked for; return its id."""
        self._count += 1
        operation_id = f"{self._name}.{self._count}"
        self._record(id=operation_id, call=call, client=client, **fields)
        return operation_id

    def took(self, operation_id: str, events: Sequence[tuple[str, int, int, str]]) -> None:
        """Record that a read was given events, each with its segment, offset and index."""
        self._record(id=operation_id, took=events)

    def answer(self, operation_id: str, answer: str, **fields: Any) -> None:
        """Record what an operation was answered."""
        self._record(id=operation_id, answer=answer, **fields)

    def copy(self) -> Self:
        """Return a recorder in memory that has recorded the same; the two continue apart."""
        copied = type(self)(self._name, now_ns=self._now_ns)
        copied.lines, copied._count = self.lines.copy(), self._count
        return copied

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _record(self, **fields: Any) -> None:
        line = json.dumps({"at": self._now_ns(), **fields}, separators=(",", ":"))
        if self._file is None:
            self.lines.append(line)
        else:
            os.write(self._file, line.encode() + b"\n")


def read_lines(path: Path) -> Iterable[str]:
    """Return the lines of a file, or of all files of a folder, without the last one of a file if it is torn."""
    paths = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    for each in paths:
        with each.open() as file:
            yield from (line for line in file if line.endswith("\n"))
