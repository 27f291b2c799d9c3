"""The bytes of one segment as the server pushes them, within a window of memory.

The server may push as many bytes as it was given credit for. Credit is given back as the reader releases what it took,
so no more than the window ever waits here. After a lost connection the push goes on behind the last byte that came. So
it does where the server refuses for now, for as long as a request would be repeated.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from millrace.client.errors import ConnectionLostError
from millrace.client.transport.channel import Channel
from millrace.client.transport.connection import Chunk, Connection
from millrace.client.transport.retry import Retry
from millrace.model.errors import MillraceError
from millrace.wire import messages as m

logger = logging.getLogger(__name__)


class SegmentPushes:
    """Bytes of one segment, in order. Belongs to one reader.

    Args:
        offset: where to start.
        window_bytes: the most that may wait here.
        on_change: called in the event loop when something came, the segment ended or failed.
    """

    def __init__(
        self,
        channel: Channel,
        segment_id: int,
        *,
        offset: int,
        window_bytes: int,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._channel = channel
        self.segment_id = segment_id
        # Behind the last byte that came.
        self._offset = offset
        self._window_bytes = window_bytes
        # What came and was not released; credit that was released and not yet granted.
        self._held_bytes = 0
        self._ungranted_bytes = 0
        self._queue: deque[Chunk] = deque()
        self._on_change = on_change
        self._waiter: asyncio.Future[None] | None = None
        self._connection: Connection | None = None
        self._subscription = 0
        self._task: asyncio.Task[None] | None = None
        # Why the server refused for now, and the attempts since it began to.
        self._refusal: MillraceError | None = None
        self._retry: Retry | None = None
        self._closed = False
        # The segment is sealed and all of it has come.
        self.ended = False
        self.failure: MillraceError | None = None

    def start(self) -> None:
        """Subscribe; nothing happens if it was done before."""
        if self._task is None and self._connection is None and not (self._closed or self.ended):
            self._task = asyncio.create_task(self._subscribe(), name=f"subscribe to segment {self.segment_id}")
            self._task.add_done_callback(self._subscribed)

    def take(self) -> Chunk | None:
        """Return the next bytes if there are some now; they count as held until they are released."""
        return self._queue.popleft() if self._queue else None

    def release(self, size_bytes: int) -> None:
        """Let the server push so many bytes more."""
        self._held_bytes -= size_bytes
        self._ungranted_bytes += size_bytes
        # Small grants would cost a frame each.
        if self._ungranted_bytes * 4 >= self._window_bytes and self._connection is not None:
            granted, self._ungranted_bytes = self._ungranted_bytes, 0
            self._connection.grant(self._subscription, granted)

    def hold(self, size_bytes: int) -> None:
        """Count bytes as held again that were released early."""
        self._held_bytes += size_bytes
        self._ungranted_bytes -= size_bytes

    async def next(self) -> Chunk | None:
        """Return the next bytes and release them, or None at the end of a sealed segment. Cancelling loses nothing.

        Raises:
            MillraceError: the server ended the push, or cannot be reached.
        """
        self.start()
        while not self._queue:
            self._channel.check()
            if self.failure is not None:
                raise self.failure
            if self.ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        chunk = self._queue.popleft()
        self.release(len(chunk.data))
        return chunk

    def close(self) -> None:
        """End the push; what waits here is dropped."""
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        if self._channel.guard.forked:
            return
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.unsubscribe(self._subscription)
            self._connection = None

    # --- what the connection tells ---

    def received(self, data: Chunk) -> None:
        """Take pushed bytes; called by the connection."""
        if data.offset != self._offset:
            assert self._connection is not None
            self._connection.abort(
                f"segment {self.segment_id}: the server pushed offset {data.offset} in place of {self._offset}"
            )
            return
        self._retry = None
        size = len(data.data)
        self._offset += size
        self._held_bytes += size
        if data.flags & m.DataFlag.END_OF_SEGMENT:
            self.ended = True
            assert self._connection is not None
            self._connection.end_subscription(self._subscription)
            self._connection = None
        if size:
            self._queue.append(data)
        if size or self.ended:
            self._changed()

    def failed(self, error: MillraceError) -> None:
        """Subscribe again, or give up; called by the connection."""
        self._connection = None
        if self._closed:
            return
        if isinstance(error, ConnectionLostError):
            self.start()
        elif error.retriable:
            self._refusal = error
            self.start()
        else:
            self.failure = error
            self._changed()

    # --- subscribing ---

    async def _subscribe(self) -> None:
        if self._refusal is not None:
            self._retry = self._retry or self._channel.retry()
            await self._retry.wait(self._refusal)
            self._refusal = None
        retry = self._channel.retry()
        connection = await self._channel.connection_by(retry)
        while not connection.is_open:  # lost again while this task waited for its turn
            connection = await self._channel.connection_by(retry)
        credit_bytes = max(0, self._window_bytes - self._held_bytes)
        self._ungranted_bytes = 0
        self._connection = connection
        self._subscription = connection.subscribe(
            self, segment_id=self.segment_id, offset=self._offset, credit_bytes=credit_bytes
        )

    def _subscribed(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            if self._connection is None and self.failure is None:
                self.start()  # lost again before this was called
            return
        self._connection = None
        if isinstance(error, MillraceError):
            self.failure = error
            self._changed()
        else:
            raise error  # our own bug: the loop's exception handler names it

    def _changed(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._on_change is not None:
            self._on_change()
