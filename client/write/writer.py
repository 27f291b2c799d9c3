"""The writer of a stream: events in, futures out, every event durable once.

Events of one key are stored in the order written, and their futures resolve in that order; blocks of different segments
are independent. Each write counts against a bound until it is durable: above `drain_high_bytes`, `drain()` waits
until `drain_low_bytes` are left, and a caller that never waits meets `BufferFullError` at `buffer_bytes_max`.

A writer with an id is persistent: the server knows its last event number per segment, and opening the id again fences
the writer that had it. After a lost connection the blocks without an ack are sent again as they were packed, under the
same epoch, and the server stores each event number once; so a writer that was fenced stays so.

    Writer         the calls of the application
    Accumulator    gathers the events of a segment into blocks
    Delivery       sends blocks, within its bounds, until each is durable or the writer has failed
    SegmentWriter  the state of sending to one segment
    Rerouter       finds the successors when the stream is scaled; see there
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from millrace.client.errors import BufferFullError, ClientClosedError, NotOpenError, SegmentNotFoundError
from millrace.client.transport.channel import Channel
from millrace.model.block_packing import NO_HEADERS, Headers, Timestamps, checked_headers, size_of_single
from millrace.model.errors import EventTooLargeError, InvalidArgumentError
from millrace.model.limits import EVENT_SIZE_BYTES_MAX, SEGMENTS_PER_STREAM_MAX
from millrace.wire import messages as m

from .delivery import Delivery
from .events import EVENT_COST_BYTES, Call, Events, Stored
from .options import WriterOptions, delivery_limit_s
from .reroute import Rerouter, split_events
from .routing import Router, encoded_key
from .writer_info import stream_changed

logger = logging.getLogger(__name__)

_INT64_LIMIT: Final = 1 << 63


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
        self._create_future: Callable[[], asyncio.Future[Stored]] = asyncio.get_running_loop().create_future
        self._buffer_bytes_max = options.buffer_bytes_max
        limit_s = delivery_limit_s(options.delivery_timeout_s, is_named=writer_id is not None)
        self._delivery = Delivery(channel, stream, options, limit_s=limit_s)

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
            except Exception as second:  # noqa: BLE001  # the error of the body continues; this one must not hide it
                logger.warning("events lost while leaving writer stream=%s error=%s", self.stream, second)
        else:
            self._delivery.stop(ClientClosedError("the writer was closed"))

    async def open(self) -> None:
        """Open the writer under a new epoch; an older one of the same id is fenced from now on.

        Raises:
            StreamNotFoundError, StreamSealedError: nothing can be written.
            WriterExpiredError: what this id stored is not known any more, since it was idle for too long.
            RequestTimeoutError: the stream changed faster than it could be asked about, for `request_timeout_s`.
        """
        retry = self._channel.retry()
        while True:
            stream = await self._channel.request(m.GetStream(self.stream))
            router = Router.of_stream(self.stream, stream.segments)
            try:
                opened = await self._channel.request(
                    m.OpenWriter(self.writer_id or "", _asked(stream, router), self._start_over)
                )
                break
            except SegmentNotFoundError as error:
                # Truncated away, or the stream deleted, between the two requests.
                await retry.wait(stream_changed("the writer was not opened", self.stream, retry, error))
        self.number, self.epoch, self.known = opened.writer_number, opened.writer_epoch, bool(opened.known)
        # The writer that had the id may have found successors just before it was fenced. Now it writes no more.
        while opened.known:
            stream = await self._channel.request(m.GetStream(self.stream))
            router = Router.of_stream(self.stream, stream.segments)
            asked = _asked(stream, router)
            if {state.segment_id for state in opened.states}.issuperset(asked):
                break
            with suppress(SegmentNotFoundError):
                opened = await self._channel.request(m.GetWriter(self.writer_id or "", asked))
            # At once: the two answers agree only if the stream is not scaled between them.
            retry.next_wait_s(stream_changed("the writer was not opened", self.stream, retry))
        self._delivery.start(
            self.number,
            self.epoch,
            router=router,
            last={state.segment_id: state.last_event_number for state in opened.states},
            rerouter=Rerouter(self._channel, stream, writer_id=self.writer_id or ""),
        )

    async def close(self) -> None:
        """Wait until everything is durable, and close. Cancelling abandons what is not.

        Raises:
            MillraceError: why events were lost; the future of each says the same.
        """
        if self._delivery.refusal is None:
            try:
                await self.flush()
            finally:
                self._delivery.stop(ClientClosedError("the writer was closed"))
        else:
            self._raise_failure()

    # --- events in ---

    def write(
        self,
        value: bytes,
        *,
        key: str | None = None,
        timestamp_us: int | None = None,
        headers: Headers | None = None,
    ) -> "asyncio.Future[Stored]":
        """Take one event; the future is done when it is durable. Never waits.

        Cancelling the future does not take the event back. A future may be ignored: `flush` and leaving
        the writer raise what went wrong.

        Args:
            key: events of one key are read in the order written; without one the order is not kept.
            timestamp_us: Unix microseconds; the clock of this machine if it is left out.
            headers: names (text) to bytes: at most 64, and 64 KiB together.

        Raises:
            EventTooLargeError: value above 8 MiB, key or headers above 64 KiB, more than 64 headers, or more than one
                append of this server can hold; the event was not taken, and the writer remains usable.
            TypeError, InvalidArgumentError: value, key, timestamp or headers are none; the event was not taken.
            BufferFullError: more than `buffer_bytes_max` waits; `await drain()` now and then.
            WriterFencedError, WriterExpiredError, StreamSealedError, StreamNotFoundError, ThrottledError,
                OutcomeUnknownError, ClientClosedError: nothing can be written any more. It is why the writer failed,
                or that it was closed; a full server (ThrottledError) or a lost one (OutcomeUnknownError) ends it after
                `delivery_timeout_s`.
        """
        delivery = self._delivery
        if delivery.refusal is not None or self._guard.forked:
            self._refuse()
        if type(value) is not bytes:
            value = owned(value)
        size = len(value)
        cost_bytes = size + EVENT_COST_BYTES
        if headers:
            headers, headers_size = checked_headers(headers)
            cost_bytes += headers_size
            self._check_size(size, key, headers)
        elif size > delivery.event_size_unchecked:
            self._check_size(size, key, None)
        if timestamp_us is None:
            timestamp_us = self._time_ns() // 1000
        else:
            _check_timestamp(timestamp_us)
        if key is None:
            segment = delivery.current
        else:
            segment = delivery.segments[delivery.router.number_of(key)]
            cost_bytes += len(key)
        pending_bytes = delivery.pending_bytes + cost_bytes
        if pending_bytes > self._buffer_bytes_max:
            raise BufferFullError(pending_bytes=delivery.pending_bytes, limit_bytes=self._buffer_bytes_max)
        delivery.pending_bytes = pending_bytes
        # A million times a second: the accumulator's lists are filled here, not by a call (0.1 us each).
        gathered = segment.accumulator
        if headers:
            gathered.headers[len(gathered.values)] = headers
        gathered.values.append(value)
        gathered.keys.append(key)
        gathered.times.append(timestamp_us)
        future = self._create_future()
        gathered.futures.append(future)
        gathered.gathered_bytes = gathered_bytes = gathered.gathered_bytes + cost_bytes
        if gathered_bytes >= delivery.block_size_bytes:
            delivery.send_gathered(segment)
            delivery.rotate(segment)
        elif not gathered.scheduled:
            delivery.schedule(segment)
        return future

    def write_many(
        self,
        values: Sequence[bytes],
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        timestamps_us: Timestamps = None,
        headers: Headers | Sequence[Headers | None] | None = None,
    ) -> "asyncio.Future[Stored]":
        """Take many events; the future is done when all are durable. Never waits.

        With one key, or none, they become one block: contiguous in one segment and stored all or nothing. With a key
        for each (`keys`) they become one such block per segment; the future then holds where the last one is. If a
        segment is split before it has stored its block, that block becomes one per successor.

        Args:
            timestamps_us: one for all, or one for each; the clock of this machine if they are left out.
            headers: the same for all, or of each its own (None: none).

        Raises:
            EventTooLargeError: an event above 8 MiB, or more than one append can hold (16 MiB, if the server is not
                set to less); nothing was taken.
            TypeError, InvalidArgumentError: no events, values that are none, or another count of keys, timestamps or
                headers; nothing was taken.
            MillraceError: nothing can be written now (BufferFullError) or any more; see `write`.
        """
        delivery = self._delivery
        if delivery.refusal is not None or self._guard.forked:
            self._refuse()
        if delivery.pending_bytes > self._buffer_bytes_max:
            raise BufferFullError(pending_bytes=delivery.pending_bytes, limit_bytes=self._buffer_bytes_max)
        if timestamps_us is None:
            timestamps_us = self._time_ns() // 1000
        headers_by_index = _headers_by_index(headers, len(values)) if headers else NO_HEADERS
        if keys is not None:
            if key is not None:
                raise InvalidArgumentError("give key or keys, not both")
            return self._write_by_keys(values, keys, timestamps_us, headers_by_index)
        segment = delivery.current if key is None else delivery.segments[delivery.router.number_of(key)]
        values = values if isinstance(values, list) else list(values)
        call = Call(self._create_future())
        events = Events(values, key, timestamps_us, [], 0, headers_by_index, call)
        delivery.send_packed(call, [(segment, delivery.pack(segment, events))])
        if key is None:
            delivery.rotate(segment)
        return call.future

    async def send(
        self,
        value: bytes,
        *,
        key: str | None = None,
        timestamp_us: int | None = None,
        headers: Headers | None = None,
    ) -> "asyncio.Future[Stored]":
        """Wait for room, then write; return the future of the write. Cancelling while it waits writes nothing."""
        await self.drain()
        return self.write(value, key=key, timestamp_us=timestamp_us, headers=headers)

    async def drain(self) -> None:
        """Wait if more than `drain_high_bytes` is not yet durable, until it is `drain_low_bytes`. Cancelling is safe.

        Raises:
            MillraceError: the writer failed; see `write`.
        """
        await self._delivery.drain()
        if self._delivery.refusal is not None:
            self._refuse()

    def has_room(self, size_bytes: int) -> bool:
        """Whether `drain` would not wait if so much more were written. May be called in any thread."""
        return self._delivery.has_room(size_bytes)

    def note_failure(self, error: Exception) -> None:
        """Let `flush` and leaving the writer raise an error of `write` that its caller did not see."""
        self._delivery.failure = self._delivery.failure or error

    async def flush(self) -> None:
        """Wait until everything written before this call is durable. Cancelling is safe.

        Raises:
            MillraceError: why events were lost; the future of each says the same.
        """
        self._guard.check()
        if isinstance(self._delivery.refusal, NotOpenError):
            self._refuse()
        await self._delivery.flush()
        self._raise_failure()

    # --- what is known ---

    @property
    def last_event_numbers(self) -> dict[int, int]:
        """The number of the last durable event of this writer in each segment; 0 where it never wrote.

        Numbers start from 1 in each segment, and leave none out: together they count the durable events of the writer,
        as long as nothing was truncated. What a producer with one key wrote first is what is counted, so one that was
        killed resumes after that many; one with many keys has to count by key, or to flush before it moves on.
        """
        return self._delivery.last_event_numbers

    @property
    def pending_bytes(self) -> int:
        """What was written and is not yet durable, with what its objects cost."""
        return self._delivery.pending_bytes

    def statistics(self) -> WriterStatistics:
        """Return what waits, and how often blocks were sent again."""
        return WriterStatistics(
            pending_bytes=self._delivery.pending_bytes,
            in_flight_bytes=self._delivery.in_flight_bytes,
            retries=self._delivery.retries,
            reroutes=self._delivery.reroutes,
        )

    # --- inside ---

    def _refuse(self) -> None:
        self._guard.check()
        assert self._delivery.refusal is not None
        raise self._delivery.refusal.with_traceback(None)  # or each raise would add to it

    def _raise_failure(self) -> None:
        """Tell, once, why events were lost."""
        failure, self._delivery.failure = self._delivery.failure, None
        if failure is not None:
            raise failure

    def _check_size(self, size: int, key: str | None, headers: Headers | None) -> None:
        """Raise EventTooLargeError if an event of that size fits no append."""
        if size > EVENT_SIZE_BYTES_MAX:
            raise EventTooLargeError(f"an event holds at most {EVENT_SIZE_BYTES_MAX} bytes, not {size}")
        needed_bytes = size_of_single(size, key_size=None if key is None else len(encoded_key(key)), headers=headers)
        append_size_max = self._delivery.append_size_max
        if needed_bytes > append_size_max:
            raise EventTooLargeError(
                f"an event of {size} bytes needs an append of {needed_bytes}; this server takes {append_size_max}"
            )

    def _write_by_keys(
        self,
        values: Sequence[bytes],
        keys: Sequence[str],
        timestamps_us: int | Sequence[int] | npt.NDArray[np.int64],
        headers: Mapping[int, Headers],
    ) -> "asyncio.Future[Stored]":
        if len(keys) != len(values) or not (isinstance(timestamps_us, int) or len(timestamps_us) == len(values)):
            raise InvalidArgumentError(f"{len(values)} events need as many keys, and as many timestamps or one")
        if not len(values):
            raise InvalidArgumentError("there are no events")
        times = timestamps_us if isinstance(timestamps_us, int) else list(timestamps_us)
        call = Call(self._create_future())
        events = Events(list(values), list(keys), times, [], 0, headers, call)
        delivery = self._delivery
        packed = []
        for number, part in split_events(events, delivery.router.numbers_of(keys)):
            segment = delivery.segments[number]
            packed.append((segment, delivery.pack(segment, part)))
        # Nothing was taken until here, where all is known to fit.
        delivery.send_packed(call, packed)
        return call.future


def _asked(stream: m.StreamInfo, router: Router) -> list[int]:
    """Return the segments whose event numbers are asked for: all, or the open ones where all are too many."""
    everything = [segment.segment_id for segment in stream.segments]
    return everything if len(everything) <= SEGMENTS_PER_STREAM_MAX else list(router.segment_ids)


def owned(value: object) -> bytes:
    """Return bytes of our own: the caller may change a bytearray before it is sent."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"an event is bytes, not {type(value).__name__}")


def _headers_by_index(headers: Headers | Sequence[Headers | None], count: int) -> Mapping[int, Headers]:
    """Return the headers of many events by their index, checked."""
    if isinstance(headers, Mapping):
        return dict.fromkeys(range(count), checked_headers(headers)[0])
    if len(headers) != count:
        raise InvalidArgumentError(f"{len(headers)} headers for {count} events")
    return {index: checked_headers(each)[0] for index, each in enumerate(headers) if each}


def _check_timestamp(timestamp_us: int) -> None:
    if not isinstance(timestamp_us, int):
        raise TypeError(f"timestamp_us is an integer of Unix microseconds, not {type(timestamp_us).__name__}")
    if not -_INT64_LIMIT <= timestamp_us < _INT64_LIMIT:
        raise InvalidArgumentError(f"timestamp_us={timestamp_us} does not fit 64 bits")
