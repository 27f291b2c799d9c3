import datetime as dt
import decimal
import json

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from millrace.client.values.json_decoder import JOINED_SIZE_BYTES
from millrace.spark_source.values import JsonDecoder, ValueFormat, arrow_fields
from millrace.spark_source.values.json_encoder import encode_json
from tests.spark_source.values.rows import batches
from tests.support.examples import examples
from tests.support.tables import table


def decoder(ddl: t.StructType) -> JsonDecoder:
    return JsonDecoder(arrow_fields(ddl.fields, ValueFormat.JSON))


A_LONG = t.StructType([t.StructField("a", t.LongType())])
A_TEXT = t.StructType([t.StructField("a", t.StringType())])


def decoded(schema: t.StructType, *values: bytes) -> tuple[list[dict[str, object]], list[int], list[str]]:
    """Return rows, the numbers of their values, and what is malformed."""
    rows: list[dict[str, object]] = []
    events: list[int] = []
    malformed: list[str] = []
    for part in decoder(schema).decode(pa.array(values, pa.binary())):
        part.columns.validate(full=True)
        assert len(part.columns) == len(part.events) == len(part.rows)
        assert not part.rows.any()
        rows += part.columns.to_pylist()
        events += part.events.tolist()
        malformed += [f"{bad.number}: {bad}" for bad in part.malformed]
    return rows, events, malformed


@settings(max_examples=examples(50))
@given(batches(ValueFormat.JSON))
def test_what_was_encoded_is_decoded_as_the_same_rows(given_rows: tuple[t.StructType, pa.RecordBatch]) -> None:
    """Behaviour 54: a schema read back equals what was written, for all types, nulls and nested ones included."""
    schema, batch = given_rows
    parts = list(decoder(schema).decode(encode_json(batch).cast(pa.binary())))

    assert len(parts) == min(len(batch), 1)
    assert all(part.malformed == () and part.columns.schema.equals(batch.schema) for part in parts)
    assert [row for part in parts for row in part.columns.to_pylist()] == batch.to_pylist()


def test_types_are_read_as_documented() -> None:
    schema = t.StructType(
        [
            t.StructField("b", t.BooleanType()),
            t.StructField("d", t.DecimalType(10, 2)),
            t.StructField("x", t.BinaryType()),
            t.StructField("on", t.DateType()),
            t.StructField("at", t.TimestampType()),
            t.StructField("local", t.TimestampNTZType()),
            t.StructField("s", t.StructType([t.StructField("n", t.ArrayType(t.IntegerType()))])),
        ]
    )
    rows, events, malformed = decoded(
        schema,
        b'{"b": true, "d": "1.5", "x": "AQI=", "on": "2026-01-31", "at": "2026-01-31T18:00:00.5+01:00",'
        b' "local": "2026-01-31T18:00:00", "s": {"n": [1, null], "m": {}}, "other": [{"any": null}]}',
        b'{"at": "2026-01-31T18:00:00", "d": 2}',
    )

    assert (events, malformed) == ([0, 1], [])
    assert rows[0] == {
        "b": True,
        "d": decimal.Decimal("1.50"),
        "x": b"\1\2",
        "on": dt.date(2026, 1, 31),
        "at": dt.datetime(2026, 1, 31, 17, 0, 0, 500_000, tzinfo=dt.UTC),
        "local": dt.datetime(2026, 1, 31, 18),  # noqa: DTZ001 - a local time has no zone
        "s": {"n": [1, None]},
    }
    assert rows[1]["at"] == dt.datetime(2026, 1, 31, 18, tzinfo=dt.UTC)
    assert rows[1]["d"] == 2
    assert rows[1]["s"] is None


@table(
    ("value", "reason"),
    [
        (b"", "is no JSON object"),
        (b"  ", "is no JSON object"),
        (b"null", "is no JSON object"),
        (b"[1]", "is no JSON object"),
        (b"7", "is no JSON object"),
        (b"\xef\xbb\xbf{}", "is no JSON object"),
        (b'{"a":1', "is no JSON object"),
        (b"\xff{}", "is not UTF-8"),
        (b'{"a":1}\0{}', "has a zero byte"),
        (b"{}{}", "is more than one JSON object"),
        (b"{}null{}", "is more than one JSON object"),
        (b'{"a":1}}', "The document is empty"),
        (b'{"b":{}', "Missing a comma or '}' after an object member"),
        (b'{"a":"}', "Invalid encoding in string"),
        (b'{"a":1,}', "Missing a name for object member"),
        (b'{"a":1.5}', "Failed to convert JSON to int64, couldn't parse:1.5"),
        (b'{"a":9223372036854775808}', "Failed to convert JSON to int64"),
        (b'{"a":"1"}', "Column(/a) changed from number to string"),
        (b'{"a":1,"a":1}', "Column(/a) was specified twice"),
        (b"{" * 100_000 + b"}" * 100_000, "Missing a name for object member"),
    ],
)
@table("place", [0, 1, 2])
def test_a_malformed_value_stands_alone(value: bytes, reason: str, place: int) -> None:
    """Whatever is beside it, also what completes it."""
    values = [b'{"a":1}', b'{"a":2}', b'{"a":3}']
    values.insert(place, value)
    rows, events, malformed = decoded(A_LONG, *values)

    assert rows == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert events == [number for number in range(4) if number != place]
    (text,) = malformed
    assert text.startswith(f"{place}: {reason}")
    assert "in row" not in text


def test_a_required_field_that_is_missing_is_malformed() -> None:
    inner = t.StructType([t.StructField("n", t.LongType(), nullable=False)])
    schema = t.StructType(
        [
            t.StructField("id", t.LongType(), nullable=False),
            t.StructField("s", inner),
            t.StructField("l", t.ArrayType(t.LongType(), containsNull=False)),
        ]
    )
    rows, events, malformed = decoded(
        schema, b'{"id":1}', b"{}", b'{"id":2,"s":{}}', b'{"id":3,"s":{"n":3},"l":[3]}', b'{"id":4,"l":[null]}'
    )

    assert [row["id"] for row in rows] == [1, 3]
    assert events == [0, 3]
    wanted = "has no value, and the schema says that it always has one"
    assert malformed == [f'1: column "id" {wanted}', f'2: column "s.n" {wanted}', f'4: column "l.element" {wanted}']


def test_blanks_around_a_value_and_lines_within_are_taken() -> None:
    assert decoded(A_LONG, b' {"a":1}\n', b'{\n  "a": 2\n}\r\n', b'{"a":3}')[0] == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_a_binary_value_that_is_no_base64_is_malformed() -> None:
    schema = t.StructType([t.StructField("a", t.BinaryType())])
    values = [b'{"a":"AQI="}', b'{"a":"AQ"}', b'{"a":"=QI="}', b'{"a":"A_I="}', b'{"a":""}']
    rows, events, malformed = decoded(schema, *values)

    assert ([row["a"] for row in rows], events) == ([b"\1\2", b""], [0, 4])
    assert all("no base64" in text for text in malformed)
    assert len(malformed) == 3


def test_many_values_are_read_in_groups_of_bounded_size() -> None:
    values = [json.dumps({"a": "x" * (1 << 20)}).encode()] * 40
    parts = list(decoder(A_TEXT).decode(pa.array(values, pa.binary())))

    assert [len(part.events) for part in parts] == [15, 15, 10]
    assert [number for part in parts for number in part.events.tolist()] == list(range(40))
    assert JOINED_SIZE_BYTES == 16 << 20


def test_the_first_malformed_value_is_the_last_one_that_is_looked_at() -> None:
    """Where one is enough to fail, all of the wrong kind are no reason to try each."""
    schema = arrow_fields(A_LONG.fields, ValueFormat.JSON)
    values = pa.array([b'{"a":1}', b'{"a":2}', *[b"tea"] * 1000], pa.binary())
    (part,) = JsonDecoder(schema, ends_at_first=True).decode(values)

    assert [bad.number for bad in part.malformed] == [2]
    assert part.columns.to_pylist() == [{"a": 1}, {"a": 2}]
    large = pa.array([b"tea", b'{"a":1}'.ljust(JOINED_SIZE_BYTES), b"tea"], pa.binary())
    parts = list(JsonDecoder(schema, ends_at_first=True).decode(large))
    assert [[bad.number for bad in part.malformed] for part in parts] == [[0]]


PIECES = st.sampled_from(
    [b"{", b"}", b'{"a":', b'"', b"1", b",", b"[", b"]", b"\n", b"\0", b"null", b'{"a":1}', b"{}", b"\\", b"\xff", b" "]
)


@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=6))
@example([b'{"a":"', b'"}{"a":2}', b"{}{}"])
@example([b"{}{}", b'{}\0{"a":1}', b'{"a":3}'])
def test_each_row_is_of_its_own_value_alone(values: list[bytes]) -> None:
    """However values are cut: what is decoded together is what each decodes to alone."""
    rows, events, malformed = decoded(A_LONG, *values)
    alone = [decoded(A_LONG, value) for value in values]

    assert rows == [row for found, _, _ in alone for row in found]
    assert events == [number for number, (found, _, _) in enumerate(alone) if found]
    assert len(rows) + len(malformed) == len(values)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_bytes_of_a_stranger_raise_nothing(values: list[bytes]) -> None:
    rows, _, malformed = decoded(A_LONG, *values)

    assert len(rows) + len(malformed) == len(values)
