import doctest
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from xxhash import xxh3_64

from millrace.model import key_range
from millrace.model.errors import InvalidNameError
from millrace.model.key_range import KEY_SPACE, KeyRange, covers_once, equal_ranges, key_place
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from tests.support.tables import table


def test_a_key_keeps_its_place_forever() -> None:
    assert key_place("") == 0x2D06800538D394C2
    assert key_place("customer-3") == 0x08D045402D2F902C
    assert key_place("ä\N{SNOWMAN}") == 0xA234EFAA1AE6B3CD


@given(st.text(max_size=40))
def test_the_place_of_a_key_is_xxh3_of_its_bytes(key: str) -> None:
    assert key_place(key) == xxh3_64(key.encode()).intdigest() < KEY_SPACE


@table("key", ["\ud800", b"bytes", None])
def test_a_key_that_is_not_text_has_no_place(key: str) -> None:
    with pytest.raises(InvalidNameError, match="routing key"):
        key_place(key)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(key_range).failed == 0


@given(st.integers(1, SEGMENTS_PER_STREAM_MAX), st.integers(0, KEY_SPACE - 1))
def test_equal_ranges_cover_the_key_space_once(count: int, place: int) -> None:
    ranges = equal_ranges(count)

    assert len(ranges) == count
    assert ranges[0].low == 0
    assert ranges[-1].high == KEY_SPACE
    assert all(left.high == right.low for left, right in pairwise(ranges))
    assert sum(place in part for part in ranges) == 1
    widths = {part.high - part.low for part in ranges}
    assert max(widths) - min(widths) <= 1


@given(st.integers(), st.integers())
def test_a_range_is_a_part_of_the_key_space(low: int, high: int) -> None:
    assume(not 0 <= low < high <= KEY_SPACE)

    with pytest.raises(ValueError, match="key range"):
        KeyRange(low, high)


def test_a_range_is_shown_in_fractions() -> None:
    assert KeyRange(KEY_SPACE // 4, KEY_SPACE // 2).fractions == (0.25, 0.5)


@given(st.sets(st.integers(2, KEY_SPACE - 1), max_size=9))
def test_neighbouring_ranges_cover_the_key_space(borders: set[int]) -> None:
    """Behaviour 26: the key space is covered once."""
    ranges = [KeyRange(low, high) for low, high in pairwise([0, *sorted(borders), KEY_SPACE])]

    assert covers_once(reversed(ranges))
    assert not covers_once(ranges[1:])
    assert not covers_once([*ranges, ranges[0]])
    assert not covers_once([KeyRange(0, ranges[0].last), *ranges[1:]])


def test_nothing_covers_nothing() -> None:
    assert not covers_once([])


def test_ranges_overlap_where_they_share_a_place() -> None:
    assert KeyRange.inclusive(3, 5) == KeyRange(3, 6)
    assert KeyRange(3, 6).overlaps(KeyRange(5, 9))
    assert not KeyRange(3, 6).overlaps(KeyRange(6, 9))
    assert (KeyRange(3, 6).last, KeyRange(3, 6).width) == (5, 3)
