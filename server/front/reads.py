"""The reads of one connection: answered from memory at once, fetched from tier 2, parked at the tail, or pushed to.

Readers that wait at the tail of a segment have no coroutine. The container calls `segment_changed` in the step in which
bytes became durable, and the answer is passed to the socket in that same step. Only bytes that have to be fetched from
tier 2 need a task.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from millrace.server.cache import PendingRead
from millrace.server.container.container import RETRY_AFTER_MS, SegmentContainer
from millrace.server.container.entity_cache import Pins
from millrace.server.container.state.segment import Segment
from millrace.server.errors import InvalidArgumentError, ServerError, ShuttingDownError, ThrottledError
from millrace.wire import messages as m
from millrace.wire.limits import KIB, MIB, READ_SIZE_BYTES_MAX, READ_WAIT_S_MAX

from .flow_control import FlowControl, Reason
from .latency import RequestTimer
from .reader_memory import ReaderMemory
from .reply_writer import ReplyWriter
from .tasks import ConnectionTasks

PUSH_SIZE_BYTES_MAX: Final = 1 * MIB
PUSH_SIZE_BYTES_MIN: Final = 64 * KIB
"""However many subscriptions share a connection, smaller pushes are not worth their headers."""
PUSHES_AT_ONCE_MAX: Final = 4
"""After this many pushes, a subscription far from the tail yields to others."""
FETCHING_BYTES_MAX: Final = 4 * READ_SIZE_BYTES_MAX
"""One connection fetches no more than about this at once, however much memory is free."""


_READ: Final = m.Read.type.name
WAITING_SIZE_BYTES: Final = 1 * KIB
"""Accounted memory of a waiting reader among the requests."""


class Reads:
    """All reads of one connection.

    Args:
        waiting_count_max: parked reads and subscriptions together.
        write_buffer_bytes: unsent bytes above which nothing more is pushed.
    """

    def __init__(
        self,
        container: SegmentContainer,
        *,
        reply_writer: ReplyWriter,
        flow: FlowControl,
        tasks: ConnectionTasks,
        memory: ReaderMemory,
        waiting_count_max: int,
        write_buffer_bytes: int,
    ) -> None:
        self.container = container
        self.reply_writer = reply_writer
        self._flow = flow
        self.tasks = tasks
        self._waiting_count_max = waiting_count_max
        self._write_buffer_bytes = write_buffer_bytes
        # By request id, reads parked at the tail, and all subscriptions: least recently pushed first.
        self._waiting: dict[int, ParkedRead | Subscription] = {}
        self._memory = memory
        # Reads without a grant of memory, with the pins of their segments.
        self._delayed: list[tuple[m.Read, int, Pins]] = []

    def read(self, message: m.Read, request_id: int, *, may_wait: bool = True) -> None:
        """Answer a read, now or later; its segment is resident."""
        try:
            segment = self.container.segment(message.segment_id)
            size_max = min(message.size_max, READ_SIZE_BYTES_MAX)
            if size_max < 1:
                raise InvalidArgumentError("a read must request at least one byte", subject=segment.name)
            segment.check_event_readable(message.offset, message.event_index)
            there = segment.length - message.offset
            if there > 0:
                size_max = self.reply_writer.account.grant(min(size_max, there))
                if not size_max:
                    segment.check_readable(message.offset)
                    self._delay(message, request_id)
                    return
            found = self.container.reads.start(segment, message.offset, size_max)
            if not isinstance(found, list):
                self._fetching(size_max)
                pins = self.container.state.segments.pin([segment.segment_id])
                timer = RequestTimer(request_id, _READ, self.reply_writer.latency.received_s)
                task = self.tasks.start(self._fetch(found, segment, message.offset, size_max, timer), name="read")
                task.add_done_callback(lambda _: pins.release())
            elif found or segment.sealed or not (may_wait and message.wait_ms) or self.reply_writer.session.is_draining:
                self.reply_writer.send_data(request_id, segment, message.offset, found)
                if may_wait:
                    self.reply_writer.latency.answered(
                        RequestTimer(request_id, _READ, self.reply_writer.latency.received_s)
                    )
            else:
                self._check_room()
                self._waiting[request_id] = ParkedRead(self, segment, message, request_id)
        except ServerError as error:
            self.reply_writer.send_error(request_id, error)

    def subscribe(self, message: m.Subscribe, request_id: int) -> None:
        """Begin to push a segment, which is resident."""
        try:
            segment = self.container.segment(message.segment_id)
            self.container.reads.check_readable(segment, message.offset)
            segment.check_event_readable(message.offset, message.event_index)
            if self.reply_writer.session.is_draining:
                raise ShuttingDownError("the server is shutting down", retry_after_ms=1000)
            self._check_room()
        except ServerError as error:
            self.reply_writer.send_error(request_id, error)
            return
        subscription = self._waiting[request_id] = Subscription(self, segment, message, request_id)
        subscription.pump()

    def give_credit(self, request_id: int, credit_bytes: int) -> None:
        """Grant a subscription more credit; does nothing if it has ended."""
        reader = self._waiting.get(request_id)
        if isinstance(reader, Subscription):
            reader.give_credit(credit_bytes)

    def end(self, request_id: int) -> None:
        """End a reader that waits at a tail; does nothing if it has ended."""
        reader = self._waiting.pop(request_id, None)
        if reader is not None:
            reader.cancel()

    def write_resumed(self) -> None:
        """Push bytes held back while the peer was too slow, a few of each subscription in turn."""
        for request_id in list(self._waiting):
            if self.reply_writer.is_full:
                return  # the rest goes first the next time
            reader = self._waiting.get(request_id)
            if isinstance(reader, Subscription):
                self._waiting[request_id] = self._waiting.pop(request_id)
                reader.pump(pushes_count_max=1)

    @property
    def push_size_bytes_max(self) -> int:
        """The most that one subscription pushes at once, so that many share the peer's capacity."""
        share = self._write_buffer_bytes // max(1, len(self._waiting))
        return max(PUSH_SIZE_BYTES_MIN, min(PUSH_SIZE_BYTES_MAX, share))

    def refuse(self) -> None:
        """Fail the waiting readers: the session is draining."""
        request_ids = [*self._waiting, *(request_id for _, request_id, _ in self._delayed)]
        self.cancel()
        for request_id in request_ids:
            self.reply_writer.send_error(
                request_id, ShuttingDownError("the server is shutting down", retry_after_ms=1000)
            )

    def cancel(self) -> None:
        """Leave all tails without an answer."""
        for reader in self._waiting.values():
            reader.cancel()
        self._waiting.clear()
        self._memory.stop_waiting(self.room_found)
        for _, _, pins in self._delayed:
            pins.release()
        self._delayed.clear()

    def wait_for_room(self) -> None:
        """Be called by `room_found` when readers may have memory again."""
        self.reply_writer.counters.reads_delayed_total += 1
        self._memory.wait(self.room_found)

    def room_found(self) -> None:
        """Retry the reads without a grant."""
        delayed, self._delayed = self._delayed, []
        for message, request_id, pins in delayed:
            with pins:
                self.read(message, request_id, may_wait=False)
        self._flow.set(Reason.READER_MEMORY, bool(self._delayed))
        self.write_resumed()

    def _delay(self, message: m.Read, request_id: int) -> None:
        self._delayed.append((message, request_id, self.container.state.segments.pin([message.segment_id])))
        self._flow.set(Reason.READER_MEMORY, True)
        self.wait_for_room()

    def _check_room(self) -> None:
        if len(self._waiting) >= self._waiting_count_max:
            raise ThrottledError(
                f"{len(self._waiting)} reads of this connection wait at the tail", retry_after_ms=RETRY_AFTER_MS
            )
        if not self.reply_writer.requests.take(WAITING_SIZE_BYTES):
            raise ThrottledError("memory for requests is full", retry_after_ms=RETRY_AFTER_MS)

    async def _fetch(
        self, found: PendingRead, segment: Segment, offset: int, size_max: int, timer: RequestTimer
    ) -> None:
        try:
            pieces = await found
        except ServerError as error:
            self.reply_writer.send_error(timer.request_id, error)
        else:
            self.reply_writer.send_data(timer.request_id, segment, offset, pieces)
        finally:
            self.reply_writer.latency.answered(timer)
            self._fetched(size_max)

    def _fetching(self, size: int) -> None:
        self.reply_writer.account.fetch(size)
        self._flow.set(Reason.FETCHING, self.reply_writer.account.fetching_bytes >= FETCHING_BYTES_MAX)

    def _fetched(self, size: int) -> None:
        self.reply_writer.account.fetched(size)
        self._flow.set(Reason.FETCHING, self.reply_writer.account.fetching_bytes >= FETCHING_BYTES_MAX)


class WaitingReader(ABC):
    """A parked read or a subscription: called when its segment changes; it pins the segment."""

    __slots__ = ("_pins", "_reads", "_request_id", "_segment")

    def __init__(self, reads: Reads, segment: Segment, request_id: int) -> None:
        self._reads = reads
        self._segment = segment
        self._request_id = request_id
        reads.container.state.watch(segment, self)
        self._pins = reads.container.state.segments.pin([segment.segment_id])

    @abstractmethod
    def segment_changed(self) -> None:
        """Send what is available: called in the step in which bytes became durable."""

    def cancel(self) -> None:
        """Leave without an answer."""
        self._reads.container.state.unwatch(self._segment, self)
        self._pins.release()
        self._reads.reply_writer.requests.give(WAITING_SIZE_BYTES)


class ParkedRead(WaitingReader):
    """A read that waits for bytes, for the end of the segment, or for its timeout."""

    __slots__ = ("_message", "_timer")

    def __init__(self, reads: Reads, segment: Segment, message: m.Read, request_id: int) -> None:
        super().__init__(reads, segment, request_id)
        self._message = message
        wait_s = min(message.wait_ms / 1000, READ_WAIT_S_MAX)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._answer)

    def segment_changed(self) -> None:
        """Answer: bytes, or the end, are available."""
        self._answer()

    def _answer(self) -> None:
        """Answer with the available bytes, or none after the timeout."""
        self._reads.end(self._request_id)
        # Bytes that have just become durable are in the tail, unless they are of a segment merged into this one.
        self._reads.read(self._message, self._request_id, may_wait=False)

    def cancel(self) -> None:
        """Leave without an answer."""
        self._timer.cancel()
        super().cancel()


class Subscription(WaitingReader):
    """Pushes a segment from an offset on, as far as the reader grants credit."""

    __slots__ = ("_continuing", "_credit_bytes", "_event_index", "_fetching", "_offset")

    def __init__(self, reads: Reads, segment: Segment, message: m.Subscribe, request_id: int) -> None:
        super().__init__(reads, segment, request_id)
        self._offset = message.offset
        # The first event wanted of the block there.
        self._event_index = message.event_index
        self._credit_bytes = message.credit_bytes
        self._fetching: asyncio.Task[None] | None = None
        self._continuing: asyncio.Handle | None = None

    def segment_changed(self) -> None:
        """Push the available bytes."""
        self.pump()

    def give_credit(self, credit_bytes: int) -> None:
        """Grant more credit."""
        self._credit_bytes += credit_bytes
        self.pump()

    def cancel(self) -> None:
        """Stop pushing."""
        super().cancel()
        if self._continuing is not None:
            self._continuing.cancel()
        if self._fetching is not None:
            # Dropped: a cancelled task has a traceback with this, a cycle that keeps the fetched bytes alive.
            self._fetching.cancel()
            self._fetching = None

    def pump(self, *, pushes_count_max: int = PUSHES_AT_ONCE_MAX) -> None:
        """Push from memory while there are bytes, credit and space; fetch bytes that are not in memory.

        Pushes end at borders of the page grid, so that each is a whole page of the cache, and none is copied.
        """
        account = self._reads.reply_writer.account
        try:
            self._segment.check_event_readable(self._offset, self._event_index)
            for _ in range(pushes_count_max):
                if self._fetching is not None or self._reads.reply_writer.is_full:
                    return
                if self._credit_bytes <= 0 and self._offset < self._segment.length:
                    self._segment.check_readable(self._offset)
                    return
                to_border = PUSH_SIZE_BYTES_MAX - self._offset % PUSH_SIZE_BYTES_MAX
                size_max = max(1, min(self._credit_bytes, to_border, self._reads.push_size_bytes_max))
                there = self._segment.length - self._offset
                if there > 0:
                    size_max = account.grant(min(size_max, there))
                    if not size_max:
                        self._reads.wait_for_room()
                        return
                found = self._reads.container.reads.start(self._segment, self._offset, size_max)
                if not isinstance(found, list):
                    account.fetch(size_max)
                    self._fetching = self._reads.tasks.start(
                        self._fetch(found, size_max), name=f"subscription {self._request_id}"
                    )
                    return
                if not found and not self._segment.sealed:
                    return
                if self._push(found):
                    return
        except ServerError as error:
            self._fail(error)
        else:
            if self._continuing is None:
                self._continuing = asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._continuing = None
        self.pump()

    def _push(self, pieces: list[memoryview]) -> bool:
        """Send one frame; return whether it was the last."""
        size = sum(map(len, pieces))
        flags = self._reads.reply_writer.send_data(self._request_id, self._segment, self._offset, pieces)
        self._offset += size
        self._event_index = 0
        self._credit_bytes -= size
        if flags & m.DataFlag.END_OF_SEGMENT:
            self._reads.end(self._request_id)
            return True
        return False

    async def _fetch(self, found: PendingRead, size_max: int) -> None:
        try:
            pieces = await found
            self._segment.check_event_readable(self._offset, self._event_index)
        except ServerError as error:
            self._fetching = None
            self._fail(error)
            return
        finally:
            self._reads.reply_writer.account.fetched(size_max)
        self._fetching = None
        if self._reads.reply_writer.is_full:
            return  # it is read again, from the cache, when the peer has received what was sent
        if not pieces or not self._push(pieces):
            self.pump()

    def _fail(self, error: ServerError) -> None:
        self._reads.end(self._request_id)
        self._reads.reply_writer.send_error(self._request_id, error)
