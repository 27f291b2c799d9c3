"""Producers: whether each sequence was committed once, by the run and the holder whose turn it was.

What is known of a producer has three parts: its holder, the run of that holder, and the last sequence that the holder
has committed. Whatever is answered about it was so at one instant between the call and the answer: a transaction that
begins, or is committed, has the run and the holder of that instant, and a sequence above the last one. Runs follow one
another, and so do holders; none comes back. The last sequence of a holder only rises. Before anything is committed as
a producer it may be forgotten: then runs and holders begin anew.

That a sequence is committed shows which transaction is, if only one can be meant: then all that shows a commit holds
for it, also after a crash.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from .operations import NEVER, Operation
from .reads import last_whole_reads
from .rules import Findings, Rule
from .streams import Streams
from .transactions import BY_PRODUCER, Claim, Transaction, Transactions, claim_of
from .turns import Group, clashes


class _Told(NamedTuple):
    """Since when it was known that a sequence, or a later one, was committed."""

    since: int
    sequence: int
    operation: Operation | None


class _Below(NamedTuple):
    """An operation during which there was an instant at which no sequence from this one on was committed."""

    called: int
    sequence: int
    operation: Operation | None


class _Needed(NamedTuple):
    """An operation during which a holder, and mostly a run of it, had the writer id."""

    holder: str
    run: str | None
    called: int
    answered: int
    operation: Operation | None


@dataclass(slots=True)
class _Candidates:
    """The transactions of one holder that may have been committed, by their sequences."""

    transactions: list[Transaction]
    # Of each transaction and those after it: when the first two of them may have been committed, and the first one.
    firsts: list[tuple[int, int, Transaction]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transactions.sort(key=lambda each: _claim(each).sequence)
        first, second = NEVER, NEVER
        for index in reversed(range(len(self.transactions))):
            each = self.transactions[index]
            if each.commit_called < first:
                first, second = each.commit_called, first
                self.firsts.append((first, second, each))
            else:
                second = min(second, each.commit_called)
                self.firsts.append((first, second, self.firsts[-1][2] if self.firsts else each))
        self.firsts.reverse()

    def before(self, told: _Told) -> tuple[Transaction | None, bool]:
        """Return one of those that can be what was told of, and whether there is no other."""
        index = bisect_left(self.transactions, told.sequence, key=lambda each: _claim(each).sequence)
        if index == len(self.transactions):
            return None, False
        first, second, transaction = self.firsts[index]
        return (transaction, second >= told.since) if first < told.since else (None, False)


@dataclass(slots=True)
class _Holder:
    """One holder of one producer.

    Attributes:
        had: the operations that needed it to be the holder.
        resets: when each reset that may have made it the holder was called, in order.
        called: when anybody first gave it as the holder.
        refused: beginnings and commits that were refused since it was not.
    """

    transactions: list[Transaction] = field(default_factory=list)
    told: list[_Told] = field(default_factory=list)
    below: list[_Below] = field(default_factory=list)
    had: Group = field(default_factory=Group)
    resets: list[int] = field(default_factory=list)
    called: int = NEVER
    refused: list[Operation] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """When anybody first wanted it to be the holder."""
        return min([self.called, *self.resets[:1]])


@dataclass(slots=True)
class _Run:
    """One run; the attributes are those of holders."""

    had: Group = field(default_factory=Group)
    called: int = NEVER
    refused: list[Operation] = field(default_factory=list)


@dataclass(slots=True)
class _Producer:
    """All about one writer id.

    Attributes:
        needed: what is added to holders and runs by `settle`.
        forgotten: operations that were answered that there is no such producer.
    """

    holders: defaultdict[str, _Holder] = field(default_factory=lambda: defaultdict(_Holder))
    runs: defaultdict[tuple[str, str], _Run] = field(default_factory=lambda: defaultdict(_Run))
    needed: list[_Needed] = field(default_factory=list)
    forgotten: list[Operation] = field(default_factory=list)

    def need(self, claim: Claim, called: int, answered: int, operation: Operation | None) -> None:
        """Count an operation that was answered as none is whose run was replaced."""
        self.needed.append(_Needed(claim.holder, claim.run, called, answered, operation))

    def settle(self, committed: int) -> None:
        """Count who had the writer id; what was answered before anything was committed may be forgotten."""
        for holder, run, called, answered, operation in self.needed:
            if answered >= committed:
                self.holders[holder].had.add(called, answered, operation)
                if run is not None:
                    self.runs[holder, run].had.add(called, answered, operation)

    def take(self, claim: Claim, operation: Operation) -> None:
        """Count what a beginning, or a commit that was refused, was answered."""
        holder, run = self.holders[claim.holder], self.runs[claim.holder, claim.run]
        holder.called, run.called = min(holder.called, operation.called), min(run.called, operation.called)
        match operation.answer:
            case "begun" | "joined":
                self.need(claim, operation.called, operation.answered, operation)
                holder.below.append(_Below(operation.called, claim.sequence, operation))
            case "repeated":
                self.need(claim, operation.called, operation.answered, operation)
                holder.told.append(_Told(operation.answered, claim.sequence, operation))
            case "fenced":
                run.refused.append(operation)
            case "held":
                holder.refused.append(operation)

    def look(self, operation: Operation) -> None:
        """Count what somebody was told who asked for what is known."""
        if operation.answer == "unknown":
            self.forgotten.append(operation)
        if operation.answer != "known" or (name := operation.result.get("holder")) is None:
            return
        holder = self.holders[name]
        run = operation.result.get("run")
        self.needed.append(_Needed(name, run, operation.called, operation.answered, operation))
        last = operation.result.get("last")
        holder.below.append(_Below(operation.called, 0 if last is None else last + 1, operation))
        if last is not None:
            holder.told.append(_Told(operation.answered, last, operation))

    def reset(self, operation: Operation) -> None:
        """Count that the writer id was to be given to another holder."""
        holder = self.holders[operation.fields["holder"]]
        if operation.answer == "unknown":
            self.forgotten.append(operation)
            return
        if operation.answer in {"done", "same"}:
            name = operation.fields["holder"]
            self.needed.append(_Needed(name, None, operation.called, operation.answered, operation))
        holder.resets.append(operation.called)


class Producers:
    """All producers of a history."""

    def __init__(self, operations: list[Operation], transactions: Transactions) -> None:
        self._transactions = [each for each in transactions if each.claim is not None]
        self._by_writer: defaultdict[str, _Producer] = defaultdict(_Producer)
        for transaction in self._transactions:
            claim = _claim(transaction)
            self._by_writer[claim.writer].holders[claim.holder].transactions.append(transaction)
        for operation in operations:
            match operation.call:
                case "begin" if "producer" in operation.fields:
                    claim = claim_of(operation)
                    self._by_writer[claim.writer].take(claim, operation)
                case "producer":
                    self._by_writer[operation.fields["writer"]].look(operation)
                case "reset":
                    self._by_writer[operation.fields["writer"]].reset(operation)
        for transaction in self._transactions:
            claim = _claim(transaction)
            for commit in transaction.commits:
                if commit.answer in BY_PRODUCER:
                    self._by_writer[claim.writer].take(claim, commit)

    def reveals(self) -> list[tuple[int, Operation, Transaction]]:
        """Return the transactions that answers about sequences show to be committed, and since when."""
        found: list[tuple[int, Operation, Transaction]] = []
        for producer in self._by_writer.values():
            for holder in producer.holders.values():
                candidates = _Candidates([each for each in holder.transactions if not each.is_aborted])
                for told in holder.told:
                    transaction, is_only = candidates.before(told)
                    if transaction is not None and is_only and told.operation is not None:
                        found.append((told.since, told.operation, transaction))
        return found

    def check(self, streams: Streams, operations: list[Operation], findings: Findings) -> None:
        """Report what no producer can have been, once it is known which transactions are visible."""
        missing = _Missing(streams, last_whole_reads(operations))
        committed: defaultdict[str, int] = defaultdict(lambda: NEVER)
        for transaction in self._transactions:
            if transaction.commit_called < transaction.shown < NEVER:
                self._note_commit(transaction)
                writer = _claim(transaction).writer
                committed[writer] = min(committed[writer], transaction.shown)
        for writer, producer in self._by_writer.items():
            producer.settle(committed[writer])
            for name, holder in producer.holders.items():
                what = f"{writer} of {name}"
                _check_once(what, holder, findings)
                _check_rising(what, holder, findings)
                _check_told(what, holder, missing, findings)
            _check_runs(writer, producer, findings)
            _check_holders(writer, producer, findings)
            _check_forgotten(writer, producer, findings)

    def _note_commit(self, transaction: Transaction) -> None:
        claim, by = _claim(transaction), transaction.committed_by or transaction.commits[0]
        producer = self._by_writer[claim.writer]
        producer.need(claim, transaction.commit_called, transaction.shown, by)
        holder = producer.holders[claim.holder]
        holder.below.append(_Below(transaction.commit_called, claim.sequence, by))
        holder.told.append(_Told(transaction.shown, claim.sequence, by))


@dataclass(frozen=True, slots=True)
class _Missing:
    """Says up to when a transaction was not committed, since it lacks an event though all was read."""

    streams: Streams
    last_reads: dict[str, Operation]
    have_gaps: dict[str, bool] = field(default_factory=dict)

    def before(self, transaction: Transaction) -> int:
        """Return when a read began that did not find it; -1 if there is none."""
        latest = -1
        for event in transaction.events:
            read = self.last_reads.get(event.stream)
            if read is None or event.segment is not None or event.acked == NEVER or not transaction.needs(event.branch):
                continue
            if not self._has_gap(event.stream):
                latest = max(latest, read.called)
        return latest

    def _has_gap(self, name: str) -> bool:
        if name not in self.have_gaps:
            self.have_gaps[name] = self.streams.stream(name).has_gap
        return self.have_gaps[name]


def _check_once(what: str, holder: _Holder, findings: Findings) -> None:
    by_sequence: dict[int, Transaction] = {}
    for each in holder.transactions:
        if each.shown == NEVER:
            continue
        sequence = _claim(each).sequence
        other = by_sequence.setdefault(sequence, each)
        if other is not each:
            text = f"{what}: {sequence} in transactions {other.number} and {each.number}"
            findings.add(Rule.REPEATED, text, [*_operations(other), *_operations(each)])


def _check_rising(what: str, holder: _Holder, findings: Findings) -> None:
    """Report what needed a sequence not to be committed, after that, or a later one, was."""
    told = sorted(holder.told, key=attrgetter("since"))
    highest = _Told(-1, -1, None)
    index = 0
    for below in sorted(holder.below, key=attrgetter("called")):
        while index < len(told) and told[index].since < below.called:
            if told[index].sequence > highest.sequence:
                highest = told[index]
            index += 1
        if highest.sequence >= below.sequence:
            text = f"{what}: {below.sequence} is said to be not committed, and {highest.sequence} was"
            findings.add(Rule.REPEATED, text, [highest.operation, below.operation])


def _check_told(what: str, holder: _Holder, missing: _Missing, findings: Findings) -> None:
    """Report sequences that are told to be committed, and nobody has committed them, or the commit is gone."""
    latest = max((told.since for told in holder.told), default=NEVER)
    possible = [each for each in holder.transactions if not each.is_aborted]
    asked = _Candidates(possible.copy())
    there = _Candidates([each for each in possible if missing.before(each) < latest])
    for told in holder.told:
        text = f"{what}: {told.sequence}"
        transaction, _ = asked.before(told)
        if transaction is None:
            findings.add(Rule.ALREADY, text, [told.operation])
        elif there.before(told)[0] is None:
            findings.add(Rule.TAKEN_BACK, text, [told.operation, *_operations(transaction)])


def _check_runs(writer: str, producer: _Producer, findings: Findings) -> None:
    groups = {name: run.had for name, run in producer.runs.items()}
    for one, other in clashes(groups):
        operations = [*groups[one].operations, *groups[other].operations]
        findings.add(Rule.FENCED, f"{writer}: run {one[1]} of {one[0]} and run {other[1]} of {other[0]}", operations)
    first, second = _first_two(run.called for run in producer.runs.values())
    reset = min((resets[0] for each in producer.holders.values() if (resets := each.resets)), default=NEVER)
    for (of_holder, name), run in producer.runs.items():
        replaced = min(reset, second if run.called == first else first)
        for refused in run.refused:
            text = f"{writer}: run {name} of {of_holder}"
            if replaced > refused.answered:
                findings.add(Rule.FENCED, f"{text} was replaced by none", [refused])
            elif run.had.called > refused.answered:
                findings.add(Rule.FENCED, f"{text} was replaced", [refused, run.had.called_by])


def _check_holders(writer: str, producer: _Producer, findings: Findings) -> None:
    groups = {name: holder.had for name, holder in producer.holders.items()}
    for one, other in clashes(groups):
        operations = [*groups[one].operations, *groups[other].operations]
        findings.add(Rule.HELD, f"{writer}: {one} and {other}", operations)
    without = [
        (name, holder.had)
        for name, holder in producer.holders.items()
        if holder.had.ended < NEVER and not (holder.resets and holder.resets[0] < holder.had.ended)
    ]
    if len(without) > 1:  # only the first one needs none
        names = [name for name, _ in without]
        findings.add(Rule.HELD, f"{writer}: no reset for {names}", [had.ended_by for _, had in without])
    first, second = _first_two(holder.asked for holder in producer.holders.values())
    for name, holder in producer.holders.items():
        for refused in holder.refused:
            text = f"{writer}: {name} is refused"
            if (second if holder.asked == first else first) > refused.answered:
                findings.add(Rule.HELD, f"{text}, and there is no other", [refused])
            elif holder.had.surrounds(refused.called, refused.answered):
                findings.add(Rule.HELD, f"{text}, and has it", [holder.had.ended_by, refused, holder.had.called_by])
            elif holder.had.called > refused.answered and not holder.resets:
                findings.add(Rule.HELD, f"{text}, and has it without a reset", [refused, holder.had.called_by])


def _check_forgotten(writer: str, producer: _Producer, findings: Findings) -> None:
    had = min((run.had for run in producer.runs.values()), key=attrgetter("ended"), default=Group())
    for operation in producer.forgotten:
        if had.ended < operation.called:
            findings.add(Rule.TAKEN_BACK, f"{writer} is not known any more", [had.ended_by, operation])


def _first_two(times: Iterable[int]) -> tuple[int, int]:
    first, second, *_ = [*sorted(times), NEVER, NEVER]
    return first, second


def _claim(transaction: Transaction) -> Claim:
    assert transaction.claim is not None
    return transaction.claim


def _operations(transaction: Transaction) -> list[Operation | None]:
    return [transaction.begun_by, *transaction.operations]
