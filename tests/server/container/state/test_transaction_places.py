"""Adding a part to a transaction does not look at all that it has."""

from collections.abc import Iterator

from millrace.model.key_range import equal_ranges
from millrace.model.transaction import TransactionPart
from millrace.server.container.state.transaction import Transaction


class _Watched(dict[int, TransactionPart]):
    """Counts how often all of its items are visited."""

    visits_count = 0

    def values(self) -> Iterator[TransactionPart]:  # type: ignore[override]
        self.visits_count += 1
        return iter(super().values())


def _parts(branch: int, first: int) -> dict[int, TransactionPart]:
    return {
        first + index: TransactionPart(segment_id=first + index, branch=branch, stream_id=7, key_range=key_range)
        for index, key_range in enumerate(equal_ranges(3))
    }


def test_parts_are_added_without_a_look_at_the_others() -> None:
    transaction = Transaction(number=1, name="", begun_us=0, lease_ms=1000)
    watched = transaction.admitted_parts = _Watched(_parts(0, 10))  # as it was recovered
    for branch in range(1, 50):
        transaction.admit_parts(_parts(branch, 10 + 3 * branch))

    assert watched.visits_count == 1
    assert len(watched) == 150
    assert transaction.places() == {branch: {(7, keys.low) for keys in equal_ranges(3)} for branch in range(50)}
    transaction.forget_parts()
    assert transaction.places() == {}
