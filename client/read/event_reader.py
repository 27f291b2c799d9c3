"""Iteration over events: the common base of readers of one stream and of several."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Self

from millrace.model.event import Event
from millrace.model.extras import needs
from millrace.model.shown import Handle

if TYPE_CHECKING:
    import pyarrow as pa


INFER_COUNT: Final = 1000
"""Default number of events from which the columns of JSON values are inferred."""


class EventReader(Handle, ABC):
    """An asynchronous iterator of events, to be entered with `async with`. Belongs to one event loop.

    Several tasks may share it: each event goes to one task, and all tasks see the end.

    Attributes:
        has_stream: whether its batches have a column `stream`.
    """

    has_stream: ClassVar[bool] = False

    def __init__(self) -> None:
        # The remaining events of the current block: a list iterator, which knows its length.
        self._events: Iterator[Event] = iter(())
        # Held by the task that fetches the next block.
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop fetching; the position can still be read."""

    def __aiter__(self) -> Self:
        """Iterate over the events."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Cancelling loses no events.

        Raises:
            StopAsyncIteration: the end cut, or the end of a sealed stream, is reached. For several streams: of every
                stream, and no further streams can join.
            CutTruncatedError: the next events were truncated; a reader from `resume_at` continues with the rest.
            StreamNotFoundError: the stream was deleted. A stream that only matched a pattern is dropped instead.
            SegmentDamagedError, BlockCorruptError: the next events are damaged.
            OutageTimeoutError: the server was unavailable for `outage_timeout_s`; a reader from `resume_at` continues.
        """
        while (event := next(self._events, None)) is None:
            if not await self._has_events():
                raise StopAsyncIteration
        return event

    async def next_events(self) -> list[Event]:
        """Return the remaining events of the current block, or those of the next one; empty at the end.

        They all belong to one stream. Waits for at most one block. Cancelling loses no events. Raises like `__anext__`.
        """
        while not (events := list(self._events)):
            if not await self._has_events():
                break
        return events

    async def _has_events(self) -> bool:
        """Fetch the next block, unless another task has done so meanwhile; False at the end."""
        async with self._turn:
            return length_hint(self._events) > 0 or await self._next_block()

    @abstractmethod
    def arrow_batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Iterate over the events as record batches, none of which is empty."""

    async def to_arrow(
        self, *, json: "bool | pa.Schema" = False, infer_count: int = INFER_COUNT
    ) -> "pa.RecordBatchReader":
        """Return the events as a stream of Arrow batches, for DuckDB, polars, pandas, or a file; needs pyarrow.

        The schema is known at once, even if the stream has no events. The batches are those of `arrow_batches`; each is
        fetched on demand, and then counts as read. Consume them in another thread than that of the event loop
        (`asyncio.to_thread`), while this reader is open.

        The consumer raises like `__anext__`, and ValueMalformedError at a value that does not fit the columns, after
        all events before it. A consumer that is not written in Python may raise an error of its own with that text.

        Args:
            json: decode values as JSON objects. The columns of a schema replace `value`: fields that are not in the
                schema are dropped, and missing fields are null. The names of the other columns begin with `_`. True
                infers the columns, which waits for the first events, or the end.
            infer_count: number of events from which to infer the columns.

        Raises:
            MissingExtraError: pyarrow is not installed.
            ValueMalformedError: one of the first values is not a JSON object.
            InvalidArgumentError: the first values have no common schema, or the given schema is not supported.
        """
        with needs("arrow"):
            from .arrow_reader import open_arrow, waits_for

        wait = waits_for(asyncio.get_running_loop())
        return await open_arrow(
            self.arrow_batches(), has_stream=self.has_stream, json=json, infer_count=infer_count, wait=wait
        )

    @abstractmethod
    async def _next_block(self) -> bool:
        """Make the next block with events the current one; False at the end. The caller holds `_turn`."""

    async def _wait(self) -> None:
        """Wait for `_wake`; wake-ups may be spurious."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def _wake(self) -> None:
        """Wake the waiting task."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
