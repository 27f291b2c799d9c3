"""From rows of any schema to events: the columns that are encoded, and those that are the event's own.

    _key         string                 the routing key; null where an event has none
    _timestamp   timestamp              null is the clock of the executor; not with "arrow"
    _headers     map<string,binary>     null or empty where an event has none; not with "arrow"
    _stream      string                 the stream the event goes to

All other columns are encoded into the value. In place of `_key` one of them can be named as the key; it is encoded,
too. With "json" each row is an event. With "arrow" an event has many rows, all of one key and one stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import ByteType, DataType, IntegerType, LongType, MapType, ShortType, StringType, StructType

from millrace.client.values.arrays import numbers, relaxed
from millrace.client.values.codec import MalformedError, MalformedValue, sift
from millrace.spark_source.errors import OptionError, SchemaError

from .arrow_encoder import encode_arrow, events_of_rows
from .arrow_types import arrow_fields
from .formats import ValueFormat
from .json_encoder import encode_json
from .own_columns import PLACE_NAMES, check_own_type

ENCODED_SIZE_BYTES_MAX: Final = 64 << 20
"""Of the rows that are encoded at once: text of JSON may be six times as long, and ends at 2 GiB in a column."""

_OWN: Final[dict[str, pa.DataType]] = {
    "_key": pa.string(),
    "_timestamp": pa.timestamp("us", tz="UTC"),
    "_headers": pa.map_(pa.string(), pa.binary()),
    "_stream": pa.string(),
}
"""The own columns that are written, and their types in Arrow. That of the event has the same name without the `_`."""
_OF_ONE_ROW: Final = ("_timestamp", "_headers")
_KEY_TYPES: Final = (StringType, ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Events of some rows.

    Attributes:
        events: with a column `value` of bytes, and `key`, `timestamp`, `headers` and `stream` as far as there are.
        refused: the same of each row that has no form in the format; its value is the row as an Arrow IPC stream.
        reasons: of each refused row, with its number in the batch.
        rows: of each event, the number of its first row in the batch.
    """

    events: pa.RecordBatch
    refused: pa.RecordBatch
    reasons: tuple[MalformedValue, ...]
    rows: npt.NDArray[np.int64]


class ValueEncoder:
    """Makes events of rows.

    Args:
        key_column: whose values are the keys, as text; None: the column `_key`, if there is one.

    Raises:
        SchemaError: a column that has no form, or an own column of another type; names it.
        OptionError: `keyColumn` names no column, or none that can be a key.
    """

    def __init__(self, schema: StructType, *, value_format: ValueFormat, key_column: str | None = None) -> None:
        self._format = value_format
        self._own = [field.name for field in schema.fields if field.name in _OWN]
        for field in schema.fields:
            _check_written(field.name, field.dataType, value_format)
        _check_key(schema, key_column)
        self._key_column = key_column
        fields = arrow_fields([field for field in schema.fields if field.name not in _OWN], value_format)
        if not len(fields):
            raise SchemaError(schema.names[0] if schema.names else "value", "there is no column to encode beside it")
        self._schema = pa.schema([pa.field(field.name, relaxed(field.type)) for field in fields])

    def encode(self, batch: pa.RecordBatch) -> Iterator[EncodedRows]:
        """Yield the events of a batch as Spark hands it to a writer."""
        first = 0
        for part in _parts(batch):
            yield self._encode(part, first)
            first += len(part)

    def _encode(self, batch: pa.RecordBatch, first: int) -> EncodedRows:
        rows = pa.RecordBatch.from_arrays(
            [batch.column(field.name).cast(field.type) for field in self._schema], schema=self._schema
        )
        own = {name[1:]: batch.column(name).cast(_OWN[name]) for name in self._own}
        if self._key_column is not None:
            own["key"] = batch.column(self._key_column).cast(pa.string())
        encode = encode_json if self._format is ValueFormat.JSON else _checked
        pieces, malformed = sift(0, len(rows), lambda start, end: encode(rows.slice(start, end - start)))
        if self._format is ValueFormat.JSON:
            values = pa.chunked_array([piece for _, piece in pieces], pa.string()).combine_chunks().cast(pa.binary())
            kept = _numbers_between(pieces)
        else:
            values, kept = _arrow_events(rows, own, _numbers_between(pieces))
        bad = np.array([row.number for row in malformed], dtype=np.int64)
        texts = [encode_arrow(rows.slice(row, 1)).to_pybytes() for row in bad.tolist()]
        return EncodedRows(
            events=_events(values, own, kept),
            refused=_events(pa.array(texts, pa.binary()), own, bad),
            reasons=tuple(row._replace(number=row.number + first) for row in malformed),
            rows=kept + first,
        )


def _arrow_events(rows: pa.RecordBatch, own: dict[str, Any], kept: Any) -> tuple[Any, Any]:
    """Return the values of events of many rows, and the number of the first row of each."""
    index = numbers(pa.int64(), kept)
    given = list(events_of_rows(rows.take(index), [column.take(index) for column in own.values()]))
    values = pa.array([encode_arrow(of_event).to_pybytes() for _, of_event in given], pa.binary())
    return values, kept[np.array([start for start, _ in given], dtype=np.int64)]


def _events(values: Any, own: dict[str, Any], kept: Any) -> pa.RecordBatch:
    index = numbers(pa.int64(), kept)
    return pa.RecordBatch.from_pydict({"value": values, **{name: column.take(index) for name, column in own.items()}})


def _checked(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows, whose text is UTF-8."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise MalformedError("is not UTF-8", column=name) from None
    return rows


def _numbers_between(pieces: list[tuple[int, Any]]) -> Any:
    parts = [np.arange(start, start + len(piece), dtype=np.int64) for start, piece in pieces]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts that are not too large, or of one row."""
    if batch.nbytes <= ENCODED_SIZE_BYTES_MAX or len(batch) <= 1:
        yield batch
        return
    half = len(batch) // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def _check_written(name: str, kind: DataType, value_format: ValueFormat) -> None:
    if name in PLACE_NAMES:
        raise SchemaError(name, "says where or how an event was read, and cannot be written: drop or rename it")
    if isinstance(kind, MapType):
        kind = MapType(kind.keyType, kind.valueType)  # where values are null is seen in the rows
    check_own_type(name, kind, advice="rename it")
    if name in _OF_ONE_ROW and value_format is ValueFormat.ARROW:
        raise SchemaError(name, f'is that of one row, and in valueFormat "{value_format}" an event has many: rename it')


def _check_key(schema: StructType, key_column: str | None) -> None:
    if key_column is None:
        return
    if key_column not in schema.names or key_column in _OWN:
        near = [name for name in schema.names if name.lower() == key_column.lower() != name and name not in _OWN]
        found = near or schema.names
        raise OptionError("keyColumn", f"there is no column {key_column}, but {', '.join(found)}")
    kind = schema[key_column].dataType
    if not isinstance(kind, _KEY_TYPES):
        raise OptionError("keyColumn", f"{key_column} is {kind.simpleString()}; a key is a string or an integer")
    if "_key" in schema.names:
        raise SchemaError("_key", f"is the key, and the option keyColumn says that {key_column} is")
