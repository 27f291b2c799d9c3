import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.spark_source.sink.rows import ROWS_COUNT, batches_of_rows

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("key", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", MapType(StringType(), BinaryType())),
    ]
)
MADE = Row(*SCHEMA.names)


@pytest.fixture
def new_york() -> Iterator[None]:
    """The zone of the process, in which Spark hands out timestamps."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_rows_become_columns() -> None:
    rows = [
        MADE(b"1", "k", datetime(2026, 1, 2, 3, 4, 5, 6), {"a": b"x"}),  # noqa: DTZ001 - as Spark hands it out
        MADE(bytearray(b"2"), None, None, None),
    ]
    (batch,) = batches_of_rows(rows, SCHEMA)

    assert batch.to_pydict() == {
        "value": [b"1", b"2"],
        "key": ["k", None],
        "timestamp": [datetime(2026, 1, 2, 8, 4, 5, 6, tzinfo=UTC), None],
        "headers": [[("a", b"x")], None],
    }


@pytest.mark.usefixtures("new_york")
def test_rows_within_rows_become_columns() -> None:
    inner = StructType([StructField("at", TimestampType()), StructField("n", LongType())])
    schema = StructType(
        [
            StructField("one", inner),
            StructField("many", ArrayType(inner)),
            StructField("by_name", MapType(StringType(), inner)),
        ]
    )
    moment = datetime(2026, 1, 2, 3)  # noqa: DTZ001 - as Spark hands it out
    given = Row("at", "n")(moment, 7)
    row = Row(*schema.names)
    rows = [row(given, [given, None], {"a": given, "b": None}), row(None, None, None)]
    (batch,) = batches_of_rows(rows, schema)

    found = {"at": datetime(2026, 1, 2, 8, tzinfo=UTC), "n": 7}
    assert batch.to_pydict() == {
        "one": [found, None],
        "many": [[found, None], None],
        "by_name": [[("a", found), ("b", None)], None],
    }


def test_many_rows_are_many_batches() -> None:
    rows = (MADE(b"%d" % number, None, None, None) for number in range(2 * ROWS_COUNT + 1))
    batches = list(batches_of_rows(rows, SCHEMA))

    assert [len(batch) for batch in batches] == [ROWS_COUNT, ROWS_COUNT, 1]
    assert batches[2].column("value").to_pylist() == [b"%d" % (2 * ROWS_COUNT)]


def test_no_rows_are_no_batch() -> None:
    assert list(batches_of_rows([], SCHEMA)) == []
