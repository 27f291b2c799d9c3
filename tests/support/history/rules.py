"""What a history can violate."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from .operations import Operation

REPORTED_PER_RULE_MAX: Final = 10
"""A server that breaks a rule often breaks it everywhere: the first ones say it."""


class Rule(Enum):
    """The promises, each by what breaks it."""

    LOST = "acknowledged, and not there"
    TWICE = "stored twice"
    REFUSED = "refused, and stored"
    UNWRITTEN = "there, and nobody wrote it"
    PLACE = "two events at one place"
    CONDITION = "a condition on the end that did not hold"
    EXCLUSIVE = "stored while another writer had the stream to itself"
    KEY_ORDER = "events of one key out of order"
    WRITER_ORDER = "events of one writer out of order"
    GAP = "stored, but not the event before it"
    SEQUENCE = "what a writer was told of its sequences is wrong"
    PREFIX = "a read that is no range of its segments"
    PREDECESSORS = "a segment was read before all that it replaced"
    STALE = "less was visible than before"
    EARLY = "visible before it was asked for"
    REAL_TIME = "placed before what was acknowledged earlier"
    CUTS = "two cuts of which neither is before the other"
    ATOMIC = "a part of a transaction"
    ORDER = "no order of all transactions, events and cuts explains what was seen"
    ABORTED = "written in a transaction or branch that was not committed, and visible"
    OUTCOME = "two outcomes of one transaction"
    PREPARED = "a prepared transaction that expired"
    REPEATED = "a sequence of a producer that is committed, or begun, after it was committed"
    ALREADY = "a sequence of a producer is told to be committed, and nobody had asked for it"
    FENCED = "runs of a producer that did not follow one another"
    HELD = "holders of a producer that did not follow one another, by resets"
    TAKEN_BACK = "told of a producer, and not so any more"
    REGISTER = "values that one register cannot have had in turn"
    TRUNCATED = "truncated, and there; or gone, and never truncated"


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule broken, and the operations that show it."""

    rule: Rule
    text: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"{self.rule.name}: {self.rule.value}: {self.text}", *(f"    {each}" for each in self.operations)]
        return "\n".join(lines)


class WrongHistoryError(AssertionError):
    """A history that no store can have that keeps its promises; it is kept in a file."""

    def __init__(self, violations: list[Violation], kept: Path) -> None:
        super().__init__("\n".join([*map(str, violations), f"the history is kept in {kept}"]))
        self.violations = violations
        self.kept = kept


@dataclass(slots=True)
class Findings:
    """The violations that were found, of each rule only the first ones."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[Rule] = field(default_factory=Counter)

    def add(self, rule: Rule, text: str, operations: Iterable[Operation | None]) -> None:
        """Report a violation."""
        self.counts[rule] += 1
        if self.counts[rule] <= REPORTED_PER_RULE_MAX:
            named = {each.id: each for each in operations if each is not None}
            self.violations.append(Violation(rule, text, tuple(named.values())))
