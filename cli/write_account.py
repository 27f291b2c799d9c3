"""Counts the stored lines of an input, and explains how to resume it."""

import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millrace.model.figures import count_text

from .input_lines import Lines


class LineOutcome(Protocol):
    """A future of a writer."""

    def done(self) -> bool:
        """Whether the outcome is known."""
        ...

    def cancelled(self) -> bool:
        """Whether it was cancelled, so that the outcome stays unknown."""
        ...

    def exception(self) -> BaseException | None:
        """Why the lines are not stored."""
        ...


@dataclass(slots=True)
class LineAccount:
    """Counts lines.

    Attributes:
        stored_through: number of the last line up to which all are stored; -1 if none is.
        stored_count: lines that are known to be stored.
        sent_count: lines that were passed to the writer.
        size_bytes: of those lines.
    """

    stored_through: int = -1
    stored_count: int = 0
    sent_count: int = 0
    size_bytes: int = 0
    _first_count: int = 0
    _pending: deque[tuple[Lines, LineOutcome]] = field(default_factory=deque)

    def sent(self, lines: Lines, outcome: LineOutcome) -> None:
        """Count lines that were passed to the writer."""
        self.sent_count += len(lines.lines)
        self.size_bytes += sum(map(len, lines.lines))
        self._pending.append((lines, outcome))
        self._settle()

    def close(self) -> None:
        """Count the final state: no further outcomes will arrive."""
        self._settle()
        self.stored_count += sum(len(lines.lines) for lines, outcome in self._pending if _is_stored(outcome))

    @property
    def doubtful_count(self) -> int:
        """Number of lines after `stored_through` that may be stored, or are."""
        return self.sent_count - self._first_count

    def _settle(self) -> None:
        while self._pending and _is_stored(self._pending[0][1]):
            lines, _ = self._pending.popleft()
            self.stored_through = lines.numbers[-1]
            self.stored_count += len(lines.lines)
            self._first_count += len(lines.lines)


def _is_stored(outcome: LineOutcome) -> bool:
    return outcome.done() and not outcome.cancelled() and outcome.exception() is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAdvice:
    """How to resume the same input.

    Attributes:
        arguments: of `millrace`.
        resumed_through: the last line stored by earlier runs under the writer id; -1 for none.
        header_number: of the line that names the columns, which is needed again; 0 if none does.
        is_typed: the lines are typed, so that they cannot be passed again.
    """

    arguments: Sequence[str]
    writer_id: str | None
    resumed_through: int = -1
    header_number: int = 0
    is_typed: bool = False

    def text(self, account: LineAccount, stream: str) -> str:
        """Return a text with the number of stored lines, and how to write the others."""
        stored = account.stored_count
        said = f"{count_text(stored, 'line')} {'is' if stored == 1 else 'are'} stored in {stream}"
        if self.resumed_through > 0:
            said += f", after line {self.resumed_through:,} of earlier runs"
        command = shlex.join(["millrace", *self.arguments])
        if self.writer_id is not None:
            return f"{said}; to resume, give the whole input again, and stored lines are skipped: {command} < FILE"
        if account.doubtful_count:
            doubtful = count_text(account.doubtful_count, "line")
            said += f"; up to {doubtful} after line {max(account.stored_through, 0):,} may be, too"
        if self.is_typed:
            return said
        start = account.stored_through + 1
        if start <= 1:
            return f"{said}; to resume, give the whole input again: {command} < FILE"
        rest = f"tail -n +{start} FILE"
        if self.header_number:
            rest = f"{{ head -n {self.header_number} FILE; {rest}; }}"
        return f"{said}; to resume after line {account.stored_through:,}: {rest} | {command}"
