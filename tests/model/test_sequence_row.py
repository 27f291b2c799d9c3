import doctest
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from millrace.model import sequence_row
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.sequence_row import SEQUENCE_MAX, SequenceRow, sequence_place
from tests.support.examples import examples
from tests.support.tables import table

PLACES_COUNT = 8
WIDTH = KEY_SPACE // PLACES_COUNT


def keys_of(first: int, end: int) -> KeyRange:
    return KeyRange(first * WIDTH, end * WIDTH)


ranges = st.tuples(st.integers(0, PLACES_COUNT - 1), st.integers(1, PLACES_COUNT)).map(
    lambda pair: (min(pair), max(pair)) if pair[0] != pair[1] else (pair[0] - 1, pair[1])
)
sequences = st.integers(0, 40)


@dataclass
class Naive:
    """A row as a list of places, each with its mark."""

    through: int = -1
    marks: list[int] = field(default_factory=lambda: [-1] * PLACES_COUNT)

    def stored_at(self, place: int) -> int:
        return max(self.through, self.marks[place])


class RowMachine(RuleBasedStateMachine):
    row_class: type[SequenceRow] = SequenceRow

    def __init__(self) -> None:
        super().__init__()
        self.row = self.row_class()
        self.naive = Naive()
        self.lasts: list[int] = []

    @rule(keys=ranges, last=sequences, before=st.integers(0, 9))
    def store(self, keys: tuple[int, int], last: int, before: int) -> None:
        stored_below = max(0, last - before)
        self.row.store(keys_of(*keys), last=last, stored_below=stored_below)
        for place in range(*keys):
            self.naive.marks[place] = max(self.naive.marks[place], last)
        self.naive.through = max(self.naive.through, stored_below - 1)
        self.lasts.append(last)

    @rule(stored_below=sequences)
    def raise_through(self, stored_below: int) -> None:
        assert self.row.raise_through(stored_below) == (stored_below - 1 > self.naive.through)
        self.naive.through = max(self.naive.through, stored_below - 1)

    @rule()
    def encode(self) -> None:
        decoded = self.row_class.decode(self.row.through, self.row.encode_marks())
        assert decoded == self.row
        self.row = decoded

    @rule()
    def join(self) -> None:
        self.row.join()

    @rule()
    def change_a_copy(self) -> None:
        self.row.copy().store(keys_of(0, PLACES_COUNT), last=99, stored_below=99)

    @invariant()
    def every_place_is_as_far(self) -> None:
        assert self.row.through == self.naive.through
        for place in range(PLACES_COUNT):
            for inside in (place * WIDTH, place * WIDTH + WIDTH - 1):
                assert self.row.stored_at(inside) == self.naive.stored_at(place)

    @invariant()
    def the_lowest_of_every_range_is_known(self) -> None:
        for first in range(PLACES_COUNT):
            for end in range(first + 1, PLACES_COUNT + 1):
                lowest = min(self.naive.stored_at(place) for place in range(first, end))
                assert self.row.lowest_in(keys_of(first, end)) == lowest

    @invariant()
    def there_is_one_form_of_a_row(self) -> None:
        row = self.row.copy()  # to ask for the pieces joins them
        assert SequenceRow(row.through, row.pieces()) == row
        assert self.row.highest == max(self.naive.stored_at(place) for place in range(PLACES_COUNT))
        assert self.row.is_empty == (self.row.highest == -1)

    @invariant()
    def it_is_small_when_it_is_joined(self) -> None:
        """Two pieces for each block above `through`, and one."""
        row = self.row.copy()
        row.join()
        above = sum(last > row.through for last in self.lasts)
        assert row.piece_count <= 2 * above + 1
        assert len(row.encode_marks()) in (0, 16 * row.piece_count)


TestRow = RowMachine.TestCase


class SetsMarks(SequenceRow):
    """A block of an older range lowers what is stored."""

    def store(self, keys: KeyRange, *, last: int, stored_below: int) -> None:
        first = self._cut(keys.low)
        end = self._cut(keys.high) if keys.high < KEY_SPACE else len(self._lows)
        self._marks[first:end] = [last] * (end - first)
        self.through = max(self.through, stored_below - 1)


class TakesOneTooMany(SequenceRow):
    """What is stored below a sequence is not the sequence itself."""

    def raise_through(self, stored_below: int) -> bool:
        return super().raise_through(stored_below + 1)


class TrustsTheLast(SequenceRow):
    """The last sequence of a block says nothing of what other segments have."""

    def store(self, keys: KeyRange, *, last: int, stored_below: int) -> None:
        super().store(keys, last=last, stored_below=last + 1)


class LowersThrough(SequenceRow):
    """An older block that is told later is no news."""

    def store(self, keys: KeyRange, *, last: int, stored_below: int) -> None:
        self.through = min(self.through, stored_below - 1)
        super().store(keys, last=last, stored_below=stored_below)


class KeepsMarks(SequenceRow):
    """Marks that `through` has reached would pile up."""

    def join(self) -> None:
        pass


class DropsOneTooMany(SequenceRow):
    """The mark that is next above `through` is stored at its place only."""

    def join(self) -> None:
        self.through += 1
        super().join()
        self.through -= 1


class TakesTheHighest(SequenceRow):
    """Some places of a merged segment are further than others."""

    def lowest_in(self, keys: KeyRange) -> int:
        return max(super().lowest_in(keys), self.stored_at(keys.low))


@table(
    "mutant", [SetsMarks, TakesOneTooMany, TrustsTheLast, LowersThrough, KeepsMarks, DropsOneTooMany, TakesTheHighest]
)
def test_a_row_that_breaks_a_rule_is_found_out(mutant: type[SequenceRow]) -> None:
    machine = type("Machine", (RowMachine,), {"row_class": mutant})

    with pytest.raises((AssertionError, ValueError)):
        run_state_machine_as_test(
            machine,
            settings=settings(max_examples=examples(300), phases=[Phase.generate], database=None, deadline=None),
        )


def test_what_was_stored_is_told_place_by_place() -> None:
    row = SequenceRow()

    row.store(keys_of(0, 4), last=7, stored_below=3)
    row.store(keys_of(4, 8), last=5, stored_below=3)

    assert row.through == 2
    assert row.pieces() == [(0, 7), (4 * WIDTH, 5)]
    assert row.is_stored(7, place=0)
    assert not row.is_stored(7, place=4 * WIDTH)


def test_marks_that_through_has_reached_are_dropped() -> None:
    row = SequenceRow(2, [(0, 7), (4 * WIDTH, 5)])

    assert row.raise_through(6)
    assert row.pieces() == [(0, 7), (4 * WIDTH, -1)]
    assert row.raise_through(8)
    assert (row.through, row.pieces()) == (7, [])
    assert not row.raise_through(8)


def test_a_block_of_an_older_range_does_not_lower_what_is_stored() -> None:
    row = SequenceRow(-1, [(0, 9)])

    row.store(keys_of(2, 3), last=5, stored_below=0)

    assert row.pieces() == [(0, 9)]


class Counted(int):
    """A mark that counts how often marks are compared."""

    count = 0


def counting(name: str) -> Callable[[Counted, object], bool]:
    def compare(mark: Counted, other: object) -> bool:
        Counted.count += 1
        result: bool = getattr(int, name)(mark, other)
        return result

    return compare


for comparison in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(Counted, comparison, counting(comparison))


def test_a_block_costs_what_its_range_costs_whatever_the_row_holds() -> None:
    width = KEY_SPACE // 4096
    row = SequenceRow(-1, [(place * width, Counted(10_000 + place)) for place in range(4096)])
    Counted.count = 0

    for number in range(100):
        place = 37 * number % 4096
        keys = KeyRange(place * width, (place + 1) * width)
        assert row.lowest_in(keys) == 10_000 + place
        row.store(keys, last=20_000 + number, stored_below=10_000 + number)

    assert Counted.count <= 3 * 100
    assert row.stored_at(36 * width) == 10_098


def test_a_row_of_ever_new_ranges_stays_small() -> None:
    """What `through` has reached is dropped now and then, also if nobody asks for the pieces."""
    row = SequenceRow()

    for number in range(10_000):
        low = number * 7919 * 1024 % (KEY_SPACE - 1024)
        row.store(KeyRange(low, low + 1024), last=number, stored_below=number)
        assert row.piece_count <= 64

    assert row.pieces() == [(0, -1), (low, 9_999), (low + 1024, -1)]


def test_a_block_of_a_merged_segment_joins_the_pieces_of_its_range() -> None:
    row = SequenceRow(-1, [(place * WIDTH, 5 + place) for place in range(8)])

    row.store(keys_of(1, 7), last=20, stored_below=0)

    assert row.piece_count == 3
    assert row.pieces() == [(0, 5), (WIDTH, 20), (7 * WIDTH, 12)]


@table(
    ("through", "pieces"),
    [
        (-2, []),
        (SEQUENCE_MAX + 1, []),
        (0, [(1, 5)]),
        (0, [(0, 5), (0, 6)]),
        (0, [(0, 5), (9, 6), (7, 8)]),
        (0, [(0, 5), (KEY_SPACE, 6)]),
        (0, [(0, 5), (9, 5)]),
        (5, [(0, 5)]),
        (5, [(0, -2)]),
        (0, [(0, SEQUENCE_MAX + 1)]),
    ],
)
def test_what_is_no_row_is_refused(through: int, pieces: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"sequence|place|piece|mark"):
        SequenceRow(through, pieces)


def test_bytes_that_are_no_marks_are_refused() -> None:
    with pytest.raises(ValueError, match="whole pieces"):
        SequenceRow.decode(0, bytes(17))


def test_an_event_without_a_key_keeps_its_place_forever() -> None:
    assert sequence_place(0) == 0xC77B3ABB6F87ACD9
    assert sequence_place(1023) == sequence_place(0)
    assert sequence_place(1024) == 0x2FBC593564DB792E
    assert sequence_place(SEQUENCE_MAX) == 0x7C21423830C24A1B


@given(st.integers(0, SEQUENCE_MAX))
def test_consecutive_events_without_a_key_share_a_place(sequence: int) -> None:
    assert sequence_place(sequence) == sequence_place(sequence // 1024 * 1024) < KEY_SPACE


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(sequence_row).failed == 0
