"""Decisions about writers, taken like those about segments (`segments.commands`): who has an id, and how far it is."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from millrace.model.names import checked_writer_id
from millrace.model.sequence_row import NO_SEQUENCE
from millrace.server.container.admission import check_writer
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.sequences import StreamProgress, check_told
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.writer import Writer, WriterRow, is_among
from millrace.server.errors import (
    InvalidArgumentError,
    StreamHasExclusiveWriterError,
    StreamNotFoundError,
    WriterExpiredError,
    WriterFencedError,
    WriterUnknownError,
)
from millrace.wire import messages as m

STREAMS_PER_WRITER_COUNT_MAX: Final = 4096
"""Streams of which the server keeps how far one writer is there."""


class WriterCommands:
    """Opens writers, tells how far they are, and lets them expire."""

    def __init__(self, container: SegmentContainer) -> None:
        self._container = container
        self._state = container.state

    async def open(
        self,
        writer_id: str,
        segment_ids: Iterable[int] = (),
        *,
        start_over: bool = False,
        stream_id: int = 0,
        nonce: bytes = m.NO_NONCE,
        take: Callable[[int], WriterRow | None] | None = None,
    ) -> m.WriterOpened:
        """Open a writer under a new epoch; from now on appends of older epochs are refused.

        An empty id makes a writer of its own that can be opened only this once.

        Args:
            segment_ids: where to tell how far it has come.
            start_over: whether to start from nothing where the state that was kept under the id has expired.
            stream_id: of the stream that it is opened for, 0 for none; sequences can be given to its events there.
            nonce: of the request; the same request sent again does not open the writer again, nor fence who did since.
            take: None unless the stream takes appends from this writer alone from now on. Called with its number just
                before that is queued, in the same step; returns the writer that loses the stream, to be fenced.

        Raises:
            WriterFencedError: it was opened again since this very request was carried out.
            WriterExpiredError: it has expired, and starting over was not asked for.
            SequencesRefusedError: it sent what is stored on the stream, and was not reset since.
            StreamNotFoundError: there is no such stream.
            StreamHasExclusiveWriterError: it is not to be exclusive, and the stream has an exclusive writer.
            InvalidArgumentError: it was opened for too many streams.
        """
        writer = self._state.admitted_writers.find_entity(checked_writer_id(writer_id)) if writer_id else None
        row = None if writer is None else writer.admitted
        now_us = self._container.clock.unix_us()
        expired_us = 0 if row is None else row.expired_us
        if row is not None and expired_us and not start_over:
            raise _expired(row)
        if row is not None and not expired_us and is_among(row.nonces, nonce):
            if not row.nonces.endswith(nonce):
                raise WriterFencedError("the writer was opened again since this opening", subject=writer_id)
            await self._container.in_flight.settled()
            return replace(self.describe(writer, segment_ids, stream_id=stream_id), writer_epoch=row.epoch)
        active_us = now_us if writer is None or row is None else writer.active_us
        known = row is not None and not expired_us
        # After an expiry a number of its own: what was sent under the one before is never taken for events of this one.
        number = row.number if row is not None and known else self._state.take_id()
        epoch = 1 if row is None else row.epoch + 1
        has_row = bool(writer_id and stream_id)
        is_plain = has_row and self._is_plain(writer if known else None, stream_id)
        fenced = None
        if take is not None:
            fenced = take(number)
        elif stream_id:
            self._check_free(stream_id)
        decided = self._container.decide(
            m.WriterRecorded(
                writer_number=number,
                writer_epoch=epoch,
                opened_us=now_us,
                writer_id=writer_id,
                stream_id=stream_id if has_row or take is not None else 0,
                nonce=nonce,
                is_plain=int(is_plain),
                is_exclusive=int(take is not None),
                fenced_number=0 if fenced is None else fenced.number,
                fenced_epoch=0 if fenced is None else fenced.epoch + 1,
            ),
            number,
        )
        writer = self._state.admitted_writers.entity(number)
        await decided
        # It may have been opened again meanwhile, under another epoch.
        return replace(
            self.describe(writer, segment_ids, stream_id=stream_id),
            writer_epoch=epoch,
            known=int(known),
            active_us=active_us,
            expired_us=expired_us,
        )

    def _check_free(self, stream_id: int) -> None:
        """Raise StreamHasExclusiveWriterError if a stream has an exclusive writer: no other is opened for it."""
        holder = self._state.admitted.exclusive_writers.get(stream_id)
        if holder is not None:
            raise StreamHasExclusiveWriterError.of(holder, subject=self._stream(stream_id).name)

    def _is_plain(self, writer: Writer | None, stream_id: int) -> bool:
        """Return whether a writer has written events without sequences to a stream for which it is being opened.

        Args:
            writer: None if it is new; raise like `open`.
        """
        stream = self._stream(stream_id)
        if writer is None:
            return False
        progress = writer.streams.get(stream_id)
        if progress is not None:
            if progress.admitted.refusal is not None:
                raise progress.admitted.refusal.error(writer.writer_id)
            return progress.admitted.is_plain
        if len(writer.streams) >= STREAMS_PER_WRITER_COUNT_MAX:
            raise InvalidArgumentError(
                f"a writer is opened for at most {STREAMS_PER_WRITER_COUNT_MAX} streams", subject=writer.writer_id
            )
        segments = (self._state.segments.get(segment_id) for segment_id in stream.segment_ids)
        return any(segment is not None and writer.number in segment.writers for segment in segments)

    def find(self, writer_id: str) -> Writer | None:
        """Return a writer by its id, None if it was never opened."""
        return self._state.writers.find(checked_writer_id(writer_id))

    def check_epoch(self, writer: Writer | None, writer_epoch: int) -> None:
        """Raise if an epoch is not the newest of a writer; 0 is any epoch.

        Raises:
            WriterFencedError, WriterExpiredError, WriterUnknownError: why not.
        """
        if writer_epoch:
            if writer is None:
                raise WriterUnknownError("the writer was never opened")
            check_writer(self._state, writer.writer_number, writer_epoch)

    async def tell_stored(self, writer_number: int, writer_epoch: int, *, stream_id: int, stored_below: int) -> bool:
        """Record that everything which a writer wrote to a stream below a sequence is stored; whether that is news.

        Raises:
            WriterError: the epoch is not the newest, or the writer was not opened for the stream.
            StreamNotFoundError: there is no such stream.
            InvalidArgumentError: nothing so high is stored.
        """
        writer = check_writer(self._state, writer_number, writer_epoch)
        self._stream(stream_id)
        view = check_told(writer.streams.get(stream_id), stored_below, subject=writer.writer_id)
        if stored_below <= view.row.through + 1:
            await self._container.in_flight.settled()  # what says so may be on its way
            return False
        await self._container.decide(m.StoredTold(writer_number, stream_id, stored_below))
        return True

    async def reset_sequences(self, writer_id: str, *, stream_id: int, stored_through: int) -> bool:
        """Let a writer whose sequences were refused on a stream resume; return whether they were.

        Raises:
            WriterError: there is no such writer (any more).
            InvalidArgumentError: that is no sequence.
        """
        writer = self._state.admitted_writers.find_entity(checked_writer_id(writer_id))
        row = None if writer is None else writer.admitted
        if writer is None or row is None:
            raise WriterUnknownError("the writer was never opened", subject=writer_id)
        if row.expired_us:
            raise _expired(row)
        progress = writer.streams.get(stream_id)
        if progress is None or progress.admitted.refusal is None:
            await self._container.in_flight.settled()  # the reset before may be on its way
            return False
        if stored_through < NO_SEQUENCE:
            raise InvalidArgumentError(f"{stored_through} is no sequence; {NO_SEQUENCE} is before the first one")
        await self._container.decide(
            m.SequencesReset(
                writer_number=row.number,
                writer_epoch=row.epoch + 1,
                stream_id=stream_id,
                stored_through=stored_through,
            )
        )
        return True

    def expire(self, *, marked: Sequence[int], forgotten: Sequence[int]) -> asyncio.Future[None]:
        """Forget what writers wrote, or that they were ever there; done when that is durable.

        From now on their appends are refused. The caller has checked, in this step, that none of them is busy.

        Args:
            marked: numbers of named writers of which a mark stays, which tells that to the next that opens them.
            forgotten: numbers of unnamed writers, and of marks.
        """
        expired_us = self._container.clock.unix_us()
        return self._container.decide(
            m.WritersExpired(expired_us=expired_us, marked=list(marked), forgotten=list(forgotten)),
        )

    def describe(self, writer: Writer | None, segment_ids: Iterable[int], *, stream_id: int) -> m.WriterOpened:
        """Return what is durable of a writer, None if it was never opened: in each segment, and on a stream."""
        if writer is None:
            writer = Writer(WriterRow(number=0, writer_id="", epoch=0, opened_us=0))
        row = writer.row
        view = (writer.streams.get(stream_id) or StreamProgress(stream_id)).durable
        return m.WriterOpened(
            writer_number=row.number,
            writer_epoch=row.epoch,
            known=int(row.number > 0 and not row.expired_us),
            active_us=writer.active_us,
            expired_us=row.expired_us,
            states=[
                m.WriterState(segment_id, self._last_event_number(writer.writer_number, segment_id))
                for segment_id in segment_ids
            ],
            stored_through=view.row.through,
            marks=[m.SequenceMark(*piece) for piece in view.row.pieces()],
            is_plain=int(view.is_plain),
            is_refused=int(view.refusal is not None),
        )

    def _last_event_number(self, writer_number: int, segment_id: int) -> int:
        progress = self._container.segment(segment_id).writers.get(writer_number)
        return progress.durable if progress else 0

    def _stream(self, stream_id: int) -> Stream:
        stream = self._state.streams.get(stream_id)
        if stream is None:
            raise StreamNotFoundError(f"stream {stream_id} does not exist")
        return stream


def _expired(row: WriterRow) -> WriterExpiredError:
    when = datetime.fromtimestamp(row.expired_us // 1_000_000, UTC).isoformat()
    return WriterExpiredError(
        f"the writer was idle for too long: its state expired at {when}, and which of its events are stored is not "
        "known any more: read the stream to find out, then open the id to start over, or take another id",
        subject=row.writer_id,
    )
