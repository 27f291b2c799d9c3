"""Validation of new parts of a transaction, and the records that add them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from millrace.model.transaction import TransactionPart
from millrace.server.container.state.transaction import Transaction
from millrace.server.errors import InvalidArgumentError
from millrace.wire import messages as m

PARTS_COUNT_MAX: Final = 65_536
"""Of one transaction: its commit is one record, which names all of them."""
BRANCHES_COUNT_MAX: Final = 10_000
"""Of one transaction: a request and a reply name all of them."""


def part_records(
    routes: Sequence[m.TransactionStream], parts: Sequence[m.NewPart], *, subject: str
) -> list[m.PartRecord]:
    """Return what a record says of parts, given the routes of their transaction.

    Raises:
        InvalidArgumentError: there are none, one is for no range of the transaction, or a number is given twice.
    """
    ranges = {routed_id: (stream.stream_id, low, last) for stream in routes for routed_id, low, last in stream.ranges}
    try:
        records = [m.PartRecord(segment_id, *ranges[routed_id]) for segment_id, routed_id in parts]
    except KeyError:
        records = []
    if not records:
        raise InvalidArgumentError("a part is for a segment that was open when the transaction began", subject=subject)
    if len({segment_id for segment_id, _ in parts}) < len(parts):
        raise InvalidArgumentError("a number names one part", subject=subject)
    return records


def has_parts(transaction: Transaction, parts: Mapping[int, TransactionPart]) -> bool:
    """Return whether a transaction has all of these already."""
    admitted = transaction.admitted_parts
    return all(admitted.get(segment_id) == part for segment_id, part in parts.items())


def check_new_parts(transaction: Transaction, branch: int, parts: Collection[TransactionPart], *, subject: str) -> None:
    """Raise unless a transaction may have these parts more, all of them of one branch.

    Raises:
        InvalidArgumentError: the branch has a part for one of the ranges, or these are too many parts or branches.
    """
    places = transaction.places()
    new = {(part.stream_id, part.key_range.low) for part in parts}
    if len(new) < len(parts) or new & places.get(branch, set()):
        raise InvalidArgumentError("a branch has one part for a range of keys", subject=subject)
    if len(places) + (branch not in places) > BRANCHES_COUNT_MAX:
        raise InvalidArgumentError(f"a transaction has at most {BRANCHES_COUNT_MAX} branches", subject=subject)
    if len(transaction.admitted_parts) + len(parts) > PARTS_COUNT_MAX:
        raise InvalidArgumentError(f"a transaction has at most {PARTS_COUNT_MAX} parts", subject=subject)
