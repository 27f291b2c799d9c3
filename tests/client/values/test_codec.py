import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.values.codec import MalformedError, MalformedValue, groups, sift


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_what_is_malformed_is_left_out_and_named(good: list[bool]) -> None:
    def work(start: int, end: int) -> list[int]:
        if not all(good[start:end]):
            raise MalformedError("bad", column="a")
        return list(range(start, end))

    pieces, malformed = sift(0, len(good), work)

    assert [number for _, piece in pieces for number in piece] == [number for number, ok in enumerate(good) if ok]
    assert all(start == piece[0] for start, piece in pieces)
    assert malformed == [MalformedValue(number, "bad", "a") for number, ok in enumerate(good) if not ok]


def test_one_bad_row_costs_two_tries_for_each_halving() -> None:
    tries = []

    def work(start: int, end: int) -> None:
        tries.append((start, end))
        if start <= 4321 < end:
            raise MalformedError("bad")

    sift(0, 65536, work)

    assert len(tries) == 1 + 2 * 16


def test_where_the_first_is_enough_nothing_after_it_is_tried() -> None:
    tries = []

    def work(start: int, end: int) -> int:
        tries.append((start, end))
        if end > 4321:
            raise MalformedError("bad")
        return start

    pieces, malformed = sift(0, 65536, work, ends_at_first=True)

    assert malformed == [MalformedValue(4321, "bad", None)]
    assert pieces[0][0] == 0
    assert len(tries) <= 1 + 2 * 16
    assert all(start <= 4321 for start, _ in tries)


def test_a_reason_names_its_column() -> None:
    assert str(MalformedValue(1, "is bad")) == "is bad"
    assert str(MalformedValue(1, "is bad", "a.b")) == 'column "a.b" is bad'


@given(st.lists(st.integers(0, 50), max_size=30))
def test_groups_are_of_bounded_size_and_miss_nothing(sizes: list[int]) -> None:
    found = list(groups(np.array(sizes, dtype=np.int64), size_bytes=40))

    assert [number for start, end in found for number in range(start, end)] == list(range(len(sizes)))
    assert all(end - start == 1 or sum(sizes[start:end]) <= 40 for start, end in found)
