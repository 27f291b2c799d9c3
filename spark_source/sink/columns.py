"""From the columns of a DataFrame to those of events.

    value      binary or string     the event; a string is stored in UTF-8
    key        string               optional; null where an event has none
    timestamp  timestamp            optional; null is the clock of the executor
    headers    map<string,binary>   optional; null or empty where an event has none
    stream     string               one of the streams of the option; needed where it names several

With a value format, columns of any name are encoded into the value, and those of the event begin with `_`: see
`values.encoder`.

A *maker* turns an Arrow batch of Spark into batches of these columns, with `value` as binary. It is found from the
schema, on the driver; so a wrong type is said before any task runs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampNTZType, TimestampType

from millrace.spark_source.errors import SchemaError
from millrace.spark_source.values import EncodedRows, ValueEncoder
from millrace.spark_source.values.dead_letters import RefusedRows

if TYPE_CHECKING:
    from .options import SinkOptions


class RowEvents(NamedTuple):
    """The events of a batch of rows.

    Attributes:
        events: with the columns of events.
        rows: of each event, the number of its first row in the batch.
        refused: rows that have no form in the value format, numbered as in the batch.
    """

    events: pa.RecordBatch
    rows: Sequence[int]
    refused: RefusedRows | None = None


EventMaker = Callable[[pa.RecordBatch], Iterable[RowEvents]]
"""Makes of a batch of rows, as Spark hands it to a writer, the events of it."""

COLUMN_TYPES: Final = {
    "value": "binary or string",
    "key": "string",
    "timestamp": "timestamp",
    "headers": "map<string,binary>",
    "stream": "string",
}
_PLACES: Final = ("segment", "offset", "index")


def maker_of(schema: StructType, options: "SinkOptions") -> EventMaker:
    """Return what makes events of the rows of a DataFrame.

    Raises:
        SchemaError: names the first column that is none of events, cannot be encoded, is missing, or has another
            type.
        OptionError: `keyColumn` names no column, or none that can be a key.
    """
    make: EventMaker
    if options.value_format is None:
        _check_events(schema)
        stream, make = "stream", _with_binary_values
    else:
        encoder = ValueEncoder(schema, value_format=options.value_format, key_column=options.key_column)
        stream, make = "_stream", lambda batch: map(_made, encoder.encode(batch))
    if len(options.streams) > 1 and stream not in schema.names:
        raise SchemaError(
            stream, f"is missing: the option stream names {len(options.streams)}, and this column says which one"
        )
    return make


def _made(encoded: EncodedRows) -> RowEvents:
    return RowEvents(
        encoded.events, encoded.rows.tolist(), RefusedRows.by_encoder(encoded) if encoded.reasons else None
    )


def _check_events(schema: StructType) -> None:
    for field in schema.fields:
        if field.name not in COLUMN_TYPES:
            raise SchemaError(field.name, _unknown(field.name))
        if not _is_taken(field.name, field.dataType):
            raise SchemaError(field.name, _mistyped(field.name, field.dataType))
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise SchemaError(name, "is there twice")
    if "value" not in schema.names:
        raise SchemaError("value", f"is missing: the event, {COLUMN_TYPES['value']}")


def batches_by_stream(events: pa.RecordBatch, *, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the events for each stream, in their order, without the column `stream`.

    Args:
        default: the stream of those that name none; None: each names one.
    """
    if "stream" not in events.schema.names:
        assert default is not None
        yield default, events
        return
    number = events.schema.get_field_index("stream")
    streams = events.column(number)
    others = events.remove_column(number)
    if default is not None:
        streams = streams.fill_null(default)
    names = streams.unique().to_pylist()
    for name in names:
        yield name, others if len(names) == 1 else others.filter(pc.equal(streams, name))


def _with_binary_values(batch: pa.RecordBatch) -> Iterable[RowEvents]:
    number = batch.schema.get_field_index("value")
    kind = batch.schema.field(number).type
    if pa.types.is_large_string(kind):
        batch = batch.set_column(number, "value", batch.column(number).cast(pa.large_binary()))
    elif pa.types.is_string(kind):
        batch = batch.set_column(number, "value", batch.column(number).cast(pa.binary()))
    yield RowEvents(batch, range(batch.num_rows))


def _is_taken(name: str, kind: DataType) -> bool:
    match name:
        case "value":
            return isinstance(kind, BinaryType | StringType)
        case "timestamp":
            return isinstance(kind, TimestampType)
        case "headers":
            return (
                isinstance(kind, MapType)
                and isinstance(kind.keyType, StringType)
                and isinstance(kind.valueType, BinaryType)
            )
        case _:
            return isinstance(kind, StringType)


def _unknown(name: str) -> str:
    if name in _PLACES:
        return "says where an event was read; what is written gets a place of its own: leave it out of the select"
    if name.lower() in COLUMN_TYPES:
        return f'is not a column of events, but "{name.lower()}" is'
    known = ", ".join(COLUMN_TYPES)
    return f"is not a column of events, but {known} are; the option valueFormat encodes all columns into value"


def _mistyped(name: str, kind: DataType) -> str:
    advice = ""
    if name == "timestamp" and isinstance(kind, TimestampNTZType):
        advice = "; it has no zone: cast it to timestamp, which takes that of the session"
    elif name == "value":
        advice = "; to_json(struct(...)) makes a string of columns, and the option valueFormat encodes them"
    return f"is {kind.simpleString()}, and must be {COLUMN_TYPES[name]}{advice}"
