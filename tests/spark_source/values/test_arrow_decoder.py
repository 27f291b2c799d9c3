import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from millrace.spark_source.values import ArrowDecoder, ValueFormat, arrow_fields
from millrace.spark_source.values.arrow_decoder import EVENT_ROWS_COUNT_MAX, GATHERED_ROWS_COUNT
from millrace.spark_source.values.arrow_encoder import encode_arrow
from tests.spark_source.values.rows import batches
from tests.support.tables import table

INVALID_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
OUTSIDE_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(np.array([0, 1 << 20, 3], dtype=np.int32)), pa.py_buffer(b"abc")]
)
SCHEMA = t.StructType([t.StructField("a", t.LongType()), t.StructField("b", t.StringType())])


def decoder(schema: t.StructType) -> ArrowDecoder:
    return ArrowDecoder(arrow_fields(schema.fields, ValueFormat.ARROW))


def value(**columns: object) -> bytes:
    return bytes(encode_arrow(pa.RecordBatch.from_pydict(columns)))


@given(batches(ValueFormat.ARROW))
def test_what_was_encoded_is_decoded_as_the_same_rows(given_rows: tuple[t.StructType, pa.RecordBatch]) -> None:
    """Behaviour 54: a schema read back equals what was written, for all types, nulls and nested ones included."""
    schema, batch = given_rows
    (part,) = decoder(schema).decode(pa.array([encode_arrow(batch).to_pybytes()]))

    assert part.malformed == ()
    assert part.columns.schema.equals(batch.schema)
    assert part.columns.to_pylist() == batch.to_pylist()


def test_a_value_gives_many_rows_and_says_which() -> None:
    values = [value(a=[1, 2], b=["x", None]), value(a=pa.array([], pa.int64())), value(a=[3])]
    (part,) = decoder(SCHEMA).decode(pa.array(values))

    assert part.columns.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": 3, "b": None}]
    assert part.events.tolist() == [0, 0, 2]
    assert part.rows.tolist() == [0, 1, 0]


def test_other_types_are_cast_where_nothing_is_lost() -> None:
    values = [
        value(a=pa.array([7], pa.int8()), b=pa.array(["x"]).dictionary_encode(), c=[1.5]),
        value(a=pa.array([7.0]), b=pa.array(["y"], pa.large_string())),
    ]
    (part,) = decoder(SCHEMA).decode(pa.array(values))

    assert part.columns.to_pylist() == [{"a": 7, "b": "x"}, {"a": 7, "b": "y"}]


@table(
    ("malformed", "reason"),
    [
        (b"", "is no Arrow IPC stream"),
        (b"text", "is no Arrow IPC stream"),
        (value(a=[1])[:-40], "is no Arrow IPC stream"),
        (value(b=INVALID_TEXT), "is no Arrow IPC stream: "),
        (value(b=OUTSIDE_TEXT), "is no Arrow IPC stream: "),
        (value(a=[1.5]), 'column "a" is double'),
        (value(a=["x"]), 'column "a" is string'),
        (value(a=[[1]]), 'column "a" is list'),
        (
            encode_arrow(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])).to_pybytes(),
            'column "a" is there twice',
        ),
        (value(c=pa.nulls(EVENT_ROWS_COUNT_MAX + 1)), f"has more than {EVENT_ROWS_COUNT_MAX} rows"),
    ],
)
def test_a_malformed_value_stands_alone(malformed: bytes, reason: str) -> None:
    (part,) = decoder(SCHEMA).decode(pa.array([value(a=[1]), malformed, value(a=[2])]))

    assert part.columns.column("a").to_pylist() == [1, 2]
    assert part.events.tolist() == [0, 2]
    (bad,) = part.malformed
    assert bad.number == 1
    assert str(bad).startswith(reason)


def test_a_required_column_that_is_missing_is_malformed() -> None:
    schema = t.StructType([t.StructField("a", t.LongType(), nullable=False)])
    (part,) = decoder(schema).decode(pa.array([value(a=[1]), value(b=[1]), value(a=[1, None])]))

    assert part.events.tolist() == [0]
    assert [bad.column for bad in part.malformed] == ["a", "a"]


def test_many_rows_are_handed_over_in_batches() -> None:
    values = [value(a=list(range(GATHERED_ROWS_COUNT // 2)))] * 5
    parts = list(decoder(SCHEMA).decode(pa.array(values)))

    assert [len(part.columns) for part in parts] == [65536, 65536, 32768]
    assert [sorted(set(part.events.tolist())) for part in parts] == [[0, 1], [2, 3], [4]]


@given(st.data())
def test_a_damaged_value_gives_rows_or_is_malformed(data: st.DataObject) -> None:
    """Bytes of a stranger: nothing else comes of them, whichever bytes were changed or cut off."""
    damaged = bytearray(value(a=[1, 2, None], b=["x", "yy", None]))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    (part,) = decoder(SCHEMA).decode(pa.array([bytes(damaged)]))
    part.columns.validate(full=True)

    assert len(part.malformed) <= 1
    assert not part.malformed or not len(part.columns)
