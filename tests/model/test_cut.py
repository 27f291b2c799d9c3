import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace
from millrace.model.cut import (
    HEAD,
    TAIL,
    PastCut,
    SavedKind,
    SavedPlace,
    StreamCut,
    TimeCut,
    chosen,
    chosen_time,
    parse_choice,
    parse_cut,
)
from millrace.model.errors import CutInvalidError, InvalidArgumentError
from tests.support.tables import table

PLACES = st.dictionaries(
    st.integers(1, 2**64 - 1),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)),
    min_size=1,
    max_size=5,
)


@given(PLACES)
def test_a_cut_is_read_back_from_its_text(places: dict[int, tuple[int, int]]) -> None:
    """Behaviour 26: `str` and back."""
    cut = StreamCut.of("shop/orders", places)

    assert parse_cut(str(cut)) == cut
    assert cut.places == places
    assert pickle.loads(pickle.dumps(cut)) == cut
    assert hash(StreamCut.of("shop/orders", dict(reversed(places.items())))) == hash(cut)


def test_the_text_is_the_documented_one() -> None:
    assert str(StreamCut.of("shop/orders", {13: (8192, 17), 12: (4096, 0)})) == "shop/orders@12:4096.0,13:8192.17"


@table("text", ["head", " HEAD ", "Tail", "tail"])
def test_special_cuts_are_read_back(text: str) -> None:
    assert str(parse_cut(text)) == text.strip().lower()
    assert parse_cut("head") is HEAD is millrace.HEAD
    assert parse_cut("tail") is TAIL is millrace.TAIL


@table(
    "text",
    ["", "x", "a/b@", "a/b@1", "a/b@1:2", "a/b@1:2.3,", "a/b@1:2.3,1:2.3", "a@1:2.3", "a/b@-1:2.3",
     "a/b@1:2.99999999999", "a/b@0:0.0", "a/b@1:2.3.4", "../b@1:2.3", "a/b@1:99999999999999999999.0", "a/b@\u0661:2.3"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(CutInvalidError):
        parse_cut(text)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_cut_at_a_time_is_read_back_from_its_text(unix_us: int) -> None:
    """Behaviour 26."""
    assert parse_choice(str(TimeCut(unix_us))) == TimeCut(unix_us)
    assert parse_choice(str(unix_us)) == TimeCut(unix_us)


def test_what_may_be_chosen_is_a_cut_or_a_time() -> None:
    moment = datetime(2026, 1, 31, 18, tzinfo=UTC)
    assert str(TimeCut.at(moment)) == "2026-01-31T18:00:00Z"
    assert parse_choice("2026-01-31 19:00:00.000001+01:00") == TimeCut.at(moment + timedelta(microseconds=1))
    assert TimeCut.at(moment.astimezone(timezone(timedelta(hours=5)))) == TimeCut.at(moment)
    assert TimeCut.at(17) == TimeCut(17)
    assert parse_choice(" Head ") is HEAD
    assert parse_choice("a/b@1:2.3") == StreamCut.of("a/b", {1: (2, 3)})
    for wrong in ("", "yesterday", "a/b@", "99999999999999999999", "soon ago", "-3s ago", "bookmark:", "cursor: "):
        with pytest.raises(InvalidArgumentError):
            parse_choice(wrong)


def test_a_time_without_a_zone_is_one_of_utc() -> None:
    moment = datetime(2026, 1, 31, 18, tzinfo=UTC)
    assert TimeCut.at(moment.replace(tzinfo=None)) == TimeCut.at(moment)
    assert TimeCut.at(moment.date()) == TimeCut.at(moment.replace(hour=0))
    assert parse_choice("2026-01-31T18:00:00") == parse_choice("2026-01-31T18:00:00Z")
    assert parse_choice("2026-01-31") == parse_choice("2026-01-31T01:00:00+01:00")


@given(st.integers(0, 2**51))
def test_a_time_ago_is_read_back_from_its_text(age_us: int) -> None:
    assert parse_choice(str(PastCut(age_us))) == PastCut(age_us)


def test_a_time_may_be_given_from_the_moment_of_its_use() -> None:
    assert parse_choice("15m ago") == parse_choice(" 900 s  AGO ") == PastCut(900_000_000)
    assert PastCut(900_000_000).at(1_000_000_000) == TimeCut(100_000_000)


def test_a_place_may_be_one_that_the_server_keeps_under_a_name() -> None:
    assert parse_choice("bookmark:before the sale") == SavedPlace(SavedKind.BOOKMARK, "before the sale")
    assert parse_choice("Cursor:a/b@1:2.3") == SavedPlace(SavedKind.CURSOR, "a/b@1:2.3")
    assert str(parse_choice("cursor:billing")) == "cursor:billing"


def test_what_is_no_place_is_refused() -> None:
    for wrong in (None, True, 1.5, b"head", timedelta(minutes=-15)):
        with pytest.raises(InvalidArgumentError):
            chosen(wrong)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidArgumentError, match="is not a time: write"):
        chosen_time("bookmark:today")
