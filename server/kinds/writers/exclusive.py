"""Decisions about the exclusive writer of a stream: who becomes it, and how it ends.

A stream that has one takes appends from that writer alone, under the epoch that it was opened under. Opening another
one takes the stream over. Who loses it otherwise than by its own release is fenced by the same record: it may have
missed what others wrote, and must not continue unawares when the stream is free again.

An opening is checked and queued in one step, so everything that is before it in the log is before the tail that it was
checked against. Transactions that are open over the stream are aborted before it, and none begins while there is an
exclusive writer: what is committed would come from others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.lineage import Lineage
from millrace.model.position import START, Position
from millrace.server.container.container import SegmentContainer
from millrace.server.container.entity_cache import Pins
from millrace.server.container.state.exclusive_writers import EXCLUSIVE_WRITERS_COUNT_MAX
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.writer import WriterRow
from millrace.server.errors import (
    InvalidArgumentError,
    StreamNotFoundError,
    StreamSealedError,
    TailChangedError,
)
from millrace.server.kinds.aborts import abort_all_on
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.wire import messages as m

from .commands import WriterCommands

POSITIONS_TOLD_COUNT_MAX: Final = 16
"""Positions of a cut that an error names; of more than these, those come first in which it differs from the other."""


class ExclusiveCommands:
    """Opens exclusive writers, and releases streams."""

    def __init__(self, container: SegmentContainer, *, streams: StreamCommands, writers: WriterCommands) -> None:
        self._container = container
        self._state = container.state
        self._streams = streams
        self._writers = writers

    async def open(
        self,
        writer_id: str,
        segment_ids: Iterable[int],
        *,
        start_over: bool,
        stream_id: int,
        nonce: bytes,
        expected: Sequence[m.SavedPosition],
    ) -> m.WriterOpened:
        """Open a writer, from which alone a stream takes appends from now on; see `WriterCommands.open`.

        Args:
            expected: the cut at which the stream must end then; without positions it does not matter.

        Raises:
            StreamNotFoundError, StreamSealedError: nothing can be written to the stream.
            TailChangedError: it ends elsewhere.
            TransactionPreparedError: one is prepared over the stream.
            InvalidArgumentError: too many streams have an exclusive writer.
            ServerError: as `WriterCommands.open`.
        """

        def take(writer_number: int) -> WriterRow | None:
            self._check_opening(stream_id, expected)
            # Before the record of the opening: a crash between the two leaves them aborted, and the stream as it was.
            abort_all_on(self._container, self._stream(stream_id), force=False)
            return self._replaced_by(stream_id, writer_number)

        with await self._pin_before(stream_id, writer_id):
            return await self._writers.open(
                writer_id, segment_ids, start_over=start_over, stream_id=stream_id, nonce=nonce, take=take
            )

    def _of(self, stream_id: int) -> ExclusiveWriter | None:
        """Return the exclusive writer that a stream has when all is durable that is queued."""
        return self._state.admitted.exclusive_writers.get(stream_id)

    async def _pin_before(self, stream_id: int, writer_id: str = "") -> Pins:
        """Wait until an exclusive writer can be opened for a stream, or its writer released.

        Up to the next wait of the caller, who releases the pins, nothing else is on its way about the stream, and all
        that the decision is about is in memory: the stream, the writer that has it, and the one with this id.

        Raises:
            StreamNotFoundError: there is no such stream.
            DecisionLostError: the log failed first.
        """
        while True:
            name = self._stream(stream_id).name
            if self._is_busy(stream_id, name):
                await self._container.in_flight.settled()
                continue
            holder = self._of(stream_id)
            writers: list[int | str] = [writer_id] if holder is None else [writer_id, holder.number]
            with await self._container.loader.pin(m.Required(writers=writers, streams=[stream_id])) as pins:
                if not self._is_busy(stream_id, name) and self._of(stream_id) == holder:
                    return pins.transfer()

    def _is_busy(self, stream_id: int, name: str) -> bool:
        # One takeover at a time: each waits until the one before is durable.
        durable = self._state.durable.exclusive_writers.get(stream_id)
        return self._of(stream_id) != durable or self._streams.is_being_decided(name)

    def _check_opening(self, stream_id: int, expected: Sequence[m.SavedPosition]) -> None:
        """Check that an exclusive writer may be opened for a stream; in the step in which that is queued.

        Args:
            expected: the cut at which the stream must end, if there are positions.

        Raises:
            StreamNotFoundError, StreamSealedError: nothing can be written to it.
            TailChangedError: it ends elsewhere.
            InvalidArgumentError: too many streams have one.
        """
        stream = self._stream(stream_id)
        if stream.sealed:
            raise StreamSealedError("the stream is sealed", subject=stream.name)
        if expected:
            self._check_tail(stream, expected)
        admitted = self._state.admitted.exclusive_writers
        if stream_id not in admitted and len(admitted) >= EXCLUSIVE_WRITERS_COUNT_MAX:
            raise InvalidArgumentError(
                f"at most {EXCLUSIVE_WRITERS_COUNT_MAX} streams have an exclusive writer at a time; release one",
                subject=stream.name,
            )

    def _replaced_by(self, stream_id: int, writer_number: int) -> WriterRow | None:
        """Return the writer that loses a stream to an exclusive one and is to be fenced, None if nobody is.

        It was loaded by `_pin_before`. Another opening of the same id has fenced the one before by its own epoch.
        """
        holder = self._of(stream_id)
        if holder is None or holder.number == writer_number:
            return None
        row = self._state.admitted.writers.get(holder.number)
        return row if row is not None and row.epoch == holder.epoch else None

    async def release(self, stream_id: int, *, writer_number: int = 0, writer_epoch: int = 0) -> bool:
        """Let a stream take appends from everyone again; return False if nothing was to be released.

        Args:
            writer_number, writer_epoch: of the one that gives the stream back, and may continue as any other writer.
                Without them the writer that has the stream loses it, and is fenced.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        with await self._pin_before(stream_id):
            holder = self._of(stream_id)
            if holder is None or (writer_number and (holder.number, holder.epoch) != (writer_number, writer_epoch)):
                await self._container.in_flight.settled()  # what has ended it may be on its way
                return False
            fenced = None if writer_number else self._replaced_by(stream_id, 0)
            await self._container.decide(
                m.ExclusiveReleased(
                    stream_id=stream_id,
                    writer_number=holder.number,
                    writer_epoch=holder.epoch,
                    fenced_epoch=0 if fenced is None else fenced.epoch + 1,
                )
            )
        return True

    def _check_tail(self, stream: Stream, expected: Sequence[m.SavedPosition]) -> None:
        """Raise TailChangedError unless a stream ends at a cut, as admitted.

        The ends of segments that were replaced are the same place as the starts of what replaced them.
        """
        tail = {part.segment_id: Position(self._end_of(part.segment_id), 0) for part in stream.open_parts}
        wanted = {segment_id: Position(offset, index) for segment_id, offset, index in expected}
        reached = dict(wanted)
        lineage = Lineage(stream.parts_around(wanted))
        if reached.keys() <= lineage.by_id.keys():
            lineage.advance(
                reached, lambda segment_id: reached[segment_id] == (self._end_of(segment_id), 0), start=START
            )
        if reached != tail:
            raise TailChangedError(
                f"the stream was expected to end at {_told(stream.name, wanted, tail)}, and ends at"
                f" {_told(stream.name, tail, wanted)}",
                subject=stream.name,
            )

    def _end_of(self, segment_id: int) -> int:
        return self._container.segment(segment_id).next_offset

    def _stream(self, stream_id: int) -> Stream:
        stream = self._state.streams.get(stream_id)
        if stream is None:
            raise StreamNotFoundError(f"stream {stream_id} does not exist")
        return stream


def _told(stream: str, places: Mapping[int, Position], others: Mapping[int, Position]) -> str:
    """Return a cut as `str(StreamCut)` writes it, shortened if it is very long."""
    ids = sorted(places)
    if len(ids) > POSITIONS_TOLD_COUNT_MAX:
        ids.sort(key=lambda segment_id: places[segment_id] == others.get(segment_id))
    told = [f"{each}:{places[each].offset}.{places[each].event_index}" for each in ids[:POSITIONS_TOLD_COUNT_MAX]]
    more = len(ids) - len(told)
    return f"{stream}@{','.join(told)}" + (f" and {more} more" if more else "")
