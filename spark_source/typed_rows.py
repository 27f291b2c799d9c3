"""Event batches of the client as batches of a schema of the user, whose columns are decoded from the values.

The schema names all columns, in the order that the user wants: decoded ones, and those of the event itself, whose names
begin with `_` (`values.own_columns`). What is not of the event is in its value.
"""

import logging
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from millrace.client.values.arrays import numbers

from .errors import MalformedValueError, SchemaError
from .options import SourceOptions
from .rows import ROWS_MAX, SCHEMA, BatchMaker, check_schema
from .values import ArrowDecoder, DecodedRows, Decoder, JsonDecoder, MalformedValue, Mode, ValueFormat, arrow_fields
from .values.own_columns import CORRUPT_NAME, ERROR_NAME, OWN_TYPES, PLAIN_NAMES, ROW_NAME, check_own_type

logger = logging.getLogger(__name__)

_NULLABLE: Final = ("_key", "_timestamp", CORRUPT_NAME, ERROR_NAME)
_POSITION: Final = ("segment", "offset", "index")

assert all(OWN_TYPES[name] == SCHEMA[name[1:]].dataType for name in PLAIN_NAMES)


def check_typed_schema(schema: StructType, value_format: ValueFormat, mode: Mode) -> None:
    """Check a schema whose columns are decoded, or are the event's own.

    Raises:
        SchemaError: a column that the format has no form for, or an own one of another type; names it.
    """
    for field in schema.fields:
        check_own_type(field.name, field.dataType, advice="a field of this name in a value cannot be read")
        if field.name in _NULLABLE and not field.nullable:
            raise SchemaError(field.name, "may be null")
    decoded = [field for field in schema.fields if field.name not in OWN_TYPES]
    if not decoded:
        raise SchemaError("value", "the schema names no column that is decoded from it")
    arrow_fields(decoded, value_format)
    arrow_fields(schema.fields, ValueFormat.ARROW)  # an own column that is there twice
    for field in decoded:
        if mode is Mode.PERMISSIVE and not field.nullable:
            raise SchemaError(field.name, f"may be null: with mode {mode} it is where a value is malformed")


def check_columns(schema: StructType, options: SourceOptions) -> None:
    """Check the schema that a reader is asked for.

    Raises:
        SchemaError: names the first column that there is not, or not so.
    """
    if options.value_format is None:
        check_schema(schema)
    else:
        check_typed_schema(schema, options.value_format, options.mode)


def maker_of(options: SourceOptions, stream: str, schema: StructType) -> "BatchMaker | TypedBatchMaker":
    """Return what makes batches of this schema, which was checked."""
    if options.value_format is None:
        return BatchMaker(stream, schema)
    return TypedBatchMaker(stream, schema, value_format=options.value_format, mode=options.mode)


class TypedBatchMaker:
    """Makes batches for Spark from batches of the client, for one stream; see `BatchMaker`."""

    def __init__(self, stream: str, schema: StructType, *, value_format: ValueFormat, mode: Mode) -> None:
        self._stream = stream
        self._mode = mode
        self._schema = arrow_fields(schema.fields, ValueFormat.ARROW)  # which has a form for maps, as headers are
        plain = {name[1:] for name in schema.names if name in PLAIN_NAMES} | {"value", *_POSITION}
        self._plain = BatchMaker(stream, StructType([field for field in SCHEMA.fields if field.name in plain]))
        decoded = arrow_fields([field for field in schema.fields if field.name not in OWN_TYPES], value_format)
        self._decoder: Decoder
        if value_format is ValueFormat.JSON:
            self._decoder = JsonDecoder(decoded, ends_at_first=mode is Mode.FAILFAST)
        else:
            self._decoder = ArrowDecoder(decoded)

    def convert(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the events of a batch.

        Raises:
            MalformedValueError: a value is malformed, and the mode is FAILFAST.
        """
        for part in self._plain.convert(batch):
            for decoded in self._decoder.decode(part.column("value")):
                if decoded.malformed:
                    self._refuse(part, decoded.malformed)
                rows = self._rows(part, decoded)
                for start in range(0, len(rows), ROWS_MAX):
                    yield rows.slice(start, ROWS_MAX)

    def _refuse(self, part: pa.RecordBatch, malformed: tuple[MalformedValue, ...]) -> None:
        """Fail, or say in the log what is malformed."""
        first = malformed[0]
        segment, offset, index = (part.column(name)[first.number].as_py() for name in _POSITION)
        error = MalformedValueError(self._stream, segment=segment, offset=offset, index=index, reason=str(first))
        if self._mode is Mode.FAILFAST:
            raise error
        logger.warning("values malformed stream=%s count=%d first=%s", self._stream, len(malformed), error)

    def _rows(self, part: pa.RecordBatch, decoded: DecodedRows) -> pa.RecordBatch:
        events, rows, columns = decoded.events, decoded.rows, decoded.columns
        texts: dict[str, Any] = {}
        if decoded.malformed and self._mode is Mode.PERMISSIVE:
            events, rows, columns, texts = _with_malformed(part, decoded)
        is_one_to_one = len(events) == len(part) and rows.sum() == 0
        index = None if is_one_to_one else numbers(pa.int64(), events)

        def column(field: pa.Field) -> Any:
            name = field.name
            if name == ROW_NAME:
                return numbers(pa.int32(), rows)
            if name in (CORRUPT_NAME, ERROR_NAME):
                return texts[name] if texts else pa.nulls(len(events), field.type)
            if name not in OWN_TYPES:
                return columns.column(name)
            own = part.column(name[1:])
            return own if index is None else own.take(index)

        return pa.RecordBatch.from_arrays([column(field) for field in self._schema], schema=self._schema)


def _with_malformed(
    part: pa.RecordBatch, decoded: DecodedRows
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], pa.RecordBatch, dict[str, Any]]:
    """Return events, rows and columns with a row of nulls for each malformed value, and the columns about these."""
    bad = np.array([malformed.number for malformed in decoded.malformed], dtype=np.int64)
    events = np.concatenate([decoded.events, bad])
    order = np.argsort(events, kind="stable")
    # Where each row comes from; from nowhere are those after the last one.
    source, count = order, len(decoded.events)
    is_bad = source >= count
    taken = pa.array(source, mask=is_bad)
    of_bad = pa.array(source - count, mask=~is_bad)
    return (
        events[order],
        np.append(decoded.rows, np.zeros(len(bad), dtype=np.int32))[order],
        decoded.columns.take(taken),
        {
            CORRUPT_NAME: part.column("value").take(numbers(pa.int64(), bad)).take(of_bad),
            ERROR_NAME: pa.array([str(malformed) for malformed in decoded.malformed], pa.string()).take(of_bad),
        },
    )
