import re

import pytest

from millrace.model.checksum import crc32c
from millrace.server.container.checkpoint import schema as checkpoint_tables
from millrace.server.container.checkpoint.schema import ATTRIBUTES, FORMAT, META, PROGRESS, SEGMENTS, TABLES, WRITERS


def test_the_example_of_the_docstring_is_true() -> None:
    text = checkpoint_tables.__doc__ or ""
    example = re.search(r"^ {4}([0-9a-f]{40,})$", text, re.MULTILINE)
    checksum = re.search(r"its checksum is (0x[0-9a-f]{8})", text)
    assert example is not None
    assert checksum is not None
    data = bytes.fromhex(example[1])

    assert [int.from_bytes(data[start : start + 8], "little") for start in (0, 8, 16)] == [7, 2, 1_700_000_000_000_000]
    assert (int.from_bytes(data[48:52], "little"), data[52:]) == (2, b"w1")
    assert crc32c(data, WRITERS.table.number) == int(checksum[1], 16)
    assert WRITERS.table.checksum((7, 2, 1_700_000_000_000_000, 1_700_000_060_000_000, 0, 5_400_000_000, "w1")) == int(
        checksum[1], 16
    )


def test_no_two_tables_share_a_number() -> None:
    numbers = [table.number for table in (FORMAT, META, *TABLES)]
    assert len(set(numbers)) == len(numbers)


def test_borders_between_values_count() -> None:
    assert ATTRIBUTES.checksum((1, "ab", b"c")) != ATTRIBUTES.checksum((1, "a", b"bc"))


@pytest.mark.parametrize(
    "row", [(1, "text", "blob"), (1, b"text", b"blob"), ("1", "text", b"blob"), (1.0, "text", b"")]
)
def test_a_value_of_another_type_has_no_checksum(row: tuple[object, ...]) -> None:
    """SQLite stores any type in any column, so a flipped bit may turn text into a blob of the same bytes."""
    with pytest.raises(Exception, match=r".") as caught:
        ATTRIBUTES.checksum(row)
    assert type(caught.value).__name__ in {"error", "TypeError", "AttributeError"}


def test_rows_know_their_table() -> None:
    assert PROGRESS.columns == ("segment_id", "writer_number", "last_event_number", "last_offset", "checksum")
    assert SEGMENTS.table.create.startswith("CREATE TABLE segments (segment_id INTEGER NOT NULL, ")
