"""Registers, such as cursors and attributes: whether their values can have followed one another.

A value that was set once makes a group: the move that set it, and all that read it. It was there at least from the
first answer of its group to the last call; two values that were there at least some time cannot have been so at the
same time (Gibbons and Korach, 1997). A value that was set several times says too little, and is left out.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .operations import NEVER, Operation
from .rules import Findings, Rule
from .transactions import Transaction, Transactions


@dataclass(slots=True)
class _Group:
    """All about one value.

    Attributes:
        ended: the first answer of the group.
        called: the last call of the group.
        ended_by, called_by: the operations of these.
        moved: the moves on condition of this value that were made.
    """

    ended: int = NEVER
    called: int = -1
    ended_by: Operation | None = None
    called_by: Operation | None = None
    moved: list[Operation] = field(default_factory=list)

    def add(self, called: int, answered: int, operation: Operation) -> None:
        if answered < self.ended:
            self.ended, self.ended_by = answered, operation
        if called > self.called:
            self.called, self.called_by = called, operation


@dataclass(frozen=True, slots=True)
class _Move:
    """One move, alone or in a transaction.

    Attributes:
        is_made: None if nobody was told.
    """

    operation: Operation
    value: str
    called: int
    answered: int
    is_made: bool | None
    transaction: Transaction | None = None

    @property
    def is_conditional(self) -> bool:
        """Whether it names the value before."""
        return "expected" in self.operation.fields

    @property
    def operations(self) -> list[Operation]:
        """The operations that asked for it."""
        return [self.operation, *(self.transaction.operations if self.transaction is not None else ())]


def reveals(operations: list[Operation], transactions: Transactions) -> list[tuple[int, Operation, Transaction]]:
    """Return the transactions that somebody was told, or can tell by a register, to be committed, and since when."""
    moves = _moves(operations, transactions)
    found = [(each.committed, each.committed_by, each) for each in transactions if each.committed_by is not None]
    for operation in operations:
        if operation.call == "look" and operation.answer == "value":
            those = moves[operation.fields["register"]].get(_text(operation.result["value"]), [])
            if len(those) == 1 and those[0].transaction is not None:
                found.append((operation.answered, operation, those[0].transaction))
    return found


def check_registers(operations: list[Operation], transactions: Transactions, findings: Findings) -> None:
    """Report values that no register can have had in turn."""
    moves = _moves(operations, transactions)
    others: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.call == "look" or (operation.call == "move" and operation.answer == "refused"):
            others[operation.fields["register"]].append(operation)
    for register in moves.keys() | others.keys():
        _Register(register, moves[register], findings).check(others[register])


def _moves(operations: list[Operation], transactions: Transactions) -> defaultdict[str, dict[str, list[_Move]]]:
    """Return all moves that were made or may have been, by register and value."""
    found: defaultdict[str, dict[str, list[_Move]]] = defaultdict(dict)

    def add(move: _Move) -> None:
        found[move.operation.fields["register"]].setdefault(move.value, []).append(move)

    for each in operations:
        if each.call == "move" and each.answer != "refused":
            is_made = True if each.answer == "moved" else None
            add(_Move(each, _text(each.fields["value"]), each.called, each.answered, is_made))
    for transaction in transactions:
        for each in transaction.advances:
            is_made = None
            if transaction.is_aborted or transaction.commit_called == NEVER:
                is_made = False
            elif transaction.shown < NEVER and each.answer == "done":
                is_made = True
            value, called, answered = _text(each.fields["value"]), transaction.commit_called, transaction.shown
            add(_Move(each, value, called, answered, is_made, transaction))
    return found


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


FIRST = _text(None)


@dataclass(slots=True)
class _Register:
    name: str
    moves: dict[str, list[_Move]]
    findings: Findings
    groups: dict[str, _Group] = field(default_factory=dict)

    def check(self, others: list[Operation]) -> None:
        made = {_text(each.result["value"]) for each in others if "value" in each.result}
        for moves in self.moves.values():
            made |= {_text(each.operation.fields["expected"]) for each in moves if each.is_made and each.is_conditional}
        if FIRST not in self.moves:
            self.groups[FIRST] = _Group(0, 0)
        for value, (move, *more) in self.moves.items():
            if not more and value != FIRST and (move.is_made or value in made):
                self.groups[value] = _Group(move.answered, move.called, move.operation, move.operation)
                if move.is_made is False:
                    self._report(f"{value} was set, but not committed", [move.operation, *move.operations])
        for operation in others:
            if "value" in operation.result:
                self._use(_text(operation.result["value"]), operation.called, operation.answered, operation)
        for value, moves in self.moves.items():
            for move in moves:
                if move.is_conditional and (move.is_made or value in self.groups):
                    self._move_on(move)
        self._check_zones()
        for operation in others:
            if operation.call == "move":
                self._check_refusal(operation)

    def _use(self, value: str, called: int, answered: int, operation: Operation) -> _Group | None:
        """Count an operation that needed a value."""
        group = self.groups.get(value)
        if group is not None:
            setter = self.moves[value][0] if value in self.moves else None
            if setter is not None and answered < setter.called:
                self._report(f"{value} was there before it was set", [operation, *setter.operations])
            group.add(called, answered, operation)
        elif value not in self.moves and value != FIRST:
            self._report(f"nobody set it to {value}", [operation])
        return group

    def _move_on(self, move: _Move) -> None:
        """Count a conditional move that was made: it needed the value before, and took it away."""
        value = _text(move.operation.fields["expected"])
        group = self._use(value, move.called, move.answered, move.operation)
        if group is None:
            return
        group.moved.append(move.operation)
        if len(group.moved) > 1:
            self._report(f"two moves from {value}", [*group.moved, *move.operations])
        after = self.groups.get(move.value)
        if after is not None and after is not group and after.ended < group.called:
            self._report(f"{value} was there after {move.value} had replaced it",
                         [after.ended_by, group.called_by, *move.operations])  # fmt: skip

    def _check_zones(self) -> None:
        forward = sorted(
            ((group.ended, group.called, value) for value, group in self.groups.items() if group.ended < group.called)
        )
        for (_, end, value), (start, _, other) in pairwise(forward):
            if start < end:
                one, two = self.groups[value], self.groups[other]
                self._report(f"{value} and {other} at the same time",
                             [one.ended_by, one.called_by, two.ended_by, two.called_by])  # fmt: skip
        for value, group in self.groups.items():
            index = bisect_left(forward, (group.called,))
            if group.called < group.ended and index and group.ended < forward[index - 1][1]:
                around = self.groups[forward[index - 1][2]]
                self._report(f"{value} within the time of {forward[index - 1][2]}",
                             [around.ended_by, around.called_by, group.ended_by, group.called_by])  # fmt: skip

    def _check_refusal(self, operation: Operation) -> None:
        value = _text(operation.fields.get("expected"))
        group = self.groups.get(value)
        if group is not None and group.ended < operation.called and operation.answered < group.called:
            self._report(f"refused, and {value} was there", [group.ended_by, operation, group.called_by])

    def _report(self, text: str, operations: Iterable[Operation | None]) -> None:
        self.findings.add(Rule.REGISTER, f"{self.name}: {text}", operations)
