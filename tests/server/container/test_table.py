import re

import pytest

from millrace.model.checksum import crc32c
from millrace.model.key_range import KeyRange
from millrace.server.container import table as table_module
from millrace.server.container.checkpoint.segment_tables import ATTRIBUTES, PROGRESS, SEGMENTS
from millrace.server.container.table import places_of_texts, range_of_texts, range_texts
from millrace.server.kinds.writers import WRITERS
from tests.support.tables import table


def test_the_example_of_the_docstring_is_true() -> None:
    text = table_module.__doc__ or ""
    example = re.search(r"^ {4}([0-9a-f]{40,})$", text, re.MULTILINE)
    checksum = re.search(r"its checksum is (0x[0-9a-f]{8})", text)
    assert example is not None
    assert checksum is not None
    data = bytes.fromhex(example[1])

    assert [int.from_bytes(data[start : start + 8], "little") for start in (0, 8, 16)] == [7, 2, 1_700_000_000_000_000]
    assert (int.from_bytes(data[48:52], "little"), data[52:54], data[54:]) == (2, b"w1", bytes(4))
    assert crc32c(data, WRITERS.table.number) == int(checksum[1], 16)
    row = (7, 2, 1_700_000_000_000_000, 1_700_000_060_000_000, 0, 5_400_000_000, "w1", b"")
    assert len(row) == len(WRITERS.table.columns) - 1
    assert WRITERS.table.checksum(row) == int(checksum[1], 16)


def test_borders_between_values_count() -> None:
    assert ATTRIBUTES.checksum((1, "ab", b"c")) != ATTRIBUTES.checksum((1, "a", b"bc"))


@table("row", [(1, "text", "blob"), (1, b"text", b"blob"), ("1", "text", b"blob"), (1.0, "text", b"")])
def test_a_value_of_another_type_has_no_checksum(row: tuple[object, ...]) -> None:
    """SQLite stores any type in any column, so a flipped bit may turn text into a blob of the same bytes."""
    with pytest.raises(Exception, match=r".") as caught:
        ATTRIBUTES.checksum(row)
    assert type(caught.value).__name__ in {"error", "TypeError", "AttributeError"}


def test_rows_know_their_table() -> None:
    assert PROGRESS.columns == ("segment_id", "writer_number", "last_event_number", "last_offset", "checksum")
    assert SEGMENTS.table.create.startswith("CREATE TABLE segments (segment_id INTEGER NOT NULL, ")


@table(("low", "last"), [(0, 0), (0, 2**64 - 1), (2**63, 2**64 - 1)])
def test_key_ranges_use_all_64_bits(low: int, last: int) -> None:
    texts = range_texts(low, last)

    assert [len(text) for text in texts] == [16, 16]
    assert places_of_texts(*texts) == (low, last)
    assert range_of_texts(*texts) == KeyRange.inclusive(low, last)
