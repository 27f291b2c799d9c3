import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.key_text import escape_keys, unescape_key
from tests.support.tables import table

KEYS = st.lists(st.none() | st.text("\\\t\n\rtnre ä", max_size=6), min_size=1, max_size=5)


@given(KEYS)
def test_keys_are_read_back_and_fit_a_line(keys: list[str | None]) -> None:
    texts = escape_keys(pa.array(keys, pa.string())).fill_null("").to_pylist()

    assert [unescape_key(text) for text in texts] == keys
    assert not any(mark in text for text in texts for mark in "\t\n\r")


def test_the_escapes_are_the_documented_ones() -> None:
    assert escape_keys(pa.array(["a\tb\\c\n\r", "", "plain"])).to_pylist() == [r"a\tb\\c\n\r", r"\e", "plain"]


@table("text", ["\\", "a\\b", "\\\\\\"])
def test_what_escapes_nothing_is_refused_with_what_does(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a valid escape in a key: use ") as refused:
        unescape_key(text)
    for escape in str(refused.value).partition(": use ")[2].split(", "):
        assert unescape_key(escape) is not None
