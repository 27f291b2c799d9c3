"""Adding a part to a transaction does not look at all that it has."""

from millrace.model.key_range import equal_ranges
from millrace.model.transaction import TransactionPart
from millrace.server.container.state.transaction import Transaction, TransactionRow


class _Watched(TransactionPart):
    """Counts how often one of them is looked at."""

    looks_count = 0

    def __getattribute__(self, name: str) -> object:
        if name == "branch":
            _Watched.looks_count += 1
        return super().__getattribute__(name)


def _parts(branch: int) -> dict[int, TransactionPart]:
    first = 10 + 3 * branch
    return {
        first + index: _Watched(segment_id=first + index, branch=branch, stream_id=7, key_range=key_range)
        for index, key_range in enumerate(equal_ranges(3))
    }


def test_parts_are_added_without_a_look_at_the_others() -> None:
    transaction = Transaction(TransactionRow(number=1, name="", begun_us=0, lease_ms=1000))
    transaction.parts |= _parts(0)
    transaction.admit_as_durable()  # as it was recovered
    for branch in range(1, 50):
        assert len(transaction.places()) == branch
        transaction.admit_parts(_parts(branch))

    assert transaction.places() == {branch: {(7, keys.low) for keys in equal_ranges(3)} for branch in range(50)}
    assert _Watched.looks_count == len(transaction.admitted_parts) == 150
    transaction.forget_parts()
    assert transaction.places() == {}
