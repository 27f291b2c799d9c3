import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.key_fields import KeyFieldError, key_reader
from tests.support.tables import table

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1, max_size=20)


def test_a_field_of_json_lines_is_the_key() -> None:
    key_of, is_header = key_reader("till", b'{"till": "a"}')

    assert not is_header
    assert key_of(b'{"amount": 3, "till": "b"}') == "b"


def test_a_value_of_json_that_is_no_text_is_written_as_json() -> None:
    key_of, _ = key_reader("k", b"{}")

    assert key_of(b'{"k": 7}') == "7"
    assert key_of(b'{"k": {"b": 1, "a": [true]}}') == '{"a":[true],"b":1}'


def test_a_column_is_named_by_the_header() -> None:
    key_of, is_header = key_reader("till", b"amount,till")

    assert is_header
    assert key_of(b'3,"b, or c"') == "b, or c"


def test_a_column_is_counted_from_1() -> None:
    key_of, is_header = key_reader("2", b"3,b")

    assert not is_header
    assert key_of(b"3,b") == "b"


@table(
    ("field", "first_line", "line"),
    [
        ("k", b"{}", b"{}"),
        ("k", b"{}", b'{"k": null}'),
        ("k", b"{}", b"[1]"),
        ("k", b"{}", b"{"),
        ("3", b"a,b", b"a,b"),
        ("0", b"a,b", b"a,b"),
        ("c", b"a,b", b"1,2"),
        ("1", b"\xff", b"\xff"),
        ("k", b"{}", rb'{"k": "\ud800"}'),
        ("1", b"a", b'"a"b'),
        ("1", b"a", b'"a'),
        ("2", b"a", b'1, "a"'),
        ("1", b"a", b"a\rb"),
        ("1", b"a", b"a\0b"),
        ("k", b'"a', b""),
        ("k", b"k,k", b""),
    ],
)
def test_a_line_without_the_field_is_refused(field: str, first_line: bytes, line: bytes) -> None:
    with pytest.raises(KeyFieldError):
        key_reader(field, first_line)[0](line)


def test_a_field_may_be_long_and_have_quotes_inside() -> None:
    """Behaviour 107: above the 131,072 characters of Python's `csv`, too."""
    long = "x" * 200_000
    key_of, _ = key_reader("2", b"a")

    assert key_of(f'1,"{long}"'.encode()) == long
    assert key_of(b'7" pipe,5" pipe') == '5" pipe'
    assert key_of(b'"",""""') == '"'


@given(st.lists(WORDS, min_size=1, max_size=5), st.data())
def test_any_column_that_csv_writes_is_read_back(values: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(values) - 1))
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(values)

    key_of, _ = key_reader(str(index + 1), b"a")

    assert key_of(written.getvalue().encode()) == values[index]


@given(st.dictionaries(WORDS, WORDS, min_size=1), st.data())
def test_any_field_that_json_writes_is_read_back(content: dict[str, str], data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(content)))

    key_of, _ = key_reader(field, b"{}")

    assert key_of(json.dumps(content).encode()) == content[field]
