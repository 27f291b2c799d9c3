"""The writer of a stream: events in, futures out, every event durable once.

Events of one key are stored in the order written; blocks of different segments go their own ways. Each write counts
against a bound until it is durable: `drain()` waits at a low mark, and a caller that never waits meets
`BufferFullError` at the high one.

A writer with an id is persistent: the server knows its last event number per segment, and opening the id again fences
the writer that had it. After a lost connection the blocks without an ack are sent again as they were packed, under the
same epoch, and the server stores each event number once; so a writer never comes back to life after it was fenced.

When the stream is scaled under a writer, the segments that were replaced refuse. What they had stored is acked; the
rest is taken out, once each of them has answered for all that it was sent, and goes to the successors: in the order of
each key, in new blocks, under event numbers that start with the successor. What was written meanwhile follows.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from millrace.client.blocks import Timestamps, size_of_single
from millrace.client.compression import Compression
from millrace.client.errors import (
    BufferFullError,
    ClientClosedError,
    ConnectionLostError,
    OutcomeUnknownError,
    SegmentNotFoundError,
    StreamNotFoundError,
    ThrottledError,
)
from millrace.client.transport.channel import Channel
from millrace.client.transport.connection import Connection
from millrace.client.transport.retry import Retry
from millrace.model.errors import EventTooLargeError, InvalidArgumentError, MillraceError
from millrace.model.limits import (
    APPEND_SIZE_BYTES_MAX,
    EVENT_SIZE_BYTES_MAX,
    ROUTING_KEY_SIZE_BYTES_MAX,
    SEGMENTS_PER_STREAM_MAX,
)
from millrace.wire import messages as m
from millrace.wire.limits import KIB, MIB

from .routing import Router, encoded_key
from .segment_writer import Lane, Stored, Unstored, passes
from .writer_info import stream_changed

logger = logging.getLogger(__name__)

EVENT_COST_BYTES: Final = 64
"""What an event that waits is counted beside its value and key: its objects and its columns."""
_SINGLE_OVERHEAD_BYTES_MAX: Final = size_of_single(0, key_size=ROUTING_KEY_SIZE_BYTES_MAX) + 8
"""What a block of one event is larger than its value, at most."""
_INT64_LIMIT: Final = 1 << 63
_LOOKS_BEFORE_RETRY: Final = 4
"""How often a segment that refused is asked about before its refusal is put to the test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Options of a writer.

    Attributes:
        block_size_bytes: a block is sent at this size even while others are on their way.
        in_flight_bytes_max: blocks that were sent and not yet acked.
        buffer_bytes_max: everything that was written and is not yet durable; beyond it `write` raises BufferFullError.
        drain_high_bytes, drain_low_bytes: `drain` waits above the one until it is below the other.
        delivery_timeout_s: how long blocks are sent again while the server cannot be reached or has no room.
    """

    block_size_bytes: int = 1 * MIB
    in_flight_bytes_max: int = 16 * MIB
    buffer_bytes_max: int = 256 * MIB
    drain_high_bytes: int = 16 * MIB
    drain_low_bytes: int = 8 * MIB
    delivery_timeout_s: float = 120.0
    compression: Compression = Compression.NONE

    def __post_init__(self) -> None:
        if not KIB <= self.block_size_bytes <= APPEND_SIZE_BYTES_MAX // 2:
            raise ValueError(f"block_size_bytes={self.block_size_bytes} must be 1 KiB to 8 MiB")
        if not 0 < self.drain_low_bytes <= self.drain_high_bytes <= self.buffer_bytes_max:
            raise ValueError("0 < drain_low_bytes <= drain_high_bytes <= buffer_bytes_max must hold")
        if self.in_flight_bytes_max <= 0 or self.delivery_timeout_s <= 0:
            raise ValueError("in_flight_bytes_max and delivery_timeout_s must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """What waits in a writer, how often it sent again, and how often the stream was scaled under it."""

    pending_bytes: int
    in_flight_bytes: int
    retries: int
    reroutes: int


class Writer:
    """Writes events to one stream. Made by `client.writer`; an async context manager; belongs to one event loop."""

    def __init__(
        self,
        channel: Channel,
        stream: str,
        *,
        writer_id: str | None,
        start_over_if_expired: bool = False,
        options: WriterOptions,
    ) -> None:
        self._channel = channel
        self._guard = channel.guard
        self.stream = stream
        self.writer_id = writer_id
        self._start_over = int(start_over_if_expired)
        self._options = options
        self.number = 0
        self.epoch = 0
        # Whether the server had seen the writer id before, and knows what it stored.
        self.known = False
        self._time_ns = channel.clock.time_ns
        self._loop = asyncio.get_running_loop()
        self._create_future: Callable[[], asyncio.Future[Stored]] = self._loop.create_future
        self._buffer_bytes_max = options.buffer_bytes_max
        # What the server takes: see `_heed_limits`.
        self.append_size_max = APPEND_SIZE_BYTES_MAX
        self._block_size_bytes = options.block_size_bytes
        self._event_size_unchecked = 0
        self._stream_id = 0
        self._router = Router((), ())
        self._lanes: list[Lane] = []
        # The lane that takes events without a key until its next block is full.
        self._current: Lane
        # Why nothing more can be written; set once.
        self._refusal: MillraceError | None = ClientClosedError("the writer is not open; use `async with`")
        # Why events were lost, for flush and exit.
        self._failure: MillraceError | None = None
        self._pending_bytes = 0
        self._in_flight_bytes = 0
        self._drained: deque[asyncio.Future[None]] = deque()
        self._standing: set[Lane] = set()
        self._blocked: deque[Lane] = deque()
        self._retry_task: asyncio.Task[None] | None = None
        self._retries = 0
        # The attempts since something was stored last; None as long as none failed.
        self._retry: Retry | None = None
        # The last event numbers in segments that were replaced and are still there.
        self._past_numbers: dict[int, int] = {}
        self._reroute_task: asyncio.Task[None] | None = None
        self._reroutes = 0
        # Set when a lane may have become vacant.
        self._answered = asyncio.Event()

    # --- life ---

    async def __aenter__(self) -> Self:
        """Open the writer."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close. When the body was cancelled nothing is waited for."""
        if kind is None:
            await self.close()
        elif issubclass(kind, Exception):
            try:
                await self.close()
            except MillraceError as second:  # the body's own error goes on; this one must not hide it
                logger.warning("events lost while leaving writer stream=%s error=%s", self.stream, second)
        else:
            self._stop(ClientClosedError("the writer was closed"))

    async def open(self) -> None:
        """Open the writer under a new epoch; an older one of the same id is fenced from now on.

        Raises:
            StreamNotFoundError, StreamSealedError: nothing can be written.
            WriterExpiredError: what this id stored is not known any more, since it was idle for too long.
            RequestTimeoutError: the stream changed faster than it could be asked about, for `delivery_timeout_s`.
        """
        retry = self._channel.retry(self._options.delivery_timeout_s)
        while True:
            stream = await self._channel.request(m.GetStream(self.stream), m.StreamInfo)
            router = Router.of_stream(self.stream, stream.segments)
            try:
                opened = await self._channel.request(
                    m.OpenWriter(self.writer_id or "", _asked(stream, router), self._start_over), m.WriterOpened
                )
                break
            except SegmentNotFoundError as error:
                # Truncated away, or the stream deleted, between the two requests.
                await retry.wait(stream_changed("the writer was not opened", self.stream, retry, error))
        self.number, self.epoch, self.known = opened.writer_number, opened.writer_epoch, bool(opened.known)
        # Whoever had the id may have found successors just before it was fenced. Now it writes nothing any more.
        while opened.known:
            stream = await self._channel.request(m.GetStream(self.stream), m.StreamInfo)
            router = Router.of_stream(self.stream, stream.segments)
            asked = _asked(stream, router)
            if {state.segment_id for state in opened.states}.issuperset(asked):
                break
            with suppress(SegmentNotFoundError):
                opened = await self._channel.request(m.GetWriter(self.writer_id or "", asked), m.WriterOpened)
            # At once: a stream that is scaled all the time has to stand still from that question to the next.
            retry.next_wait_s(stream_changed("the writer was not opened", self.stream, retry))
        self._heed_limits()
        self._stream_id = stream.stream_id
        self._router = router
        last = {state.segment_id: state.last_event_number for state in opened.states}
        self._lanes = [self._lane(segment_id, last.pop(segment_id, 0)) for segment_id in router.segment_ids]
        self._past_numbers = {segment_id: number for segment_id, number in last.items() if number}
        # Writers that start together do not fill the same segment first.
        self._current = self._lanes[self.number % len(self._lanes)]
        self._refusal = None

    async def close(self) -> None:
        """Wait until everything is durable, and close. Cancelling gives up what is not.

        Raises:
            MillraceError: why events were lost; the future of each says the same.
        """
        closed = ClientClosedError("the writer was closed")
        if self._refusal is None:
            try:
                await self.flush()
            finally:
                self._stop(closed)
        elif self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    # --- events in ---

    def write(
        self, value: bytes, *, key: str | None = None, timestamp_us: int | None = None
    ) -> "asyncio.Future[Stored]":
        """Take one event; the future is done when it is durable. Never waits.

        Cancelling the future does not take the event back. A future that nobody looks at is fine: `flush` and leaving
        the writer raise what went wrong.

        Args:
            key: events of one key are read in the order written; without one the order is not kept.
            timestamp_us: Unix microseconds; the clock of this machine if it is left out.

        Raises:
            EventTooLargeError: value above 8 MiB, key above 64 KiB, or more than one append of this server can hold;
                the event was not taken, and the writer goes on.
            BufferFullError: more than `buffer_bytes_max` waits; `await drain()` now and then.
            WriterFencedError, WriterExpiredError, SegmentSealedError, ClientClosedError: nothing can be written any
                more.
        """
        if self._refusal is not None or self._guard.forked:
            self._refuse()
        if type(value) is not bytes:
            value = _owned(value)
        size = len(value)
        if size > self._event_size_unchecked:
            self._check_size(size, key)
        if timestamp_us is None:
            timestamp_us = self._time_ns() // 1000
        else:
            _check_timestamp(timestamp_us)
        cost_bytes = size + EVENT_COST_BYTES
        if key is None:
            lane = self._current
        else:
            lane = self._lanes[self._router.number_of(key)]
            cost_bytes += len(key)
        pending_bytes = self._pending_bytes + cost_bytes
        if pending_bytes > self._buffer_bytes_max:
            raise BufferFullError(pending_bytes=self._pending_bytes, limit_bytes=self._buffer_bytes_max)
        self._pending_bytes = pending_bytes
        # A million times a second: the lane's lists are filled here, not by a call (0.1 us each).
        lane.values.append(value)
        lane.keys.append(key)
        lane.times.append(timestamp_us)
        future = self._create_future()
        lane.futures.append(future)
        lane.gathered_bytes = gathered_bytes = lane.gathered_bytes + cost_bytes
        if gathered_bytes >= self._block_size_bytes:
            lane.seal()
            lane.pump()
            self._rotate(lane)
        elif not lane.scheduled:
            lane.schedule()
        return future

    def write_many(
        self,
        values: Sequence[bytes],
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        timestamps_us: Timestamps = None,
    ) -> "asyncio.Future[Stored]":
        """Take many events; the future is done when all are durable. Never waits.

        With one key, or none, they become one block: contiguous in one segment and stored all or nothing. With a key
        for each (`keys`) they become one such block per segment; the future then holds where the last one is. If a
        segment is split before it has stored its block, that block becomes one per successor.

        Args:
            timestamps_us: one for all, or one for each; the clock of this machine if they are left out.

        Raises:
            EventTooLargeError: an event above 8 MiB, or more than one append can hold (16 MiB, if the server is not
                set to less); nothing was taken.
            InvalidArgumentError: no events, or another count of keys or timestamps; nothing was taken.
            BufferFullError, WriterFencedError, SegmentSealedError, ClientClosedError: see `write`.
        """
        if self._refusal is not None or self._guard.forked:
            self._refuse()
        if self._pending_bytes > self._buffer_bytes_max:
            raise BufferFullError(pending_bytes=self._pending_bytes, limit_bytes=self._buffer_bytes_max)
        if timestamps_us is None:
            timestamps_us = self._time_ns() // 1000
        if keys is not None:
            if key is not None:
                raise InvalidArgumentError("give key or keys, not both")
            return self._write_by_keys(values, keys, timestamps_us)
        lane = self._current if key is None else self._lanes[self._router.number_of(key)]
        future = self._create_future()
        values = values if isinstance(values, list) else list(values)
        payload = lane.prepare(values, key, timestamps_us)
        self._pending_bytes += lane.add_block(payload, len(values), future)
        lane.pump()
        if key is None:
            self._rotate(lane)
        return future

    async def send(
        self, value: bytes, *, key: str | None = None, timestamp_us: int | None = None
    ) -> "asyncio.Future[Stored]":
        """Wait for room, then write; return the future of the write. Cancelling while it waits writes nothing."""
        await self.drain()
        return self.write(value, key=key, timestamp_us=timestamp_us)

    async def drain(self) -> None:
        """Wait if more than `drain_high_bytes` is not yet durable, until it is `drain_low_bytes`. Cancelling is safe.

        Raises:
            MillraceError: the writer failed; see `write`.
        """
        while self._pending_bytes > self._options.drain_high_bytes and self._refusal is None:
            waiter = self._loop.create_future()
            self._drained.append(waiter)
            await waiter
        if self._refusal is not None:
            self._refuse()

    async def flush(self) -> None:
        """Wait until everything written before this call is durable. Cancelling is safe.

        Raises:
            MillraceError: why events were lost; the future of each says the same.
        """
        self._guard.check()
        while True:
            reroutes = self._reroutes
            for settled in self._unsettled():
                await asyncio.shield(settled)
            if reroutes == self._reroutes:
                break
            # What was waited for went to other lanes: wait there.
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    # --- what is known ---

    @property
    def last_event_numbers(self) -> dict[int, int]:
        """The number of the last durable event of this writer in each segment; 0 where it never wrote.

        Numbers start from 1 in each segment, and leave none out: together they count the durable events of the writer,
        as long as nothing was truncated. What a producer with one key wrote first is what is counted, so one that was
        killed goes on behind that many; one with many keys has to count by key, or to flush before it moves on.
        """
        return {**self._past_numbers, **{lane.segment_id: lane.last_acked_number for lane in self._lanes}}

    @property
    def pending_bytes(self) -> int:
        """What was written and is not yet durable, with what its objects cost."""
        return self._pending_bytes

    def statistics(self) -> WriterStatistics:
        """Return what waits, and how often blocks were sent again."""
        return WriterStatistics(
            pending_bytes=self._pending_bytes,
            in_flight_bytes=self._in_flight_bytes,
            retries=self._retries,
            reroutes=self._reroutes,
        )

    # --- what the lanes ask ---

    def connection_with_room(self, lane: Lane, size: int) -> Connection | None:
        """Return the connection if a block may be sent now; called by a lane."""
        connection = self._channel.live
        if connection is None:
            self._standing.add(lane)
            self._start_retry(ConnectionLostError(f"not connected to {self._channel.address}"))
            return None
        if self._in_flight_bytes and self._in_flight_bytes + size > self._options.in_flight_bytes_max:
            if lane not in self._blocked:
                self._blocked.append(lane)
            return None
        if not connection.has_room(size):
            if lane not in self._blocked:
                self._blocked.append(lane)
                connection.room_waiter().add_done_callback(lambda _: self._pump_blocked())
            return None
        return connection

    def block_sent(self, size: int) -> None:
        """Count a block as on its way; called by a lane."""
        self._in_flight_bytes += size

    def block_answered(self, size: int) -> None:
        """Count a block as answered; called by a lane."""
        self._in_flight_bytes -= size
        if self._blocked:
            self._pump_blocked()

    def block_settled(self, cost_bytes: int) -> None:
        """Give back the memory of a block; called by a lane."""
        self._pending_bytes -= cost_bytes
        assert self._pending_bytes >= 0
        self._retry = None
        self._answered.set()
        if self._drained and self._pending_bytes <= self._options.drain_low_bytes:
            self._wake_drained()

    def retry_wanted(self, error: MillraceError) -> None:
        """Resume the lanes that stand still, after a wait; called by a lane."""
        if self._refusal is not None:
            self._stop_lanes(self._refusal)
            return
        self._standing.update(self._lanes)
        self._answered.set()
        self._start_retry(error)

    def lane_stalled(self, lane: Lane) -> None:
        """Find out what replaced the segment of a lane, and write there; called by a lane."""
        del lane  # all of them are looked at
        if self._refusal is not None:
            self._stop_lanes(self._refusal)
            return
        self._answered.set()
        if self._reroute_task is None:
            self._reroute_task = asyncio.create_task(self._reroute(), name=f"writer of {self.stream} finds successors")
            self._reroute_task.add_done_callback(self._rerouted)

    def fail(self, error: MillraceError) -> None:
        """End the writer; called by a lane."""
        if self._failure is None and self._refusal is None:
            self._failure = error
            logger.warning("writer failed stream=%s writer_id=%s error=%s", self.stream, self.writer_id, error)
            self._stop(error)

    # --- inside ---

    def _refuse(self) -> None:
        self._guard.check()
        assert self._refusal is not None
        raise self._refusal

    def _heed_limits(self) -> None:
        """Keep blocks below the largest append of the server, which is what the last connection said."""
        self.append_size_max = self._channel.append_size_max
        self._block_size_bytes = min(self._options.block_size_bytes, self.append_size_max // 2)
        self._event_size_unchecked = min(EVENT_SIZE_BYTES_MAX, self.append_size_max - _SINGLE_OVERHEAD_BYTES_MAX)

    def _check_size(self, size: int, key: str | None) -> None:
        """Raise EventTooLargeError if an event of that size fits no append."""
        if size > EVENT_SIZE_BYTES_MAX:
            raise EventTooLargeError(f"an event holds at most {EVENT_SIZE_BYTES_MAX} bytes, not {size}")
        needed_bytes = size_of_single(size, key_size=None if key is None else len(encoded_key(key)))
        if needed_bytes > self.append_size_max:
            raise EventTooLargeError(
                f"an event of {size} bytes needs an append of {needed_bytes}; this server takes {self.append_size_max}"
            )

    def _lane(self, segment_id: int, last_event_number: int) -> Lane:
        return Lane(
            self,
            segment_id=segment_id,
            last_event_number=last_event_number,
            compression=self._options.compression,
        )

    def _unsettled(self) -> "list[asyncio.Future[None]]":
        """Let everything leave, and return what is done when it is settled or must be looked for again."""
        waiters = []
        for lane in self._lanes:
            lane.seal()
            lane.pump()
            block = lane.last_block()
            if block is not None:
                if block.settled is None:
                    block.settled = self._loop.create_future()
                waiters.append(block.settled)
        return waiters

    def _rotate(self, lane: Lane) -> None:
        """Let events without a key go to another segment, if it is this one's block that is full."""
        if lane is self._current:
            self._current = self._lanes[(self._lanes.index(lane) + 1) % len(self._lanes)]

    def _write_by_keys(
        self, values: Sequence[bytes], keys: Sequence[str], timestamps_us: int | Sequence[int] | npt.NDArray[np.int64]
    ) -> "asyncio.Future[Stored]":
        if len(keys) != len(values) or not (isinstance(timestamps_us, int) or len(timestamps_us) == len(values)):
            raise InvalidArgumentError(f"{len(values)} events need as many keys, and as many timestamps or one")
        if not len(values):
            raise InvalidArgumentError("there are no events")
        numbers = self._router.numbers_of(keys)
        times = None if isinstance(timestamps_us, int) else np.asarray(timestamps_us, dtype=np.int64)
        prepared: list[tuple[Lane, bytearray, int]] = []
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            places = chosen.tolist()
            lane = self._lanes[number]
            payload = lane.prepare(
                [values[place] for place in places],
                [keys[place] for place in places],
                timestamps_us if times is None else times[chosen],
            )
            prepared.append((lane, payload, len(places)))
        # Nothing was taken until here, where all is known to fit.
        result = self._create_future()
        join = _Join(result, len(prepared))
        for lane, payload, count in prepared:
            future = self._create_future()
            future.add_done_callback(join.done)
            self._pending_bytes += lane.add_block(payload, count, future)
            lane.pump()
        return result

    def _pump_blocked(self) -> None:
        """Give every lane that waits for room its turn, in the order they came."""
        blocked, self._blocked = self._blocked, deque()
        for lane in blocked:
            lane.pump()

    def _trouble(self) -> Retry:
        if self._retry is None:
            self._retry = self._channel.retry(self._options.delivery_timeout_s, passes=passes)
        return self._retry

    def _start_retry(self, error: MillraceError) -> None:
        if self._retry_task is None and self._refusal is None:
            self._retry_task = asyncio.create_task(self._resume_later(error), name=f"writer of {self.stream}")
            self._retry_task.add_done_callback(self._retried)

    async def _resume_later(self, error: MillraceError) -> None:
        """Wait, connect, and let the lanes go on; or end the writer when its patience is over."""
        retry = self._trouble()
        self._retries += 1
        try:
            wait_s = retry.next_wait_s(error)
            # Connecting has waits of its own; the first attempt after a loss is made at once.
            if retry.failures > 1 or not isinstance(error, ConnectionLostError):
                await self._channel.clock.sleep(wait_s)
            await self._channel.connection_by(retry)
            self._heed_limits()
        except MillraceError as last:
            unknown = OutcomeUnknownError(f"given up after {self._options.delivery_timeout_s:g} s: {last}")
            unknown.__cause__ = last
            self.fail(last if isinstance(last, ThrottledError) or not last.retriable else unknown)

    def _retried(self, task: "asyncio.Task[None]") -> None:
        self._retry_task = None
        standing, self._standing = self._standing, set()
        if task.cancelled() or self._refusal is not None:
            return
        task.result()  # our own bug, if anything: the loop's exception handler names it
        for lane in self._lanes:
            if lane in standing:
                lane.resume()

    # --- a stream that is scaled ---

    async def _reroute(self) -> None:
        """Take what replaced segments did not store to their successors; or end the writer if there are none."""
        retry = self._channel.retry(self._options.delivery_timeout_s, passes=passes)
        try:
            while any(lane.is_stalled for lane in self._lanes):
                await self._follow(retry)
        except MillraceError as error:
            self.fail(error)

    async def _follow(self, retry: Retry) -> None:
        """Look at the stream once, and do what it tells."""
        stream = await self._channel.request(m.GetStream(self.stream), m.StreamInfo)
        self._check_same(stream)
        router = Router.of_stream(self.stream, stream.segments)
        still_open = [lane for lane in self._lanes if lane.is_stalled and lane.segment_id in router.segment_ids]
        if still_open:
            # What sealed them is not durable yet. If the server was killed before it was, it never will be.
            await retry.wait(OutcomeUnknownError(f"{self.stream}: its segments refuse, and nothing replaces them"))
            if retry.failures % _LOOKS_BEFORE_RETRY == 0:
                for lane in still_open:
                    lane.retry_refused()
            return
        replaced = [lane for lane in self._lanes if lane.segment_id not in router.segment_ids]
        kept = {lane.segment_id for lane in self._lanes}
        try:
            last = await self._last_numbers([each for each in router.segment_ids if each not in kept])
        except SegmentNotFoundError:
            return  # replaced and truncated away meanwhile: look again
        # All of them, or a key would overtake itself: events of another lane that is not known to have stored them.
        while not all(lane.is_vacant for lane in replaced):
            self._answered.clear()
            await self._answered.wait()
        self._switch(router, replaced, last, left_ids={segment.segment_id for segment in stream.segments})

    def _check_same(self, stream: m.StreamInfo) -> None:
        if stream.stream_id != self._stream_id:
            raise StreamNotFoundError(f"{self.stream} was deleted; the one of that name now is another stream")

    async def _last_numbers(self, segment_ids: list[int]) -> dict[int, int]:
        """Return what this writer has written to segments that are new to it.

        Nothing, as a rule. Who had the id before may have been quicker to find them, until the moment it was fenced.
        """
        if not self.writer_id or not segment_ids:
            return {}
        reply = await self._channel.request(m.GetWriter(self.writer_id, segment_ids), m.WriterOpened)
        return {state.segment_id: state.last_event_number for state in reply.states}

    def _switch(self, router: Router, replaced: list[Lane], last: dict[int, int], *, left_ids: set[int]) -> None:
        """Give the events of replaced lanes to the successors; from now on all are written there."""
        kept = {lane.segment_id: lane for lane in self._lanes if lane not in replaced}
        numbers = self.last_event_numbers
        self._router = router
        self._lanes = [
            kept.get(segment_id) or self._lane(segment_id, last.get(segment_id, 0)) for segment_id in router.segment_ids
        ]
        self._past_numbers = {
            segment_id: number
            for segment_id, number in numbers.items()
            if number and segment_id in left_ids and segment_id not in kept
        }
        self._standing.difference_update(replaced)
        self._blocked = deque(lane for lane in self._blocked if lane not in replaced)
        if self._current in replaced:
            self._current = self._lanes[self.number % len(self._lanes)]
        count = 0
        for lane in replaced:
            for unstored in lane.take_unstored():
                self._write_again(unstored)
                count += len(unstored.values)
        self._reroutes += 1
        logger.debug(
            "stream scaled under writer stream=%s replaced=%s events=%d",
            self.stream, [lane.segment_id for lane in replaced], count,
        )  # fmt: skip
        for lane in self._lanes:
            if lane.values and not lane.scheduled:
                lane.schedule()
            lane.pump()

    def _write_again(self, unstored: Unstored) -> None:
        """Put events that a replaced segment did not store into the lanes where they belong now."""
        values, keys, times, futures, cost_bytes, settled = unstored
        lanes = [self._current if key is None else self._lanes[self._router.number_of(key)] for key in keys]
        self._pending_bytes -= cost_bytes
        if unstored.is_block:
            parts: dict[Lane, list[int]] = {}
            for index, lane in enumerate(lanes):
                parts.setdefault(lane, []).append(index)
            join = _Join(futures[0], len(parts))
            for lane, places in parts.items():
                payload = lane.prepare(
                    [values[place] for place in places],
                    None if keys[0] is None else [keys[place] for place in places],
                    [times[place] for place in places],
                )
                future = self._create_future()
                future.add_done_callback(join.done)
                self._pending_bytes += lane.add_block(payload, len(places), future)
        else:
            for value, key, time_us, future, lane in zip(values, keys, times, futures, lanes, strict=True):
                cost_bytes = len(value) + EVENT_COST_BYTES + (len(key) if key is not None else 0)
                self._pending_bytes += cost_bytes
                lane.values.append(value)
                lane.keys.append(key)
                lane.times.append(time_us)
                lane.futures.append(future)
                lane.gathered_bytes += cost_bytes
                if lane.gathered_bytes >= self._block_size_bytes:
                    lane.seal()
        if settled is not None and not settled.done():
            settled.set_result(None)

    def _rerouted(self, task: "asyncio.Task[None]") -> None:
        self._reroute_task = None
        if task.cancelled() or self._refusal is not None:
            return
        task.result()  # our own bug, if anything: the loop's exception handler names it
        if any(lane.is_stalled for lane in self._lanes):  # refused between the last look and now
            self.lane_stalled(self._lanes[0])

    # --- the end ---

    def _stop(self, error: MillraceError) -> None:
        """Refuse further events and fail those that are not on their way."""
        if self._refusal is None:
            self._refusal = error
        for task in (self._retry_task, self._reroute_task):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._stop_lanes(error)
        self._wake_drained()

    def _stop_lanes(self, error: MillraceError) -> None:
        for lane in self._lanes:
            lane.stop(error)

    def _wake_drained(self) -> None:
        drained, self._drained = self._drained, deque()
        for waiter in drained:
            if not waiter.done():
                waiter.set_result(None)


class _Join:
    """Resolves one future when several are done."""

    __slots__ = ("_missing", "_result")

    def __init__(self, result: "asyncio.Future[Stored]", count: int) -> None:
        self._result = result
        self._missing = count

    def done(self, future: "asyncio.Future[Stored]") -> None:
        """Count one; the first error ends the wait."""
        self._missing -= 1
        if self._result.done():
            return
        error = future.exception()
        if error is not None:
            self._result.set_exception(error)
            self._result.exception()  # retrieved: flush raises it too
        elif self._missing == 0:
            self._result.set_result(future.result())


def _asked(stream: m.StreamInfo, router: Router) -> list[int]:
    """Return the segments whose event numbers are asked for: all, or the open ones where all are too many."""
    everything = [segment.segment_id for segment in stream.segments]
    return everything if len(everything) <= SEGMENTS_PER_STREAM_MAX else list(router.segment_ids)


def _owned(value: object) -> bytes:
    """Return bytes of our own: the caller may change a bytearray before it is sent."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"an event is bytes, not {type(value).__name__}")


def _check_timestamp(timestamp_us: int) -> None:
    if not isinstance(timestamp_us, int):
        raise TypeError(f"timestamp_us is an integer of Unix microseconds, not {type(timestamp_us).__name__}")
    if not -_INT64_LIMIT <= timestamp_us < _INT64_LIMIT:
        raise InvalidArgumentError(f"timestamp_us={timestamp_us} does not fit 64 bits")
