from collections.abc import Iterable

import pytest

from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.transaction import TransactionPart
from millrace.server.container.state.transaction import Transaction, TransactionRow
from millrace.server.errors import InvalidArgumentError
from millrace.server.kinds.transactions.part_validation import (
    BRANCHES_COUNT_MAX,
    PARTS_COUNT_MAX,
    check_new_parts,
    part_records,
)
from millrace.wire import messages as m

STREAM_ID = 5
UNIT = KEY_SPACE // PARTS_COUNT_MAX // 2


def part(number: int, *, branch: int = 0, place: int | None = None) -> TransactionPart:
    """Return a part that begins at so many units of the key space, by default at as many as its number says."""
    low = (number if place is None else place) * UNIT
    return TransactionPart(1000 + number, branch, STREAM_ID, KeyRange(low, low + UNIT))


def with_parts(parts: Iterable[TransactionPart]) -> Transaction:
    transaction = Transaction(TransactionRow(number=7, name="", begun_us=0, lease_ms=3000))
    transaction.admit_parts({each.segment_id: each for each in parts})
    return transaction


def check(transaction: Transaction, *parts: TransactionPart) -> None:
    check_new_parts(transaction, parts[0].branch, parts, subject="7")


def test_a_transaction_has_so_many_parts_at_most() -> None:
    """All of its branches together: its commit is one record."""
    transaction = with_parts(part(number, branch=number % 2) for number in range(PARTS_COUNT_MAX - 1))
    last, more = part(PARTS_COUNT_MAX, branch=2), part(PARTS_COUNT_MAX + 1, branch=2)

    check(transaction, last)
    with pytest.raises(InvalidArgumentError, match="at most 65536 parts"):
        check(transaction, last, more)


def test_a_transaction_has_so_many_branches_at_most() -> None:
    transaction = with_parts(part(number, branch=number, place=0) for number in range(BRANCHES_COUNT_MAX))

    check(transaction, part(BRANCHES_COUNT_MAX, branch=1))
    with pytest.raises(InvalidArgumentError, match="at most 10000 branches"):
        check(transaction, part(BRANCHES_COUNT_MAX, branch=BRANCHES_COUNT_MAX))


def test_a_branch_has_one_part_for_a_range() -> None:
    transaction = with_parts([part(1), part(2)])

    check(transaction, part(3))
    check(transaction, part(3, branch=1, place=1))
    for parts in ((part(3, place=1),), (part(3), part(4, place=3))):
        with pytest.raises(InvalidArgumentError, match="one part for a range"):
            check(transaction, *parts)


def test_parts_are_for_the_ranges_with_which_it_began() -> None:
    routes = [m.TransactionStream(STREAM_ID, 0, [m.SegmentRangeRecord(11, 0, 9), m.SegmentRangeRecord(12, 10, 19)])]

    found = part_records(routes, [m.NewPart(100, 12), m.NewPart(101, 11)], subject="7")

    assert found == [m.PartRecord(100, STREAM_ID, 10, 19), m.PartRecord(101, STREAM_ID, 0, 9)]
    for parts in ([], [m.NewPart(100, 13)], [m.NewPart(100, 11), m.NewPart(100, 12)]):
        with pytest.raises(InvalidArgumentError):
            part_records(routes, parts, subject="7")
