import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.errors import InvalidNameError
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX, WRITER_ID_SIZE_BYTES_MAX
from millrace.model.names import (
    AFTER_INTERNAL,
    PART_LENGTH_MAX,
    checked_name,
    checked_writer_id,
    internal_name,
    is_internal,
    segment_of_stream,
)
from millrace.wire.limits import NAME_SIZE_BYTES_MAX
from tests.support.tables import table

ALNUM = string.ascii_letters + string.digits
parts = st.builds(str.__add__, st.sampled_from(ALNUM), st.text(ALNUM + "._-", max_size=PART_LENGTH_MAX - 1))


@given(parts, parts)
def test_a_name_is_two_plain_parts(scope: str, name: str) -> None:
    assert checked_name(f"{scope}/{name}", kind="stream") == f"{scope}/{name}"


def test_the_longest_name_fits_the_limit_of_the_protocol() -> None:
    longest = checked_name(f"{'a' * PART_LENGTH_MAX}/{'b' * PART_LENGTH_MAX}", kind="stream")

    assert len(segment_of_stream(longest, epoch=(1 << 32) - 1, index=SEGMENTS_PER_STREAM_MAX)) <= NAME_SIZE_BYTES_MAX


@table(
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


@given(parts, parts)
def test_internal_names_are_before_all_others_and_users_cannot_give_them(scope: str, name: str) -> None:
    """Behaviour 52: internal names cannot be reached from outside."""
    internal, other = internal_name(scope, name), checked_name(f"{scope}/{name}", kind="segment")

    assert is_internal(internal)
    assert not is_internal(other)
    assert not is_internal(segment_of_stream(other, epoch=0, index=0))
    assert internal < AFTER_INTERNAL < other
    with pytest.raises(InvalidNameError, match="internal"):
        checked_name(internal, kind="segment")


@table(("kind", "name"), [("", "a"), ("a", ""), ("#a", "b"), ("a/b", "c"), ("a", "b#c"), ("a", "..")])
def test_the_parts_of_an_internal_name_are_as_of_others(kind: str, name: str) -> None:
    with pytest.raises(InvalidNameError):
        internal_name(kind, name)


@table("writer_id", ["a", "till-7", "a b/c#d", "ä\N{SNOWMAN}", "x" * WRITER_ID_SIZE_BYTES_MAX])
def test_a_writer_id_is_printable_text(writer_id: str) -> None:
    assert checked_writer_id(writer_id) == writer_id


@table(
    "writer_id",
    ["", "a\n", "\0", "\ud800", "x" * (WRITER_ID_SIZE_BYTES_MAX + 1), "ä" * WRITER_ID_SIZE_BYTES_MAX, 7, None],
)
def test_other_writer_ids_are_refused(writer_id: str) -> None:
    with pytest.raises(InvalidNameError):
        checked_writer_id(writer_id)
