import doctest
import string
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from xxhash import xxh3_64

from millrace.wire import names
from millrace.wire.errors import ErrorCode, InvalidNameError
from millrace.wire.limits import NAME_SIZE_BYTES_MAX, SEGMENTS_PER_STREAM_MAX, WRITER_ID_SIZE_BYTES_MAX
from millrace.wire.names import (
    KEY_SPACE,
    PART_LENGTH_MAX,
    KeyRange,
    checked_name,
    checked_writer_id,
    equal_ranges,
    key_place,
    segment_of_stream,
)

ALNUM = string.ascii_letters + string.digits
parts = st.builds(str.__add__, st.sampled_from(ALNUM), st.text(ALNUM + "._-", max_size=PART_LENGTH_MAX - 1))


@given(parts, parts)
def test_a_name_is_two_plain_parts(scope: str, name: str) -> None:
    assert checked_name(f"{scope}/{name}", kind="stream") == f"{scope}/{name}"


def test_the_longest_name_fits_the_limit_of_the_protocol() -> None:
    longest = checked_name(f"{'a' * PART_LENGTH_MAX}/{'b' * PART_LENGTH_MAX}", kind="stream")

    assert len(segment_of_stream(longest, epoch=(1 << 32) - 1, index=SEGMENTS_PER_STREAM_MAX)) <= NAME_SIZE_BYTES_MAX


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "a", "a/", "/a", "a/b/c", "a//b", "/a/b", "a/b/",
        "../b", "a/..", "./a", "a/.", "a/.hidden", "-a/b", "a/_b",
        "a/b#1", "a/b c", "a/b\n", "\na/b", "a/b\0", "a/b\x7f", "a\\b", "a/b\\..", "C:/b", "~/b", "a/%2e%2e", "a/b*",
        "ä/b", "a/\N{CYRILLIC SMALL LETTER A}", "a/\N{FULLWIDTH LATIN SMALL LETTER A}", "a/\N{ARABIC-INDIC DIGIT ONE}",
        "a\N{DIVISION SLASH}b", "a/b\N{RIGHT-TO-LEFT OVERRIDE}", "a/\ud800",
        "a" * (PART_LENGTH_MAX + 1) + "/b", "a/" + "b" * (PART_LENGTH_MAX + 1), "a/" + "b" * 100_000,
    ],
)  # fmt: skip
def test_everything_else_is_refused(name: str) -> None:
    """Behaviour 52: names never become paths; one rule in one place."""
    with pytest.raises(InvalidNameError) as caught:
        checked_name(name, kind="stream")

    assert caught.value.code is ErrorCode.INVALID_NAME
    assert str(caught.value).startswith("stream ")
    assert len(str(caught.value)) < 1000


@given(st.text(max_size=12))
def test_text_is_a_name_only_by_the_rule(name: str) -> None:
    """Behaviour 52: unicode, control characters and separators are refused."""
    try:
        checked_name(name, kind="segment")
    except InvalidNameError:
        return
    assert name.count("/") == 1
    assert set(name) <= set(ALNUM + "._-/")
    assert all(part[0] in ALNUM for part in name.split("/"))


def test_a_name_must_be_text() -> None:
    with pytest.raises(InvalidNameError, match="is not text"):
        checked_name(b"a/b", kind="stream")  # type: ignore[arg-type]  # what an untyped caller may do


@given(parts, parts, st.integers(0, SEGMENTS_PER_STREAM_MAX))
def test_no_user_can_name_the_segment_of_a_stream(scope: str, name: str, number: int) -> None:
    """Behaviour 52: internal names cannot be reached from outside."""
    with pytest.raises(InvalidNameError):
        checked_name(segment_of_stream(f"{scope}/{name}", epoch=number, index=number), kind="segment")


@pytest.mark.parametrize("writer_id", ["a", "till-7", "a b/c#d", "ä\N{SNOWMAN}", "x" * WRITER_ID_SIZE_BYTES_MAX])
def test_a_writer_id_is_printable_text(writer_id: str) -> None:
    assert checked_writer_id(writer_id) == writer_id


@pytest.mark.parametrize(
    "writer_id",
    ["", "a\n", "\0", "\ud800", "x" * (WRITER_ID_SIZE_BYTES_MAX + 1), "ä" * WRITER_ID_SIZE_BYTES_MAX, 7, None],
)
def test_other_writer_ids_are_refused(writer_id: str) -> None:
    with pytest.raises(InvalidNameError):
        checked_writer_id(writer_id)


def test_a_key_keeps_its_place_for_ever() -> None:
    assert key_place("") == 0x2D06800538D394C2
    assert key_place("customer-3") == 0x08D045402D2F902C
    assert key_place("ä\N{SNOWMAN}") == 0xA234EFAA1AE6B3CD


@given(st.text(max_size=40))
def test_the_place_of_a_key_is_xxh3_of_its_bytes(key: str) -> None:
    assert key_place(key) == xxh3_64(key.encode()).intdigest() < KEY_SPACE


@pytest.mark.parametrize("key", ["\ud800", b"bytes", None])
def test_a_key_that_is_not_text_has_no_place(key: str) -> None:
    with pytest.raises(InvalidNameError, match="routing key"):
        key_place(key)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(names).failed == 0


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
