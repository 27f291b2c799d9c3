"""The batches of a reader as an Arrow stream, for polars, pandas, DuckDB, and files.

Such programs take a `pyarrow.RecordBatchReader`: its schema is known before its first batch, and each batch is pulled
on demand, by any thread. The events come from the event loop of the client, by the reader's own `arrow_batches`, one
batch at a time: so memory holds one batch here, and the reader's read-ahead within its window, however long the stream
is.

Values that are JSON objects can become columns. The event's own columns then have a name that begins with `_`, as in
Spark, because a decoded column may have any name.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any

import pyarrow as pa

from millrace.client.errors import ClientClosedError, ValueMalformedError, WrongLoopError
from millrace.client.values.codec import MalformedValue
from millrace.client.values.json_decoder import JsonDecoder
from millrace.client.values.json_schema import check_schema, inferred_schema
from millrace.model.errors import InvalidArgumentError
from millrace.model.event import EventPosition

from .arrow import EVENT_SCHEMA, STREAM_FIELD

Step = Callable[[], Coroutine[Any, Any, "pa.RecordBatch | None"]]
"""Pulls the next batch, in the loop; None after the last."""
Wait = Callable[[Step], "pa.RecordBatch | None"]
"""Runs a step in the loop, and waits for it."""


async def open_arrow(
    batches: "AsyncIterator[pa.RecordBatch]",
    *,
    has_stream: bool,
    json: "bool | pa.Schema",
    infer_count: int,
    wait: Wait,
) -> pa.RecordBatchReader:
    """Return the events of `batches`, which belong to the running loop. See `EventReader.to_arrow`.

    Args:
        has_stream: the batches have the column `stream`.
        wait: called in the thread that pulls a batch.
    """
    if infer_count < 1:
        raise InvalidArgumentError(f"infer_count={infer_count} must be above 0")
    plain = EVENT_SCHEMA.append(STREAM_FIELD) if has_stream else EVENT_SCHEMA
    first: list[pa.RecordBatch] = []
    if json is True:
        first = await _first(batches, infer_count)
        json = await asyncio.to_thread(_inferred, first, infer_count)
    elif json is not False:
        check_schema(json)
    pulled = _pulled(first, batches, wait)
    if json is False:
        return pa.RecordBatchReader.from_batches(plain, _Serial(pulled))
    schema = _typed_schema(json, plain)
    typed = _typed(pulled, JsonDecoder(json, ends_at_first=True), schema)
    return pa.RecordBatchReader.from_batches(schema, _Serial(typed))


class _Serial(Iterator[pa.RecordBatch]):
    """The batches of a generator, for any number of threads, which take them one after the other."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._turn = threading.Lock()

    def __next__(self) -> pa.RecordBatch:
        with self._turn:
            return next(self._batches)


async def _first(batches: "AsyncIterator[pa.RecordBatch]", count: int) -> list[pa.RecordBatch]:
    """Return the first batches, with at least `count` events if there are so many."""
    taken: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in taken) < count:
        try:
            taken.append(await anext(batches))
        except StopAsyncIteration:
            break
    return taken


def waits_for(loop: asyncio.AbstractEventLoop) -> Wait:
    """Return a function that waits for a loop in any other thread."""

    def wait(step: Step) -> "pa.RecordBatch | None":
        if asyncio._get_running_loop() is loop:  # noqa: SLF001  # documented, for exactly this
            raise WrongLoopError(
                "events come from this event loop, and reading would hold it up: use asyncio.to_thread"
            )
        running = step()
        try:
            future = asyncio.run_coroutine_threadsafe(running, loop)
        except RuntimeError:  # the loop is closed
            running.close()
            raise ClientClosedError("the event loop of the client has ended") from None
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    return wait


def _pulled(
    first: Sequence[pa.RecordBatch], batches: "AsyncIterator[pa.RecordBatch]", wait: Wait
) -> Iterator[pa.RecordBatch]:
    """Yield the first batches, then each further batch from the loop, for which this thread waits."""
    yield from first

    async def step() -> "pa.RecordBatch | None":
        return await anext(batches, None)

    while (batch := wait(step)) is not None:
        yield batch


# --- values as columns ---


def _typed_schema(values: pa.Schema, plain: pa.Schema) -> pa.Schema:
    own = [field.with_name(f"_{field.name}") for field in plain if field.name != "value"]
    names = [*values.names, *(field.name for field in own)]
    for name in values.names:
        if names.count(name) > 1:
            raise InvalidArgumentError(
                f"column {name!r} is duplicate: each name of a value schema must be unique, and not an event column"
            )
    return pa.schema([*values, *own])


def _typed(batches: Iterator[pa.RecordBatch], decoder: JsonDecoder, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches with the values decoded.

    Raises:
        ValueMalformedError: a value does not fit the schema; all events before it were yielded.
    """
    for batch in batches:
        own = batch.drop_columns(["value"]).columns
        for decoded in decoder.decode(batch.column("value")):
            columns, count = decoded.columns, decoded.columns.num_rows
            if count:
                # Up to the first malformed value, each event is one row.
                start = int(decoded.events[0])
                parts = [column.slice(start, count) for column in own]
                yield pa.RecordBatch.from_arrays([*columns.columns, *parts], schema=schema)
            if decoded.malformed:
                raise _malformed(batch, decoded.malformed[0])


def _inferred(batches: Sequence[pa.RecordBatch], count: int) -> pa.Schema:
    """Return the schema of the first values.

    Raises:
        ValueMalformedError: a value is not a JSON object.
        InvalidArgumentError: the values have no common schema.
    """
    if not batches:
        return pa.schema([])
    together = pa.concat_batches([batch.select(["value", "segment", "offset", "index"]) for batch in batches])
    together = together.slice(0, count)
    found = inferred_schema(together.column("value"))
    if isinstance(found, MalformedValue):
        raise _malformed(together, found)
    return found


def _malformed(batch: pa.RecordBatch, malformed: MalformedValue) -> ValueMalformedError:
    place = [batch.column(name)[malformed.number].as_py() for name in ("segment", "offset", "index")]
    return ValueMalformedError(EventPosition(*place), malformed.reason, column=malformed.column)
