"""The transactions of a history: what was told of each, and whether it has one outcome."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from .operations import NEVER, Operation
from .rules import Findings, Rule

if TYPE_CHECKING:
    from .streams import Event

STATES: Final = {
    "begun": "open",
    "joined": "open",
    "open": "open",
    "prepared": "prepared",
    "committed": "committed",
    "already": "committed",
    "aborted": "aborted",
    "repeated": "aborted",
    "fenced": "aborted",
    "held": "aborted",
}
"""What each answer says of the transaction that it is about."""
BY_PRODUCER: Final = {"repeated", "fenced", "held"}
"""Answers that refuse a transaction for its producer; of a beginning they are about none."""
COMMITS_NOTHING: Final = {"refused", "aborted", *BY_PRODUCER}
"""Answers to a commit that was not carried out."""
SHOWN_MAX: Final = 3
RANKS: Final = {"open": 0, "prepared": 1, "committed": 2, "aborted": 2}
ABOUT_ONE: Final = {"begin", "prepare", "commit", "abort", "outcome"}


class Claim(NamedTuple):
    """As which producer a transaction is committed."""

    writer: str
    holder: str
    run: str
    sequence: int


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction; a name that is used again is another one.

    Attributes:
        commit_called: when anybody first asked to commit it.
        committed: when anybody was first told that it is; NEVER if nobody was.
        shown: when anything first showed that it is committed.
        commits, prepares, aborts: those who asked, first those that named the number.
        told: answers that say its state.
        advances: positions that move with it.
        claim, begun_by: its producer, if it has one, and the first who began it as that.
    """

    number: int
    name: str | None = None
    events: list["Event"] = field(default_factory=list)
    commits: list[Operation] = field(default_factory=list)
    prepares: list[Operation] = field(default_factory=list)
    aborts: list[Operation] = field(default_factory=list)
    advances: list[Operation] = field(default_factory=list)
    told: list[tuple[str, Operation]] = field(default_factory=list)
    commit_called: int = NEVER
    committed: int = NEVER
    shown: int = NEVER
    committed_by: Operation | None = None
    is_aborted: bool = False
    claim: Claim | None = None
    begun_by: Operation | None = None

    @property
    def operations(self) -> list[Operation]:
        """The operations that decided, or may have."""
        named = [self.committed_by, *self.commits[:SHOWN_MAX], *self.aborts[:SHOWN_MAX]]
        return [each for each in named if each is not None]

    def is_listed(self, branch: str) -> bool:
        """Return whether any commit, or the preparation, takes this branch."""
        asked = [*self.commits, *self.prepares]
        return any("branches" not in each.fields or branch in each.fields["branches"] for each in asked)

    def needs(self, branch: str) -> bool:
        """Return whether each commit that can have been the one takes this branch."""
        firsts = [each for each in self.commits if each.answer == "committed"]
        possible = firsts or [each for each in self.commits if each.answer not in {*COMMITS_NOTHING, "already"}]
        possible = possible or self.commits
        asked = possible if not self.prepares else [*possible, *self.prepares]
        return all("branches" not in each.fields or branch in each.fields["branches"] for each in asked)


class Transactions:
    """All transactions of a history."""

    def __init__(self, operations: list[Operation]) -> None:
        self._by_number: dict[int, Transaction] = {}
        self._by_name: defaultdict[str, list[Transaction]] = defaultdict(list)
        for operation in operations:
            if operation.call == "begin" and "txn" in operation.result:
                self._begin(operation)
        for operation in operations:
            if operation.call in ABOUT_ONE:
                self._ask(operation)
            elif operation.call == "advance" and operation.answer != "refused":
                self.numbered(operation.fields["txn"]).advances.append(operation)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._by_number.values())

    def numbered(self, number: int) -> Transaction:
        """Return the transaction of a number."""
        return self._by_number.setdefault(number, Transaction(number))

    def check(self, findings: Findings) -> None:
        """Report whatever cannot be the story of one transaction."""
        for transaction in self:
            _check_one(transaction, findings)
        for name, transactions in self._by_name.items():
            committed = [each for each in transactions if each.committed < NEVER]
            if len(committed) > 1:
                operations = [each.committed_by for each in committed]
                findings.add(Rule.OUTCOME, f"{name} is committed as {[each.number for each in committed]}", operations)

    def _begin(self, operation: Operation) -> None:
        transaction = self.numbered(operation.result["txn"])
        if (name := operation.fields.get("name")) is not None and transaction.name is None:
            transaction.name = name
            self._by_name[name].append(transaction)
        if "producer" in operation.fields and transaction.claim is None:
            transaction.claim, transaction.begun_by = claim_of(operation), operation

    def _ask(self, operation: Operation) -> None:
        """Count a request for each transaction that it can have been about, and its answer for that which it was."""
        if operation.call == "begin" and operation.answer in BY_PRODUCER:
            return
        number: int | None = operation.result.get("txn", operation.fields.get("txn"))
        if number is not None:
            meant = [self.numbered(number)]
        else:
            meant = self._by_name.get(operation.fields.get("name", ""), [])
        for transaction in meant:
            match operation.call:
                case "commit":
                    transaction.commits.append(operation)
                    if operation.answer not in COMMITS_NOTHING:
                        transaction.commit_called = min(transaction.commit_called, operation.called)
                case "prepare":
                    transaction.prepares.append(operation)
                case "abort":
                    transaction.aborts.append(operation)
        state = STATES.get(operation.answer or "")
        if state is None or len(meant) != 1:
            return
        transaction = meant[0]
        transaction.told.append((state, operation))
        if state == "committed" and operation.answered < transaction.committed:
            transaction.committed, transaction.committed_by = operation.answered, operation
        if state == "aborted":
            transaction.is_aborted = True


def claim_of(operation: Operation) -> Claim:
    """Return as which producer a transaction is begun."""
    return Claim(*operation.fields["producer"])


def _check_one(transaction: Transaction, findings: Findings) -> None:
    what = f"transaction {transaction.number}"
    told = sorted(transaction.told, key=lambda each: each[1].answered)
    finals: dict[str, Operation] = {}
    for state, operation in told:
        if RANKS[state] == 2:
            finals.setdefault(state, operation)
    if len(finals) > 1:
        findings.add(Rule.OUTCOME, f"{what} is told to be committed and aborted", finals.values())
    firsts = [each for each in transaction.commits if each.answer == "committed"]
    if len(firsts) > 1:
        findings.add(Rule.OUTCOME, f"{what} is committed {len(firsts)} times", firsts)
    if transaction.committed < transaction.commit_called:
        findings.add(Rule.OUTCOME, f"{what} is committed, and nobody had asked for it", [transaction.committed_by])
    was_prepared = [operation for state, operation in told if state == "prepared"]
    aborted = finals.get("aborted")
    if was_prepared and aborted and not any(each.called < aborted.answered for each in transaction.aborts):
        findings.add(Rule.PREPARED, what, [was_prepared[0], aborted])
    _check_steps(told, what, findings)


def _check_steps(told: list[tuple[str, Operation]], what: str, findings: Findings) -> None:
    """Report a state that is told after a later one was."""
    highest: list[tuple[int, str, Operation]] = []
    ended = [(operation.answered, state, operation) for state, operation in told]
    index = 0
    for state, operation in sorted(told, key=lambda each: each[1].called):
        while index < len(ended) and ended[index][0] < operation.called:
            _, other, by = ended[index]
            if not highest or RANKS[other] > highest[-1][0]:
                highest.append((RANKS[other], other, by))
            index += 1
        if highest and RANKS[state] < highest[-1][0]:
            findings.add(Rule.OUTCOME, f"{what} is {state} after it was {highest[-1][1]}", [highest[-1][2], operation])
