import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.cut import HEAD, TAIL, PastCut, SavedKind, SavedPlace, StreamCut, TimeCut
from millrace.model.errors import CutInvalidError, InvalidArgumentError, InvalidNameError
from millrace.model.slice import Slice, is_slice
from tests.support.tables import table

CUTS = st.one_of(
    st.sampled_from([HEAD, TAIL]),
    st.integers(-(2**63), 2**63 - 1).map(TimeCut),
    st.integers(0, 2**51).map(PastCut),
    st.builds(SavedPlace, st.sampled_from(SavedKind), st.text("ab .#%2@:ä", min_size=1)),
    st.dictionaries(st.integers(1, 2**64 - 1), st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 9)), min_size=1).map(
        lambda places: StreamCut.of("shop/orders", places)
    ),
)


@given(CUTS, st.none() | CUTS, st.none() | st.text())
def test_a_slice_is_read_back_from_its_text(start: StreamCut, end: StreamCut | None, key: str | None) -> None:
    part = Slice("shop/orders", start, end, key)

    assert Slice.parse(str(part)) == part
    assert is_slice(str(part))
    assert pickle.loads(pickle.dumps(part)) == part


def test_the_text_is_the_documented_one() -> None:
    cut = StreamCut.of("shop/orders", {13: (8192, 17), 12: (4096, 0)})
    assert str(Slice("shop/orders")) == "shop/orders@head..tail"
    assert str(Slice("shop/orders", cut, None, "a#b..c")) == "shop/orders@12:4096.0,13:8192.17..#a#b..c"
    assert Slice.parse("a/b@2026-01-31T18:00:00.5+01:00..TAIL#") == Slice("a/b", TimeCut(1769878800500000), TAIL, "")
    assert Slice.parse("a/b@bookmark:old..15m ago") == Slice(
        "a/b", SavedPlace(SavedKind.BOOKMARK, "old"), PastCut(900_000_000)
    )
    strange = SavedPlace(SavedKind.CURSOR, "a..head#k 50%.")
    assert str(Slice("a/b", strange)) == "a/b@cursor:a%2E%2Ehead%23k 50%25%2E..tail"
    assert Slice.parse("a/b@cursor:v1.2..bookmark:50%") == Slice(
        "a/b", SavedPlace(SavedKind.CURSOR, "v1.2"), SavedPlace(SavedKind.BOOKMARK, "50%")
    )
    assert not is_slice("shop/orders")
    assert not is_slice(str(cut))


@table(
    "text", ["", "a/b", "a/b@", "a/b@head", "a/b@..tail", "b@head..tail", "a/b@head..x", "a/b@1:2..tail", "@head..tail"]
)
def test_what_is_no_slice_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Slice.parse(text)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(CutInvalidError):
        Slice("a/b", StreamCut.of("a/c", {1: (0, 0)}))
    with pytest.raises(InvalidNameError):
        Slice("a/b", key="\ud800")
    with pytest.raises(InvalidNameError):
        Slice("../b")
