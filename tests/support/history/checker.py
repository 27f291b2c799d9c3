"""The check of a history against all rules, in a time that grows with n log n."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from .exclusion import check_exclusion
from .operations import NEVER, parse
from .orders import check_conditions, check_orders, check_sequences
from .precedence import Precedence
from .producers import Producers
from .reads import check_lost, check_reads
from .recording import read_lines
from .registers import check_registers, reveals
from .rules import Findings, Rule, Violation, WrongHistoryError
from .streams import Streams, place_all
from .transactions import Transactions
from .visibility import Visibility


@dataclass(slots=True)
class Verdict:
    """What the check of a history found.

    Attributes:
        counts: operations by call, events, those that are `acknowledged`, and of these the `unread`, of which no read
            says whether they are there: a history with many of them proves little.
    """

    violations: list[Violation]
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counted = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return "\n".join([*map(str, self.violations), counted])


def check(lines: Iterable[str]) -> Verdict:
    """Check a history by its lines, in any order.

    Raises:
        ValueError: a line is none of a history.
    """
    operations = parse(lines)
    findings = Findings()
    transactions = Transactions(operations)
    streams = place_all(operations, transactions, findings)
    producers = Producers(operations, transactions)
    visibility = Visibility(streams, operations, reveals(operations, transactions) + producers.reveals())
    check_reads(streams, operations, findings)
    unread = check_lost(streams, operations, findings)
    check_orders(streams, findings)
    check_sequences(streams, operations, findings)
    check_conditions(streams, operations, findings)
    visibility.check(findings)
    Precedence(streams, operations, visibility.seen).check(findings)
    check_exclusion(streams, operations, findings)
    transactions.check(findings)
    _check_fates(streams, findings)
    producers.check(streams, operations, findings)
    check_registers(operations, transactions, findings)
    counts = Counter(operation.call for operation in operations)
    counts["events"] = len(streams.events)
    counts["acknowledged"] = sum(event.must_show < NEVER for event in streams.events.values())
    counts["unread"] = unread
    return Verdict(findings.violations, counts)


def demand(lines: Iterable[str]) -> Verdict:
    """Check a history. A wrong one is kept in a file, which the error names.

    Raises:
        WrongHistoryError: the history is wrong.
    """
    lines = list(lines)
    verdict = check(lines)
    if verdict.violations:
        with NamedTemporaryFile("w", prefix="history-", suffix=".jsonl", delete=False) as file:
            file.writelines(f"{line.rstrip()}\n" for line in lines)
        raise WrongHistoryError(verdict.violations, Path(file.name))
    return verdict


def check_path(path: Path) -> Verdict:
    """Check a history by its file, or the folder of its files."""
    return check(read_lines(path))


def _check_fates(streams: Streams, findings: Findings) -> None:
    """Report events that are stored though their transaction or branch is not."""
    for event in streams.events.values():
        transaction = event.transaction
        if transaction is None or event.segment is None:
            continue
        if transaction.is_aborted or not transaction.is_listed(event.branch):
            text = f"{event.stream}: {event.name} of transaction {transaction.number}, branch {event.branch!r}"
            findings.add(Rule.ABORTED, text, event.operations)
