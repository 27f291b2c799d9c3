"""The client's end of a subscription: the server pushes bytes of one segment, within a window of memory.

    IDLE         not started
    CONNECTING   a task waits for a connection, or for the next attempt, and then subscribes
    STREAMING    the server pushes as far as it has credit (`millrace.wire.credit`)
    ENDED        all requested bytes, or all of a sealed segment, have arrived; some may wait to be taken
    FAILED       no more bytes arrive; after the queued items, `failure` is raised
    CLOSED       the reader has closed it

After a lost connection, or if the server rejects for now, the stream resumes after the last received byte, however long
the outage lasts; `ClientOptions.outage_timeout_s` limits that. An outage is over when bytes arrive, or when the server
answers a PING that was sent after the subscription: frames are processed in order, so it has not rejected it.

Received data wait as *items* until they are taken: `ByteSubscription` has the bytes as they were pushed,
`millrace.client.read.block_stream` makes event blocks of them.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar

from millrace.client.errors import ConnectionLostError, OutageTimeoutError
from millrace.client.transport.channel import Channel
from millrace.client.transport.connection import Connection
from millrace.client.transport.retry import Retry
from millrace.model.errors import MillraceError
from millrace.wire import messages as m
from millrace.wire.client_session import Piece
from millrace.wire.credit import ReceiveWindow

Item = TypeVar("Item")


class SubscriptionState(Enum):
    """The state of the subscription; see the module docstring."""

    IDLE = auto()
    CONNECTING = auto()
    STREAMING = auto()
    ENDED = auto()
    FAILED = auto()
    CLOSED = auto()


class SubscriptionEvent(Enum):
    """The events that change the state."""

    START = auto()
    SUBSCRIBED = auto()
    INTERRUPTED = auto()
    """The connection was lost, or the server refuses for now."""
    END = auto()
    """All requested bytes have arrived, or the sealed segment has no more."""
    FAIL = auto()
    """The server rejects for good, or cannot be reached; or its bytes are invalid."""
    CLOSE = auto()


IDLE, CONNECTING, STREAMING, ENDED, FAILED, CLOSED = SubscriptionState
START, SUBSCRIBED, INTERRUPTED, END, FAIL, CLOSE = SubscriptionEvent

TRANSITIONS: Final[dict[SubscriptionState, dict[SubscriptionEvent, SubscriptionState]]] = {
    IDLE: {START: CONNECTING, END: ENDED, CLOSE: CLOSED},
    CONNECTING: {SUBSCRIBED: STREAMING, FAIL: FAILED, CLOSE: CLOSED},
    STREAMING: {INTERRUPTED: CONNECTING, END: ENDED, FAIL: FAILED, CLOSE: CLOSED},
    ENDED: {CLOSE: CLOSED},
    FAILED: {CLOSE: CLOSED},
    CLOSED: {CLOSE: CLOSED},
}
"""Every legal event of every state, and the state after it."""


def _ignore(_: object) -> None:
    """Do nothing."""


class Subscription(ABC, Generic[Item]):
    """Items of one segment, in order. Belongs to one reader in one event loop.

    Args:
        offset: where to start.
        event_index: the first requested event of the block at `offset`.
        window_bytes: the most that may wait here, unless a single item is larger.
        on_change: called in the event loop, with this, when an item has arrived, or the subscription has ended or
            failed.

    Attributes:
        failure: why the subscription failed, None in every other state.
    """

    def __init__(
        self,
        channel: Channel,
        segment_id: int,
        *,
        offset: int,
        event_index: int = 0,
        window_bytes: int,
        on_change: Callable[[Any], None] = _ignore,
    ) -> None:
        self._channel = channel
        self.segment_id = segment_id
        self.state = IDLE
        self.failure: MillraceError | None = None
        # The offset after the last received byte.
        self._offset = offset
        # The first event wanted of the block there.
        self._event_index = event_index
        self.window_bytes = window_bytes
        self._window = ReceiveWindow(start=offset, size_bytes=window_bytes)
        # Items that wait to be taken; a subclass defines them.
        self._queue: deque[Any] = deque()
        self._on_change = on_change
        # Held by the task that waits in `next`, which `_waiter` wakes.
        self._turn = asyncio.Lock()
        self._waiter: asyncio.Future[None] | None = None
        # Set while STREAMING.
        self._connection: Connection | None = None
        self._subscription_id = 0
        # Set while CONNECTING, and until an outage is known to be over; an older task is replaced, not awaited.
        self._task: asyncio.Task[None] | None = None
        # What ended the last subscription, and the attempts since then.
        self._interruption: MillraceError | None = None
        self._retry: Retry | None = None

    def start(self) -> None:
        """Subscribe; idempotent."""
        if self.state is IDLE:
            self._change(START)
            self._connect()

    @property
    def ready(self) -> bool:
        """Whether `take` would return an item or raise."""
        return bool(self._queue) or self.state is FAILED

    @property
    def finished(self) -> bool:
        """Whether all items were taken and no more arrive."""
        return not self._queue and self.state in (ENDED, CLOSED)

    def take(self) -> Item | None:
        """Return the next item, and grant the server credit for its size; None if no item is queued.

        Raises:
            OutageTimeoutError: the server was unavailable for too long.
            MillraceError: the server ended the subscription.
        """
        if self._queue:
            return self._take()
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # or each raise would add to it
        return None

    async def next(self) -> Item | None:
        """Wait for the next item and return it; None at the end. Cancelling loses nothing. Raises like `take`.

        Several tasks may wait: each item goes to one of them, and all of them see the end.
        """
        self.start()
        async with self._turn:
            while (item := self.take()) is None and not self.finished:
                self._channel.check()
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            return item

    def close(self) -> None:
        """End the subscription; queued items are dropped. Closing again does nothing."""
        self._change(CLOSE)
        self.failure = None
        self._queue.clear()
        self._on_change = _ignore  # or its reader would be freed by the garbage collector only, with its last block
        if self._channel.guard.forked:
            return
        self._wake()
        if self._task is not None:
            self._task.cancel()
        self._settle()
        self._unsubscribe()

    # --- what the connection tells ---

    def received(self, piece: Piece) -> None:
        """Process pushed bytes; called by the connection."""
        connection = self._connection
        assert connection is not None
        if piece.offset != self._offset:
            connection.abort(
                f"segment {self.segment_id}: the server pushed offset {piece.offset} in place of {self._offset}"
            )
            return
        if self._retry is not None:
            self._settle()
        self._offset += len(piece.data)
        self._event_index = 0
        is_end_of_segment = bool(piece.flags & m.DataFlag.END_OF_SEGMENT)
        if is_end_of_segment:
            connection.end_subscription(self._subscription_id)
        try:
            has_all = self._add(piece)
        except MillraceError as error:
            self._unsubscribe()
            self._fail(error)
            return
        if has_all or is_end_of_segment:
            self._unsubscribe()
            self._change(END)
        if self._queue or self.state is ENDED:
            self._tell()

    def failed(self, error: MillraceError) -> None:
        """Subscribe again, or fail; called by the connection when the subscription has ended."""
        self._connection = None
        if error.retriable:
            self._change(INTERRUPTED)
            self._interruption = error
            self._connect()
        else:
            self._fail(error)

    # --- what a subclass does ---

    @abstractmethod
    def _add(self, data: Piece) -> bool:
        """Queue received bytes as items; return whether everything requested has arrived.

        Raises:
            MillraceError: the bytes are invalid; the subscription fails with it.
        """

    @abstractmethod
    def _take(self) -> Item:
        """Take the next item out of the queue, and call `_consumed` for it. Raises like `take`."""

    def _consumed(self, offset: int) -> None:
        """Grant the server credit: everything before `offset` is consumed."""
        self._grant(self._window.consume(offset))

    def _require(self, offset: int) -> None:
        """Allow the server to push up to `offset` at least, beyond the window if necessary."""
        self._grant(self._window.require(offset))

    def _change(self, event: SubscriptionEvent) -> None:
        """Go to the state that follows; the only place that does."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{event} in {self.state}"
        self.state = following

    # --- inside ---

    def _fail(self, error: MillraceError) -> None:
        self._change(FAIL)
        self._settle()
        self.failure = error
        self._tell()

    def _tell(self) -> None:
        self._wake()
        self._on_change(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _unsubscribe(self) -> None:
        """End the subscription on the connection; it may have ended there already."""
        if self._connection is not None:
            self._connection.unsubscribe(self._subscription_id)
            self._connection = None

    def _grant(self, credit_bytes: int) -> None:
        # Without a connection the credit is part of the next subscription.
        if credit_bytes and self._connection is not None:
            self._connection.grant(self._subscription_id, credit_bytes)

    def _connect(self) -> None:
        self._task = asyncio.create_task(self._subscribe(), name=f"subscribe to segment {self.segment_id}")

    async def _subscribe(self) -> None:
        retry = self._retry = self._retry or self._channel.retry(self._channel.options.outage_timeout_s)
        try:
            if self._interruption is not None:
                await retry.wait(self._interruption)
            connection = await self._channel.connection_by(retry)
            while not connection.is_open:  # lost again while this task waited for its turn
                await retry.wait(ConnectionLostError(f"the connection to {self._channel.address} was lost"))
                connection = await self._channel.connection_by(retry)
            self._subscription_id = connection.subscribe(
                self,
                segment_id=self.segment_id,
                offset=self._offset,
                credit_bytes=self._window.subscribe(self._offset),
                event_index=self._event_index,
            )
        except MillraceError as error:
            self._fail(self._given_up(error, retry) if error.retriable else error)
            return
        self._interruption = None
        self._change(SUBSCRIBED)
        self._connection = connection
        if retry.failures:
            try:
                await connection.send_request(m.Ping())
            except MillraceError:
                return  # the connection was lost, and `failed` was called
            if self._task is not asyncio.current_task():
                return  # interrupted meanwhile
        self._settle()

    def _settle(self) -> None:
        """Record that an outage is over, or no longer matters."""
        if self._retry is not None:
            self._retry.end()
            self._retry = None

    def _given_up(self, error: MillraceError, retry: Retry) -> OutageTimeoutError:
        where = f"segment {self.segment_id} was read up to offset {self._offset}"
        timeout = OutageTimeoutError(f"given up after {retry.limit_s:g} s, {where}: {error}")
        timeout.__cause__ = error
        return timeout


class ByteSubscription(Subscription[Piece]):
    """The bytes of a segment, in the pieces in which they arrived."""

    def _add(self, data: Piece) -> bool:
        if len(data.data):
            self._queue.append(data)
        return False

    def _take(self) -> Piece:
        data: Piece = self._queue.popleft()
        self._consumed(data.offset + len(data.data))
        return data
