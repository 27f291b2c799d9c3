import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.errors import InvalidArgumentError
from millrace.model.figures import time_text
from millrace.model.quantities import exact_duration, exact_size, parse_bounds, parse_duration, parse_moment, parse_size
from tests.support.tables import table


@table(
    ("text", "size"),
    [
        ("4096", 4096), ("0", 0), ("64k", 65536), ("64KiB", 65536), ("64 kb", 65536), ("10MiB", 10 << 20),
        ("1.5GiB", 3 << 29), ("2T", 2 << 40), ("12b", 12), ("9223372036854775807", (1 << 63) - 1),
        ("9007199254740993", (1 << 53) + 1),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@table("text", ["", "x", "-1", "1 lightyear", "1:2", "ib", "5ib"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a size"):
        parse_size(text)


@table(
    ("text", "duration_s"),
    [
        ("90", 90),
        ("90s", 90),
        ("2 h", 7200),
        ("250ms", 0.25),
        ("1.5m", 90),
        ("2min", 120),
        ("12h", 43200),
        ("7d", 604800),
    ],
)
def test_durations(text: str, duration_s: float) -> None:
    assert parse_duration(text) == duration_s


@given(st.integers(min_value=0, max_value=10**15))
def test_a_size_as_it_is_shown_is_read_again(size: int) -> None:
    assert parse_size(exact_size(size)) == size


@given(st.one_of(st.integers(0, 10**9), st.floats(min_value=1e-6, max_value=1e9)))
def test_a_duration_as_it_is_shown_is_read_again(duration_s: float) -> None:
    assert parse_duration(exact_duration(duration_s)) == pytest.approx(duration_s, abs=1e-15)


def test_quantities_are_shown_with_the_largest_unit_that_fits() -> None:
    assert [exact_size(size) for size in (0, 1000, 4096, 17 << 20, 3 << 29)] == [
        "0 B", "1000 B", "4 KiB", "17 MiB", "1536 MiB",
    ]  # fmt: skip
    assert [exact_duration(duration_s) for duration_s in (0, 0.25, 1.0, 90, 7200, 30 * 86400)] == [
        "0 s", "0.25 s", "1 s", "90 s", "2 h", "30 d",
    ]  # fmt: skip


@table("text", ["", "soon", "7 years", "-3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a duration"):
        parse_duration(text)


@table(
    ("text", "bounds"),
    [("1k:2k", ("1k", "2k")), ("2k", (None, "2k")), (":2k", (None, "2k")), ("1k:", ("1k", None)), ("", (None, None))],
)
def test_bounds(text: str, bounds: tuple[str | None, str | None]) -> None:
    assert parse_bounds(text, str) == bounds


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=4_000_000_000_000))
def test_a_time_as_it_is_shown_is_read_again(unix_ms: int) -> None:
    assert parse_moment(time_text(unix_ms * 1000)) == unix_ms * 1000


def test_a_time_without_a_zone_is_one_of_utc() -> None:
    assert parse_moment("2026-01-31T18:00:00+01:00") == parse_moment("2026-01-31T17:00:00Z")
    assert parse_moment("2026-01-31T17:00:00") == parse_moment("2026-01-31T17:00:00Z")
    assert parse_moment("2026-01-31") == parse_moment("2026-01-31T00:00:00Z")


@table("text", ["", "yesterday", "long ago", "15m ago"])
def test_what_names_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_moment(text)
