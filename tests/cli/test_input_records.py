import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.input_records import InputRecords
from millrace.cli.key_fields import key_reader
from millrace.model.limits import EVENT_SIZE_BYTES_MAX

FIELDS = st.text(st.sampled_from('a,"\n\r x'), min_size=1, max_size=9)


def records_of(data: bytes, *, piece_bytes: int = 7) -> tuple[list[tuple[int, bytes]], str]:
    records = InputRecords(can_be_csv=True)
    found: list[tuple[int, bytes]] = []
    for start in range(0, len(data) + piece_bytes, piece_bytes):
        lines = records.feed(data[start : start + piece_bytes])
        found += zip(lines.numbers, lines.lines, strict=True)
    records.feed(b"")
    return found, str(records.failure or "")


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=3), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_records_that_csv_writes_are_read_back(rows: list[list[str]], line_end: str) -> None:
    """Behaviour 107: whatever the fields hold, quotes and line ends too."""
    written = io.StringIO(newline="")
    # The first quotes every field: Python quotes a carriage return only if it may end a line.
    dialect = csv.unix_dialect if line_end == "\n" else csv.excel
    csv.writer(written, dialect).writerows([["k", "v"], *rows])
    lines = written.getvalue().encode()

    found, failure = records_of(lines)

    assert failure == ""
    assert [key_reader("2", record)[0](record) for _, record in found[1:]] == [row[1] for row in rows]
    assert found[-1][0] == lines.count(b"\n")


def test_a_record_has_the_number_of_its_last_line_and_keeps_empty_lines_inside() -> None:
    found, _ = records_of(b'id,text\n\n1,"two\r\n\r\nlines"\r\n2,x\n')

    assert found == [(1, b"id,text"), (5, b'1,"two\r\n\r\nlines"'), (6, b"2,x")]


def test_a_quote_that_is_not_closed_is_refused_with_its_line() -> None:
    found, failure = records_of(b'id,text\n1,"open\n2,x\n')

    assert found == [(1, b"id,text")]
    assert failure == "line 2 has a quoted field that is not closed before the input ends"


def test_a_quoted_field_that_never_ends_does_not_fill_the_memory() -> None:
    line = b"x" * (1 << 20) + b"\n"
    records = InputRecords(can_be_csv=True)
    records.feed(b'id\n"')
    count = 0
    while records.failure is None and count < 20:
        records.feed(line)
        count += 1

    assert count == EVENT_SIZE_BYTES_MAX // len(line) + 1
    assert "line 2 has a quoted field that is not closed within 8.0 MiB" in str(records.failure)


@pytest.mark.parametrize("data", [b'{"k": "a"}\n{"k": "\\"b"}\n', b'\n {"k": 1}\n"\n'])
def test_quotes_join_no_lines_of_json(data: bytes) -> None:
    assert [line for _, line in records_of(data)[0]] == [line for line in data.split(b"\n") if line]
