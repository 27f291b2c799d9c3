import datetime as dt
import math
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from millrace.client.write.arrow import events_of
from millrace.model.limits import APPEND_SIZE_BYTES_MAX, EVENT_SIZE_BYTES_MAX, ROUTING_KEY_SIZE_BYTES_MAX
from millrace.spark_source.values import ValueEncoder, ValueFormat
from millrace.spark_source.values.dead_letters import KEPT_SIZE_BYTES, RefusedRows, dead_letters, split_refused
from tests.support.tables import table

MOMENT = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
        pa.field("stream", pa.string()),
    ]
)


def check(events: pa.RecordBatch) -> None:
    """Check events as a writer does."""
    given = events.select([name for name in events.schema.names if name != "stream"])
    events_of(given, now_us=0, append_size_max=APPEND_SIZE_BYTES_MAX, size_bytes_max=1 << 30)


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    plain: dict[str, Any] = {"value": b"v", "key": None, "timestamp": MOMENT, "headers": [], "stream": None}
    return pa.RecordBatch.from_pylist([plain | row for row in rows], schema=SCHEMA)


def letters_of(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the dead letters of rows, all of which are refused."""
    good, refused = split_refused(batch_of(*rows), check)
    assert good == []
    letters = dead_letters(refused, stream="shop/cooked", batch="cook/7")
    check(letters)
    return [{**letter, "headers": dict(letter["headers"])} for letter in letters.to_pylist()]


def test_a_batch_is_split_into_events_and_what_cannot_be_one() -> None:
    events = batch_of({"value": b"a"}, {"value": None}, {"value": b"b"}, {"key": "k" * (1 << 17)}, {"value": b"c"})
    good, refused = split_refused(events, check)

    assert [value for part in good for value in part.column("value").to_pylist()] == [b"a", b"b", b"c"]
    assert [row.number for row in refused.reasons] == [1, 3]
    assert str(refused.reasons[0]) == 'column "value" has 1 nulls: an event is bytes, which may be empty'
    assert "routing key" in str(refused.reasons[1])
    assert refused.events.column("value").to_pylist() == [None, b"v"]


def test_a_good_batch_is_checked_once_and_passed_on() -> None:
    events = batch_of({}, {})
    checked: list[pa.RecordBatch] = []
    good, refused = split_refused(events, checked.append)

    assert (good, refused.reasons, len(checked)) == ([events], (), 1)
    assert len(dead_letters(refused, stream="s/t", batch="b")) == 0
    assert split_refused(batch_of(), check)[0] == []


def test_a_letter_says_why_and_keeps_what_can_be_kept() -> None:
    (letter,) = letters_of({"value": None, "key": "k", "headers": [("h", b"x")]})

    assert letter == {
        "value": b"",
        "key": "k",
        "timestamp": MOMENT,
        "headers": {
            "h": b"x",
            "dead-letter-error": b'column "value" has 1 nulls: an event is bytes, which may be empty',
            "dead-letter-stream": b"shop/cooked",
            "dead-letter-batch": b"cook/7",
        },
    }


def test_a_row_says_its_stream_itself() -> None:
    (letter,) = letters_of({"value": None, "stream": "shop/other"})

    assert letter["headers"]["dead-letter-stream"] == b"shop/other"


def test_of_a_value_that_is_too_large_the_first_part_is_kept() -> None:
    (letter,) = letters_of({"value": b"ab" * (EVENT_SIZE_BYTES_MAX // 2 + 1)})

    assert letter["value"] == b"ab" * (KEPT_SIZE_BYTES // 2)
    assert letter["headers"]["dead-letter-size"] == b"%d" % (EVENT_SIZE_BYTES_MAX + 2)
    assert b"at most" in letter["headers"]["dead-letter-error"]


@table(
    ("row", "reason"),
    [
        ({"key": "k" * (ROUTING_KEY_SIZE_BYTES_MAX + 1)}, b"routing key"),
        ({"headers": [(f"h{number}", b"") for number in range(65)]}, b"headers"),
        ({"headers": [("h", bytes(1 << 17))]}, b"headers"),
        ({"headers": [("h", b""), ("h", b"")]}, b'column "headers" has a name twice'),
        ({"headers": [("h", None)]}, b'column "headers" has 1 null values'),
    ],
)
def test_what_can_be_no_key_or_header_is_left_out(row: dict[str, Any], reason: bytes) -> None:
    (letter,) = letters_of(row)

    assert letter["value"] == b"v"
    assert letter["key"] is None
    assert reason in letter["headers"].pop("dead-letter-error")
    assert letter["headers"].keys() <= {"h", "dead-letter-stream", "dead-letter-batch"}


def test_a_key_that_is_not_utf_8_is_left_out() -> None:
    """Spark lets a column of text hold any bytes."""
    keys = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    _, refused = split_refused(batch_of({}).set_column(1, "key", keys), check)
    (letter,) = dead_letters(refused, stream="s/t", batch="b").to_pylist()

    assert letter["key"] is None
    assert b'column "key" is not valid' in dict(letter["headers"])["dead-letter-error"]


def test_a_row_without_a_form_is_kept_as_arrow() -> None:
    schema = t.StructType([t.StructField("a", t.DoubleType()), t.StructField("_key", t.StringType())])
    rows = pa.RecordBatch.from_pydict({"a": [1.0, math.nan], "_key": ["x", "y"]})
    (encoded,) = ValueEncoder(schema, value_format=ValueFormat.JSON).encode(rows)
    letters = dead_letters(RefusedRows.by_encoder(encoded), stream="s/t", batch="b")
    check(letters)
    (letter,) = letters.to_pylist()

    assert letter["key"] == "y"
    assert math.isnan(pa.ipc.open_stream(letter["value"]).read_all().column("a")[0].as_py())
    assert dict(letter["headers"])["dead-letter-format"] == b"arrow"
