"""The bytes of one segment as the server pushes them, within a window of memory.

    IDLE         nothing was asked for yet
    CONNECTING   a task waits for a connection, or until the server is asked again, and then subscribes
    STREAMING    the server pushes as far as it has credit (`millrace.wire.credit`)
    ENDED        the segment is sealed and all of it has come
    FAILED       nothing more comes; `failure` says why
    CLOSED       the reader wants no more

After a lost connection the stream resumes after the last byte that came. So it does where the server refuses for now,
for as long as a request would be repeated.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from millrace.client.errors import ConnectionLostError
from millrace.client.transport.channel import Channel
from millrace.client.transport.connection import Connection
from millrace.client.transport.retry import Retry
from millrace.model.errors import MillraceError
from millrace.wire import messages as m
from millrace.wire.client_session import Chunk
from millrace.wire.credit import ReceiveWindow


class SubscriptionState(Enum):
    """Where the stream of bytes is; see the module docstring."""

    IDLE = auto()
    CONNECTING = auto()
    STREAMING = auto()
    ENDED = auto()
    FAILED = auto()
    CLOSED = auto()


class SubscriptionEvent(Enum):
    """What changes the state."""

    START = auto()
    SUBSCRIBED = auto()
    INTERRUPTED = auto()
    """The connection was lost, or the server refuses for now."""
    SEGMENT_ENDED = auto()
    FAIL = auto()
    """The server refuses for good, or cannot be reached."""
    CLOSE = auto()


IDLE, CONNECTING, STREAMING, ENDED, FAILED, CLOSED = SubscriptionState
START, SUBSCRIBED, INTERRUPTED, SEGMENT_ENDED, FAIL, CLOSE = SubscriptionEvent

TRANSITIONS: Final[dict[SubscriptionState, dict[SubscriptionEvent, SubscriptionState]]] = {
    IDLE: {START: CONNECTING, CLOSE: CLOSED},
    CONNECTING: {SUBSCRIBED: STREAMING, FAIL: FAILED, CLOSE: CLOSED},
    STREAMING: {INTERRUPTED: CONNECTING, SEGMENT_ENDED: ENDED, FAIL: FAILED, CLOSE: CLOSED},
    ENDED: {CLOSE: CLOSED},
    FAILED: {CLOSE: CLOSED},
    CLOSED: {CLOSE: CLOSED},
}
"""Every legal event of every state, and the state after it."""


class Subscription:
    """Bytes of one segment, in order. Belongs to one reader in one event loop.

    Args:
        offset: where to start.
        window_bytes: the most that may wait here.
        on_change: called in the event loop when bytes came, the segment ended or the subscription failed.

    Attributes:
        failure: why the subscription failed, None in every other state.
    """

    def __init__(
        self,
        channel: Channel,
        segment_id: int,
        *,
        offset: int,
        window_bytes: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self.segment_id = segment_id
        self.state = IDLE
        self.failure: MillraceError | None = None
        # The offset after the last byte that came.
        self._offset = offset
        self._window = ReceiveWindow(start=offset, size_bytes=window_bytes)
        self._queue: deque[Chunk] = deque()
        self._on_change = on_change
        self._waiter: asyncio.Future[None] | None = None
        # Set while STREAMING.
        self._connection: Connection | None = None
        self._subscription_id = 0
        # Set while CONNECTING; the one that has just ended is replaced, not waited for.
        self._task: asyncio.Task[None] | None = None
        # Why the server refused, to be waited out before it is asked again, and the attempts since it last sent bytes.
        self._refusal: MillraceError | None = None
        self._retry: Retry | None = None

    def start(self) -> None:
        """Subscribe; does nothing if it was done before."""
        if self.state is IDLE:
            self._change(START)
            self._connect()

    def take(self) -> Chunk | None:
        """Return the next bytes if there are some now; they fill the window until they are consumed."""
        return self._queue.popleft() if self._queue else None

    def consumed(self, offset: int) -> None:
        """Say that everything before `offset` is done with, and let the server push so much more."""
        self._grant(self._window.consume(offset))

    def require(self, offset: int) -> None:
        """Let the server push up to `offset` at least, whatever the window is."""
        self._grant(self._window.require(offset))

    async def changed(self) -> None:
        """Wait for the next change, as `on_change` is told of it. One task at a time; cancelling is safe."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def next(self) -> Chunk | None:
        """Return the next bytes, consumed, or None at the end of a sealed segment. Cancelling loses nothing.

        Raises:
            MillraceError: the server ended the subscription, or cannot be reached.
        """
        self.start()
        while (chunk := self.take()) is None:
            self._channel.check()
            if self.failure is not None:
                raise self.failure
            if self.state is ENDED:
                return None
            await self.changed()
        self.consumed(chunk.offset + len(chunk.data))
        return chunk

    def close(self) -> None:
        """End the subscription; what waits here is dropped. Closing again does nothing."""
        self._change(CLOSE)
        self.failure = None
        self._queue.clear()
        if self._channel.guard.forked:
            return
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.unsubscribe(self._subscription_id)
            self._connection = None

    # --- what the connection tells ---

    def received(self, data: Chunk) -> None:
        """Take pushed bytes; called by the connection."""
        connection = self._connection
        assert connection is not None
        if data.offset != self._offset:
            connection.abort(
                f"segment {self.segment_id}: the server pushed offset {data.offset} in place of {self._offset}"
            )
            return
        self._retry = None
        size = len(data.data)
        self._offset += size
        if size:
            self._queue.append(data)
        if data.flags & m.DataFlag.END_OF_SEGMENT:
            self._change(SEGMENT_ENDED)
            connection.end_subscription(self._subscription_id)
            self._connection = None
        if size or self.state is ENDED:
            self._tell()

    def failed(self, error: MillraceError) -> None:
        """Subscribe again, or fail; called by the connection when the subscription has ended."""
        self._connection = None
        if isinstance(error, ConnectionLostError) or error.retriable:
            self._change(INTERRUPTED)
            # A lost connection is made again by the channel, which has waits of its own.
            self._refusal = None if isinstance(error, ConnectionLostError) else error
            self._connect()
        else:
            self._fail(error)

    # --- inside ---

    def _change(self, event: SubscriptionEvent) -> None:
        """Go to the state that follows; the only place that does."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{event} in {self.state}"
        self.state = following

    def _fail(self, error: MillraceError) -> None:
        self._change(FAIL)
        self.failure = error
        self._tell()

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._on_change()

    def _grant(self, credit_bytes: int) -> None:
        # Without a connection the credit is part of the next subscription.
        if credit_bytes and self._connection is not None:
            self._connection.grant(self._subscription_id, credit_bytes)

    def _connect(self) -> None:
        self._task = asyncio.create_task(self._subscribe(), name=f"subscribe to segment {self.segment_id}")

    async def _subscribe(self) -> None:
        try:
            if self._refusal is not None:
                self._retry = self._retry or self._channel.retry()
                await self._retry.wait(self._refusal)
                self._refusal = None
            retry = self._channel.retry()
            connection = await self._channel.connection_by(retry)
            while not connection.is_open:  # lost again while this task waited for its turn
                connection = await self._channel.connection_by(retry)
            self._subscription_id = connection.subscribe(
                self,
                segment_id=self.segment_id,
                offset=self._offset,
                credit_bytes=self._window.subscribe(self._offset),
            )
        except MillraceError as error:
            self._fail(error)
        else:
            self._change(SUBSCRIBED)
            self._connection = connection
