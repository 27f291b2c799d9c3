import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace
from millrace.model.cut import HEAD, TAIL, StreamCut, parse_cut
from millrace.model.errors import CutInvalidError

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
