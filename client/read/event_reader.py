"""Hands out events one by one: what a reader of one stream and a reader of several have in common."""

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
"""From how many events the columns of JSON values are inferred by default."""


class EventReader(Handle, ABC):
    """An iterator of the events of blocks, to be left with `async with`. Belongs to one event loop.

    Several tasks may share it: each event goes to one of them, and all of them see the end.

    Attributes:
        has_stream: whether its batches say of which stream an event is.
    """

    has_stream: ClassVar[bool] = False

    def __init__(self) -> None:
        # The rest of the events of the current block: the iterator of a list, whose length is known.
        self._events: Iterator[Event] = iter(())
        # Held by the task that takes the next block, which may have to wait for it.
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
        """Fetch no more; where it has come to can still be asked for."""

    def __aiter__(self) -> Self:
        """Iterate over the events."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Cancelling loses nothing.

        Raises:
            StopAsyncIteration: the end cut, or the end of a sealed stream, is reached; of several streams, that of
                each, and no pattern may find others.
            CutTruncatedError: what comes next was truncated away; a reader from its `resume_at` reads what is left.
            StreamNotFoundError: the stream was deleted, and had not only matched a pattern.
            SegmentDamagedError, BlockCorruptError: what comes next cannot be trusted.
            OutageTimeoutError: the server was away for `outage_timeout_s`; a reader from `resume_at` reads on.
        """
        while (event := next(self._events, None)) is None:
            if not await self._has_events():
                raise StopAsyncIteration
        return event

    async def next_events(self) -> list[Event]:
        """Return the events that are left of the current block, or those of the next one; empty at the end.

        All of them are of one stream. Waits for at most one block. Cancelling loses nothing. Raises like `__anext__`.
        """
        while not (events := list(self._events)):
            if not await self._has_events():
                break
        return events

    async def _has_events(self) -> bool:
        """Make the next block the current one, unless another task has done so meanwhile; False at the end."""
        async with self._turn:
            return length_hint(self._events) > 0 or await self._next_block()

    @abstractmethod
    def arrow_batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Return an iterator of the events as record batches; none is empty."""

    async def to_arrow(
        self, *, json: "bool | pa.Schema" = False, infer_count: int = INFER_COUNT
    ) -> "pa.RecordBatchReader":
        """Return the events as a stream of Arrow batches, for DuckDB, polars, pandas, or a file; needs pyarrow.

        The schema is there at once, also of a stream without events. Batches are those of `arrow_batches`; each is
        fetched when it is asked for, and counts as read then. They are asked for in any thread but that of the event
        loop (`asyncio.to_thread`), while this reader is open.

        What reads the batches raises like `__anext__`, and ValueMalformedError where a value does not fit the columns,
        after all events before it. Where it is not written in Python, it may raise an error of its own with that text.

        Args:
            json: values are JSON objects: in place of `value` come the columns of a schema (fields that it does not
                name are left out, those that an object lacks are null), and the other columns begin with `_`. True:
                the columns are inferred, and so this waits for the first events, or the end.
            infer_count: from how many events.

        Raises:
            MissingExtraError: pyarrow is not installed.
            ValueMalformedError: one of the first values is no JSON object.
            InvalidArgumentError: the first values have no common schema; or one that is given cannot be used.
        """
        with needs("arrow"):
            from .arrow_reader import open_arrow, waits_for

        wait = waits_for(asyncio.get_running_loop())
        return await open_arrow(
            self.arrow_batches(), has_stream=self.has_stream, json=json, infer_count=infer_count, wait=wait
        )

    @abstractmethod
    async def _next_block(self) -> bool:
        """Make the next block that holds an event the current one; return whether there is one. Needs the turn."""

    async def _wait(self) -> None:
        """Wait for `_wake`, which may have nothing to say."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def _wake(self) -> None:
        """Let the task go on that waits."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
