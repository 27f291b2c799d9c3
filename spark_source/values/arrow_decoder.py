"""Values that are Arrow IPC streams, any number of rows each, as rows of a schema.

Columns are found by their names. What the schema does not name is left out; what a value does not have is null. Where
the types differ, they are cast as far as nothing is lost: an int becomes a long, a timestamp of nanoseconds one of
microseconds if it has no more digits.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.client.values.arrays import check_required, empty_batch, relaxed, restored
from millrace.client.values.codec import DecodedRows, MalformedError, MalformedValue

GATHERED_ROWS_COUNT: Final = 65536
GATHERED_SIZE_BYTES: Final = 16 << 20
"""Rows of so many values are handed over together."""
EVENT_ROWS_COUNT_MAX: Final = 1 << 20
"""Of one value: a few bytes can say that they are a million million rows of nothing."""


class ArrowDecoder:
    """Makes rows of Arrow IPC streams."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._relaxed = pa.schema([pa.field(field.name, relaxed(field.type)) for field in schema])

    def decode(self, values: pa.BinaryArray) -> Iterator[DecodedRows]:
        """Yield the rows of all values; see `Decoder`."""
        gathered = _RowBuffer(self._schema)
        for number, value in enumerate(values):
            try:
                rows = self._read(value.as_buffer())
            except MalformedError as error:
                gathered.malformed.append(MalformedValue(number, error.reason, error.column))
            else:
                gathered.add(number, rows)
            if gathered.is_full:
                yield gathered.decoded()
                gathered = _RowBuffer(self._schema)
        yield gathered.decoded()

    def _read(self, value: pa.Buffer) -> list[pa.RecordBatch]:
        """Return the rows of one value.

        Raises:
            MalformedError: it is no Arrow IPC stream, or not of these columns.
        """
        batches: list[pa.RecordBatch] = []
        count = 0
        try:
            with pa.ipc.open_stream(value) as reader:
                for batch in reader:
                    count += len(batch)
                    if count > EVENT_ROWS_COUNT_MAX:
                        raise MalformedError(f"has more than {EVENT_ROWS_COUNT_MAX} rows")
                    # Bytes from a stranger: offsets may point anywhere until they are checked.
                    batch.validate(full=True)
                    batches.append(self._conform(batch))
        except (pa.ArrowException, OSError, EOFError) as error:
            raise MalformedError(f"is no Arrow IPC stream: {error}") from None
        return batches

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, wanted in zip(self._relaxed, self._schema, strict=True):
            found = batch.schema.get_all_field_indices(field.name)
            if len(found) > 1:
                raise MalformedError("is there twice", column=field.name)
            column = batch.column(found[0]) if found else pa.nulls(len(batch), field.type)
            try:
                column = column if column.type == field.type else column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise MalformedError(f"is {column.type}: {error}", column=field.name) from None
            column = restored(column, wanted.type)
            check_required(column, wanted)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _RowBuffer:
    """Rows of some values, to be handed over together."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._events: list[int] = []
        self._counts: list[int] = []
        self._row_count = self._size_bytes = 0
        self.malformed: list[MalformedValue] = []

    @property
    def is_full(self) -> bool:
        """Whether these are enough."""
        return self._row_count >= GATHERED_ROWS_COUNT or self._size_bytes >= GATHERED_SIZE_BYTES

    def add(self, event: int, batches: list[pa.RecordBatch]) -> None:
        """Add the rows of one value."""
        count = sum(map(len, batches))
        self._batches += batches
        self._events.append(event)
        self._counts.append(count)
        self._row_count += count
        self._size_bytes += sum(batch.nbytes for batch in batches)

    def decoded(self) -> DecodedRows:
        """Return the rows, as one batch."""
        counts = np.array(self._counts, dtype=np.int64)
        firsts = np.cumsum(counts) - counts
        return DecodedRows(
            columns=pa.concat_batches(self._batches) if self._batches else empty_batch(self._schema),
            events=np.repeat(np.array(self._events, dtype=np.int64), counts),
            rows=(np.arange(self._row_count) - np.repeat(firsts, counts)).astype(np.int32),
            malformed=tuple(self.malformed),
        )
