"""Registers, such as cursors and attributes: whether their values can have followed one another.

A value that was set once makes a group: the move that set it, and all that read it (see `turns`). A value that was set
several times says too little, and is left out.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .operations import NEVER, Operation
from .rules import Findings, Rule
from .transactions import Transaction, Transactions
from .turns import Group, clashes


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
    groups: dict[str, Group] = field(default_factory=dict)
    # Of each value, the moves on condition of it that were made.
    moved: defaultdict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))

    def check(self, others: list[Operation]) -> None:
        made = {_text(each.result["value"]) for each in others if "value" in each.result}
        for moves in self.moves.values():
            made |= {_text(each.operation.fields["expected"]) for each in moves if each.is_made and each.is_conditional}
        if FIRST not in self.moves:
            self.groups[FIRST] = Group(0, 0)
        for value, (move, *more) in self.moves.items():
            if not more and value != FIRST and (move.is_made or value in made):
                self.groups[value] = Group(move.answered, move.called, move.operation, move.operation)
                if move.is_made is False:
                    self._report(f"{value} was set, but not committed", [move.operation, *move.operations])
        for operation in others:
            if "value" in operation.result:
                self._use(_text(operation.result["value"]), operation.called, operation.answered, operation)
        for value, moves in self.moves.items():
            for move in moves:
                if move.is_conditional and (move.is_made or value in self.groups):
                    self._move_on(move)
        for value, other in clashes(self.groups):
            operations = [*self.groups[value].operations, *self.groups[other].operations]
            self._report(f"{value} and {other} at the same time", operations)
        for operation in others:
            if operation.call == "move":
                self._check_refusal(operation)

    def _use(self, value: str, called: int, answered: int, operation: Operation) -> Group | None:
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
        moved = self.moved[value]
        moved.append(move.operation)
        if len(moved) > 1:
            self._report(f"two moves from {value}", [*moved, *move.operations])
        after = self.groups.get(move.value)
        if after is not None and after is not group and after.ended < group.called:
            self._report(f"{value} was there after {move.value} had replaced it",
                         [after.ended_by, group.called_by, *move.operations])  # fmt: skip

    def _check_refusal(self, operation: Operation) -> None:
        value = _text(operation.fields.get("expected"))
        group = self.groups.get(value)
        if group is not None and group.surrounds(operation.called, operation.answered):
            self._report(f"refused, and {value} was there", [group.ended_by, operation, group.called_by])

    def _report(self, text: str, operations: Iterable[Operation | None]) -> None:
        self.findings.add(Rule.REGISTER, f"{self.name}: {text}", operations)
