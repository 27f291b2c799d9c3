"""The writer of a stream: it takes events, returns futures, and stores every event exactly once.

Events of one key are stored in the order written, and their futures resolve in that order; blocks of different segments
are independent. Backpressure: each write counts against a bound until it is durable. Above `drain_high_bytes`,
`drain()` waits until `drain_low_bytes` are left; without draining, `write` raises `BufferFullError` at
`buffer_bytes_max`.

A writer with an id is persistent: opening the id again fences the previous writer with it, and returns how far the
sequences of its events are stored (`sequences.py`). After a lost connection, blocks without an ack are resent as they
were packed, under the same epoch. The server stores each event number once, and a fenced writer stays fenced.

    Writer         the public calls
    Accumulator    gathers the events of a segment into blocks
    Delivery       retries blocks until each is durable or the writer has failed
    BlockSender    sends blocks while there is room in flight
    SegmentWriter  state machine of sending to one segment
    Rerouter       finds the successors when the stream is scaled
    Outcomes       resolves futures in the order written
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from millrace.client.errors import BufferFullError, ClientClosedError, NotOpenError, StreamNotFoundError
from millrace.client.exit_flush import UnclosedWriter, WriterBacklog
from millrace.client.transport.channel import Channel
from millrace.model.block_packing import NO_HEADERS, Headers, Timestamps, checked_headers
from millrace.model.cut import StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.sequence_row import SEQUENCE_MAX
from millrace.model.shown import Handle, short
from millrace.wire import messages as m

from .arguments import check_size, checked_timestamp, checked_timestamps, headers_by_index, owned
from .delivery import Delivery
from .events import EVENT_COST_BYTES, NOTHING_STORED, Call, Events, WriteResult, order_of
from .exclusive import release_soon
from .leaving import leave, log_abandoned
from .life import check_new, state_of, unstored_of
from .opening import open_writer
from .options import WriterOptions, delivery_limit_s
from .refused_events import RefusedEvents
from .reroute import Rerouter, split_events
from .routing import place_of, places_of
from .sequences import NO_SEQUENCES, STORED_BEFORE, places_without_key

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """Bytes pending in a writer, its retries, and how often it was rerouted because the stream was scaled."""

    pending_bytes: int
    in_flight_bytes: int
    retries: int
    reroutes: int


class Writer(Handle):
    """Writes events to one stream. Made by `client.writer`; an async context manager; belongs to one event loop."""

    def __init__(
        self,
        channel: Channel,
        stream: str,
        *,
        writer_id: str | None,
        start_over_if_expired: bool = False,
        exclusive: bool = False,
        expected: StreamCut | Callable[[], Awaitable[StreamCut]] | None = None,
        options: WriterOptions,
    ) -> None:
        self._channel = channel
        self._guard = channel.guard
        self.stream = stream
        self.writer_id = writer_id
        self._start_over = start_over_if_expired
        self._is_exclusive = exclusive
        # Whether to release the stream when this writer ends, for whatever reason.
        self._has_stream = False
        self._expected = expected
        self._stream_id = 0
        self._options = options
        self.number = 0
        self.epoch = 0
        # Whether the server knew the writer id, and what it had stored.
        self.known = False
        self._time_ns = channel.clock.time_ns
        channel.guard.check()
        self._create_future: Callable[[], asyncio.Future[WriteResult]] = asyncio.get_running_loop().create_future
        self._buffer_bytes_max = options.buffer_bytes_max
        limit_s = delivery_limit_s(options.delivery_timeout_s, is_named=writer_id is not None)
        self._delivery = Delivery(channel, stream, options, limit_s=limit_s)
        self._targets = self._delivery.targets
        self._sequences = NO_SEQUENCES

    _unlisted = frozenset({"refused"})

    def _facts(self) -> Iterator[str]:
        yield f"of {self.stream} at {self._channel.address}"
        if self.writer_id is not None:
            yield f"id {short(self.writer_id)}"
        yield state_of(self._delivery.refusal)
        if self._delivery.pending_bytes:
            yield f"{self._delivery.pending_bytes:,} bytes pending"

    # --- life ---

    async def __aenter__(self) -> Self:
        """Open the writer."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close; if the body was cancelled, close without waiting."""
        await leave(kind, close=self.close, abandon=self._abandon, stream=self.stream)

    async def open(self) -> None:
        """Open the writer under a new epoch, which fences older writers with the same id.

        Raises:
            StreamNotFoundError, StreamSealedError: the stream accepts no events.
            WriterExpiredError: the id was idle for too long, so the server no longer knows what it stored.
            SequencesRefusedError: two events of this id had the same sequence; see `client.reset_sequences`.
            StreamHasExclusiveWriterError: the stream has an exclusive writer, and this writer is not exclusive.
            TailChangedError: the writer is exclusive, and the stream does not end at `expected`.
            RequestTimeoutError: for `request_timeout_s`, the stream was scaled faster than its segments could be
                fetched.
            ServerUnreachableError: no server answered within `request_timeout_s`. Once open, the writer waits out an
                outage.
            ClientClosedError, MillraceError: the writer was closed, or has failed.
            InvalidArgumentError: the writer is open already.
        """
        check_new(self._delivery.refusal)
        expected = await self._expected() if callable(self._expected) else self._expected
        opening = await open_writer(
            self._channel,
            self.stream,
            self.writer_id,
            start_over=self._start_over,
            is_exclusive=self._is_exclusive,
            expected=expected,
            retry=self._channel.retry(),
        )
        self._stream_id = opening.stream_id
        self.number, self.epoch, self.known = opening.number, opening.epoch, opening.known
        self._sequences = opening.sequences
        self._has_stream = self._is_exclusive and self.writer_id is None
        rerouter = Rerouter(
            self._channel,
            self.stream,
            stream_id=opening.stream_id,
            writer_id=self.writer_id or "",
            epoch=opening.epoch,
        )
        self._delivery.start(opening, rerouter)
        delivery = self._delivery
        delivery.at_exit = UnclosedWriter(
            self.stream, self._guard, unstored=partial(unstored_of, delivery), settle=delivery.flush
        )

    async def close(self) -> None:
        """Wait until all events are durable, and close. Cancelling abandons the others, and logs their number.

        An exclusive writer without an id releases the stream, even if events were lost or this call is cancelled,
        because no writer could take it over. An exclusive writer with an id keeps it.

        Raises:
            MillraceError: the reason why events were lost, as the future of each raises it; or why the stream could not
                be released.
        """
        if self._delivery.refusal is None:
            try:
                await self.flush()
                self._delivery.tell_stored()
                if self._has_stream:
                    await self._release()
            except asyncio.CancelledError as error:
                log_abandoned(unstored_of(self._delivery), stream=self.stream, cause=type(error))
                raise
            finally:
                self._stop()
        else:
            self._release_soon()
            self._raise_failure()

    # --- events in ---

    def write(
        self,
        value: bytes,
        *,
        key: str | None = None,
        sequence: int | None = None,
        timestamp_us: int | None = None,
        headers: Headers | None = None,
    ) -> "asyncio.Future[WriteResult]":
        """Append one event; the future resolves when the event is durable. Never waits.

        Cancelling the future does not remove the event. The future may be ignored: `flush` and leaving the context
        raise the error of a failed event.

        Args:
            key: events of one key are read in the order written; events without a key have no order.
            sequence: the caller's own number of the event, which makes the write idempotent; see `stored_through`. An
                event that an earlier writer with this id has stored is not stored again; its result has no position.
            timestamp_us: event time in Unix microseconds; defaults to the clock of this machine.
            headers: mapping of names (text) to bytes: at most 64, and 64 KiB in total.

        Raises:
            EventTooLargeError: value above 8 MiB, key or headers above 64 KiB, more than 64 headers, or larger than an
                append to this server may be. The event was not accepted; the writer remains usable.
            TypeError, InvalidArgumentError: value, key, sequence, timestamp or headers are invalid, or the sequence
                does not ascend; the event was not accepted.
            SequencesMixedError: either all events of this writer on the stream have a sequence, or none; the event was
                not accepted.
            BufferFullError: more than `buffer_bytes_max` is pending; `await drain()` regularly.
            WriterFencedError, WriterExpiredError, StreamHasExclusiveWriterError, StreamSealedError,
                StreamNotFoundError, ThrottledError, OutcomeUnknownError, ClientClosedError: the writer has failed for
                this reason, or was closed, and accepts no more events. A full server (ThrottledError) or an
                unreachable one (OutcomeUnknownError) fails it after `delivery_timeout_s`.
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
            check_size(size, key=key, headers=headers, append_size_max=delivery.append_size_max)
        elif size > delivery.event_size_unchecked:
            check_size(size, key=key, headers=None, append_size_max=delivery.append_size_max)
        if timestamp_us is None:
            time_ns = self._time_ns  # calling self._time_ns() directly would look up a method: 0.03 us
            timestamp_us = time_ns() // 1000
        else:
            timestamp_us = checked_timestamp(timestamp_us)
        targets, sequences = self._targets, self._sequences
        if sequence is not None or sequences.is_required:
            if not (type(sequence) is int and sequences.is_required and sequences.last < sequence <= SEQUENCE_MAX):
                sequence = sequences.check(sequence, has_taken=not sequences.is_required and delivery.has_taken)
            if sequence <= sequences.highest and sequences.is_stored(sequence, place=place_of(key, sequence=sequence)):
                return self._recognised(sequence)
        if key is not None:
            segment = targets.segments[targets.router.number_of(key)]
            cost_bytes += len(key)
        elif sequence is None:
            segment = targets.current
        else:
            segment = targets.segments[targets.router.number_of_sequence(sequence)]
        pending_bytes = delivery.pending_bytes + cost_bytes
        if pending_bytes > self._buffer_bytes_max:
            raise BufferFullError(pending_bytes=delivery.pending_bytes, limit_bytes=self._buffer_bytes_max)
        gathered = segment.accumulator
        if not gathered.scheduled:
            self._guard.check()  # once a block: too slow for every event
        delivery.pending_bytes = pending_bytes
        # A million times a second: the accumulator's lists are filled here, not by a call (0.1 us each).
        if headers:
            gathered.headers[len(gathered.values)] = headers
        gathered.values.append(value)
        gathered.keys.append(key)
        gathered.times.append(timestamp_us)
        if sequence is not None:
            gathered.sequences.append(sequence)
            sequences.take(sequence)
        create_future = self._create_future
        future = create_future()
        gathered.futures.append(future)
        gathered.gathered_bytes = gathered_bytes = gathered.gathered_bytes + cost_bytes
        if gathered_bytes >= delivery.block_size_bytes:
            delivery.send_gathered(segment)
            targets.rotate(segment)
        elif not gathered.scheduled:
            delivery.schedule(segment)
        return future

    def write_many(
        self,
        values: Sequence[bytes],
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        first_sequence: int | None = None,
        timestamps_us: Timestamps = None,
        headers: Headers | Sequence[Headers | None] | None = None,
    ) -> "asyncio.Future[WriteResult]":
        """Append many events; the future resolves when all are durable. Never waits.

        With one key, or none, the events become one block: contiguous in one segment, stored all or nothing. With a key
        for each event (`keys`), or with sequences and no keys, they become one such block per segment, and the future
        returns the position of the last one. If a segment is split before it has stored its block, the block is split
        among its successors. Without events nothing is written, and the future is done.

        Args:
            first_sequence: sequence of the first event; the others follow without a gap. Events that are stored already
                are skipped, as by `write`.
            timestamps_us: one for all, or one for each; defaults to the clock of this machine.
            headers: one mapping for all events, or a list with one for each (None for no headers).

        Raises:
            EventTooLargeError: an event above 8 MiB, or more than one append can hold (16 MiB, unless the server is
                configured for less); no event was accepted.
            TypeError, InvalidArgumentError: values are not bytes, or the number of keys, timestamps or headers differs
                from that of the values; no event was accepted.
            MillraceError: the buffer is full (BufferFullError), or the writer has failed; see `write`.
        """
        delivery = self._delivery
        self._guard.check()
        if delivery.refusal is not None:
            self._refuse()
        if delivery.pending_bytes > self._buffer_bytes_max:
            raise BufferFullError(pending_bytes=delivery.pending_bytes, limit_bytes=self._buffer_bytes_max)
        if keys is not None and key is not None:
            raise InvalidArgumentError("give key or keys, not both")
        timestamps_us = checked_timestamps(timestamps_us)
        if timestamps_us is None:
            timestamps_us = self._time_ns() // 1000
        call = Call(self._create_future())
        events = Events(
            values if isinstance(values, list) else list(values),
            key if keys is None else list(keys),
            timestamps_us,
            [],
            0,
            headers_by_index(headers, len(values)) if headers else NO_HEADERS,
            call,
        )
        if not events.values:
            return self._wrote_nothing(events)
        if keys is not None or first_sequence is not None or self._sequences.is_required:
            return self._write_to_several(events, first_sequence)
        targets = delivery.targets
        segment = targets.current if key is None else targets.segments[targets.router.number_of(key)]
        delivery.send_packed(call, [(segment, delivery.pack(segment, events))])
        if key is None:
            targets.rotate(segment)
        return call.future

    def write_arrow(self, data: "pa.RecordBatch | pa.Table") -> "asyncio.Future[WriteResult]":
        """Append the events of a record batch or a table; the future resolves when all are durable. Never waits.

        Column `value` is binary; `key`, `timestamp` and `headers` are optional. The batches of `reader.arrow_batches`
        can be written unchanged: their position columns (`segment`, `offset`, `index`, `stream`) are ignored. See
        `millrace.client.write.arrow` for the types. Needs pyarrow.

        The events of one key are stored in order. They become blocks of about `block_size_bytes`, each stored all or
        nothing; only a transaction stores the whole batch all or nothing. The future returns the position of the last
        block. Without rows nothing is written, and the future is done.

        Raises:
            ColumnInvalidError: a column is missing, unknown, of another type, or has nulls where they are not allowed;
                no event was accepted.
            EventTooLargeError: an event exceeds the limits of `write`, or the whole batch exceeds `buffer_bytes_max`;
                no event was accepted.
            TypeError: the argument is neither a batch nor a table.
            SequencesMixedError: this writer's events on the stream have sequences, which Arrow batches cannot have.
            MissingExtraError: pyarrow is not installed.
            MillraceError: the buffer is full (BufferFullError), or the writer has failed; see `write`.
        """
        from .arrow import events_of

        delivery = self._delivery
        self._guard.check()
        if delivery.refusal is not None:
            self._refuse()
        if delivery.pending_bytes > self._buffer_bytes_max:
            raise BufferFullError(pending_bytes=delivery.pending_bytes, limit_bytes=self._buffer_bytes_max)
        if self._sequences.is_required:
            self._sequences.check(None, has_taken=True)  # which raises
        events = events_of(
            data,
            now_us=self._time_ns() // 1000,
            append_size_max=delivery.append_size_max,
            size_bytes_max=self._buffer_bytes_max,
        )
        targets = delivery.targets
        unkeyed = targets.segments.index(targets.current)
        pieces = events.pieces(targets.router, unkeyed=unkeyed, block_size_bytes=delivery.block_size_bytes)
        if not len(events.costs):
            return self._wrote_nothing(Events([], None, 0, [], 0))
        call = Call(self._create_future())
        delivery.send_columns(call, [(targets.segments[number], columns) for number, columns in pieces])
        targets.rotate(targets.current)
        return call.future

    async def send(
        self,
        value: bytes,
        *,
        key: str | None = None,
        sequence: int | None = None,
        timestamp_us: int | None = None,
        headers: Headers | None = None,
    ) -> "asyncio.Future[WriteResult]":
        """Wait for room in the buffer, then write; return the future of the write. If cancelled, nothing is written."""
        await self.drain()
        return self.write(value, key=key, sequence=sequence, timestamp_us=timestamp_us, headers=headers)

    async def drain(self) -> None:
        """Wait, while more than `drain_high_bytes` are pending, until they fall to `drain_low_bytes`. Safe to cancel.

        Raises:
            MillraceError: the writer has failed; see `write`.
        """
        self._guard.check()
        await self._delivery.drain()
        if self._delivery.refusal is not None:
            self._refuse()

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `drain` would not wait after `size_bytes` more were written. Thread-safe."""
        return self._delivery.has_room(size_bytes)

    @property
    def refused(self) -> RefusedEvents:
        """Events rejected after `write` had returned, as in the client for threads; `flush` raises the reason."""
        return self._delivery.refused

    async def flush(self) -> None:
        """Wait until all events written before this call are durable. Safe to cancel.

        Raises:
            MillraceError: the reason why events were lost, as the future of each raises it.
        """
        self._guard.check()
        if isinstance(self._delivery.refusal, NotOpenError):
            self._refuse()
        await self._delivery.flush()
        self._raise_failure()

    async def release(self) -> None:
        """Flush, and end the exclusive ownership of the stream, so that it accepts events from all writers again.

        The writer stays open as an ordinary writer. Idempotent. If cancelled, the stream may have been released.

        Raises:
            InvalidArgumentError: the writer is not exclusive.
            MillraceError: events were lost, and the stream is not released; or the release failed.
        """
        if not self._is_exclusive:
            raise InvalidArgumentError("release() needs an exclusive writer")
        await self.flush()
        await self._release()

    def _release_request(self) -> m.ReleaseStream:
        return m.ReleaseStream(stream_id=self._stream_id, writer_number=self.number, writer_epoch=self.epoch)

    async def _release(self) -> None:
        with suppress(StreamNotFoundError):
            await self._channel.request(self._release_request())
        self._has_stream = False

    def _release_soon(self) -> None:
        if self._has_stream:
            self._has_stream = False
            release_soon(self._channel, self._release_request())

    # --- what is known ---

    @property
    def last_event_numbers(self) -> dict[int, int]:
        """The number of the last durable event of this writer in each segment; 0 if it never wrote there.

        Numbers start from 1 in each segment. To resume, use `stored_through`, not these numbers.
        """
        return self._delivery.targets.last_event_numbers

    @property
    def stored_through(self) -> int:
        """The highest sequence up to which all events are durable; -1 if none is.

        After opening, this is what earlier writers with the id have stored. Resume after it, with the same events under
        the same sequences: events above it that are stored already are recognised and skipped, one by one. After a
        crash it may be lower than the last acknowledged sequence.
        """
        return self._delivery.stored_below() - 1

    @property
    def pending_bytes(self) -> int:
        """Size of the events that are not durable yet, including the memory of their objects."""
        return self._delivery.pending_bytes

    def statistics(self) -> WriterStatistics:
        """Return the pending bytes, the retries and the reroutes."""
        return WriterStatistics(
            pending_bytes=self._delivery.pending_bytes,
            in_flight_bytes=self._delivery.sender.in_flight_bytes,
            retries=self._delivery.retries,
            reroutes=self._delivery.reroutes,
        )

    # --- inside ---

    def _stop(self) -> None:
        self._release_soon()
        self._delivery.stop(ClientClosedError("the writer was closed"))

    def _abandon(self) -> WriterBacklog:
        unstored = unstored_of(self._delivery)
        self._stop()
        return unstored

    def _refuse(self) -> None:
        self._guard.check()
        assert self._delivery.refusal is not None
        raise self._delivery.refusal.with_traceback(None)  # or each raise would add to it

    def _raise_failure(self) -> None:
        """Raise the reason why events were lost, once."""
        delivery = self._delivery
        failure, delivery.failure = delivery.failure or delivery.refused.take(), None
        if failure is not None:
            raise failure

    def _recognised(self, last: int) -> "asyncio.Future[WriteResult]":
        """Return a resolved future for events that were stored before the writer was opened."""
        self._sequences.take(last)
        self._delivery.note_idle()
        future = self._create_future()
        future.set_result(STORED_BEFORE)
        return future

    def _wrote_nothing(self, events: Events) -> "asyncio.Future[WriteResult]":
        """Check the arguments of a call without events, and return a resolved future."""
        _check_counts(events)
        future = self._create_future()
        future.set_result(NOTHING_STORED)
        return future

    def _write_to_several(self, events: Events, first_sequence: int | None) -> "asyncio.Future[WriteResult]":
        """Send a call whose events may belong to several segments, without the events that are stored already."""
        keys, call, count = events.keys, events.call, len(events.values)
        assert call is not None
        _check_counts(events)
        delivery, sequences = self._delivery, self._sequences
        is_sequenced = first_sequence is not None or sequences.is_required
        places = None if isinstance(keys, str | None) else places_of(keys)
        if is_sequenced:
            first_sequence = sequences.check(first_sequence, count, has_taken=delivery.has_taken)
            if isinstance(keys, str):
                places = np.full(count, place_of(keys, sequence=first_sequence), dtype=np.uint64)
            elif places is None:
                places = places_without_key(first_sequence, count)
            new = sequences.new_among(first_sequence, places)
            if new == []:
                return self._recognised(first_sequence + count - 1)
            events = events._replace(sequences=range(first_sequence, first_sequence + count))
            if new is not None:
                events, places = events.at(new), places[new]
        assert places is not None
        packed = []
        for number, part in split_events(events, delivery.targets.router.numbers_at(places)):
            segment = delivery.targets.segments[number]
            packed.append((segment, delivery.pack(segment, part)))
        # Nothing was taken until here, where all is known to fit.
        if first_sequence is not None:
            sequences.take(first_sequence + count - 1)
            call.order = order_of(first_sequence)
            call.is_partial = len(events.values) < count
        delivery.send_packed(call, packed)
        return call.future


def _check_counts(events: Events) -> None:
    count = len(events.values)
    columns = [each for each in (events.keys, events.times) if each is not None and not isinstance(each, int | str)]
    if any(len(column) != count for column in columns):
        raise InvalidArgumentError(f"{count} events need as many keys, and as many timestamps or one")
