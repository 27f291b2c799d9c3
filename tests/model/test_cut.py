import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace
from millrace.model.cut import HEAD, TAIL, StreamCut, TimeCut, parse_choice, parse_cut
from millrace.model.errors import CutInvalidError, InvalidArgumentError

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


@pytest.mark.parametrize("text", ["head", " HEAD ", "Tail", "tail"])
def test_special_cuts_are_read_back(text: str) -> None:
    assert str(parse_cut(text)) == text.strip().lower()
    assert parse_cut("head") is HEAD is millrace.HEAD
    assert parse_cut("tail") is TAIL is millrace.TAIL


@pytest.mark.parametrize(
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
    for wrong in ("", "yesterday", "2026-01-31T18:00:00", "a/b@", "99999999999999999999"):
        with pytest.raises(InvalidArgumentError):
            parse_choice(wrong)
    with pytest.raises(InvalidArgumentError):
        TimeCut.at(datetime(2030, 1, 1))  # noqa: DTZ001  # without a zone on purpose
