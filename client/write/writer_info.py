"""What the server knows of a named writer, and what that says of each of its events."""

from dataclasses import dataclass, field
from enum import StrEnum

from millrace.client.errors import RequestTimeoutError, SegmentNotFoundError
from millrace.client.streams import fetch_description
from millrace.client.transport.channel import Channel
from millrace.client.transport.retry import Retry
from millrace.model.errors import InvalidArgumentError
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.sequence_row import SequenceRow
from millrace.model.shown import ShortRepr
from millrace.wire import messages as m

from .routing import place_of


class EventOutcome(StrEnum):
    """What became of an event, as far as the server knows."""

    STORED = "stored"
    NOT_STORED = "not stored"
    EXPIRED = "expired"
    """It was known once: the writer was idle for too long since."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WriterInfo(ShortRepr):
    """A named writer and one stream.

    Attributes:
        number: under which the server knows the writer; another one after it expired and started over.
        epoch: under which it was opened last. Appends under a lower one are refused.
        active_us: when it was opened or stored something last, in Unix microseconds; it may be a minute too early.
        expired_us: when its event numbers were dropped because it was idle; None while they are kept.
        last_event_numbers: of the last stored event in each segment of the stream, 0 where it never wrote; empty if
            they have expired.
        sequences: which of the caller's own numbers are stored on the stream.
        is_refused: whether it cannot be opened for the stream until `client.reset_sequences`.
    """

    writer_id: str
    stream: str
    number: int
    epoch: int
    active_us: int
    expired_us: int | None
    last_event_numbers: dict[int, int]
    sequences: SequenceRow = field(default_factory=SequenceRow)
    is_refused: bool = False

    @property
    def stored_through(self) -> int:
        """Everything that was written with a sequence up to this one is durable; -1 if nothing is."""
        return self.sequences.through

    def outcome_of_sequence(self, sequence: int, *, key: str | None = None) -> EventOutcome:
        """Return what became of the event with this sequence and key. One that is not stored may still be in flight."""
        if self.expired_us is not None:
            return EventOutcome.EXPIRED
        is_stored = self.sequences.is_stored(sequence, place=place_of(key, sequence=sequence))
        return EventOutcome.STORED if is_stored else EventOutcome.NOT_STORED

    def outcome(self, segment_id: int, event_number: int) -> EventOutcome:
        """Return what became of one event. One that is not stored may still be in flight.

        Raises:
            InvalidArgumentError: the stream has no such segment (any more), or numbers do not go so low.
        """
        if event_number < 1:
            raise InvalidArgumentError(f"event numbers start from 1, {event_number} is none")
        if self.expired_us is not None:
            return EventOutcome.EXPIRED
        if segment_id not in self.last_event_numbers:
            raise InvalidArgumentError(f"{self.stream} has no segment {segment_id}; truncation drops whole segments")
        return EventOutcome.STORED if event_number <= self.last_event_numbers[segment_id] else EventOutcome.NOT_STORED


async def fetch_writer_info(channel: Channel, stream: str, writer_id: str) -> WriterInfo | None:
    """Return what the server knows of a writer and of its events in a stream, None if it was never opened.

    Raises:
        StreamNotFoundError: there is no such stream.
        RequestTimeoutError: the stream changed faster than it could be asked about, for `request_timeout_s`.
    """
    retry = channel.retry()
    while True:
        info = await fetch_description(channel, stream)
        segment_ids = [segment.segment_id for segment in info.segments]
        try:
            first_page = segment_ids[:SEGMENTS_PER_STREAM_MAX]
            reply = await channel.request(m.GetWriter(writer_id, first_page, info.stream_id))
            states = list(reply.states)
            for start in range(SEGMENTS_PER_STREAM_MAX, len(segment_ids), SEGMENTS_PER_STREAM_MAX):
                page = m.GetWriter(writer_id, segment_ids[start : start + SEGMENTS_PER_STREAM_MAX])
                states += (await channel.request(page)).states
        except SegmentNotFoundError as error:  # truncated away between the requests
            await retry.wait(stream_changed(f"nothing is known of writer {writer_id!r}", stream, retry, error))
            continue
        if not reply.known and not reply.expired_us:
            return None
        return WriterInfo(
            writer_id=writer_id,
            stream=stream,
            number=reply.writer_number,
            epoch=reply.writer_epoch,
            active_us=reply.active_us,
            expired_us=reply.expired_us or None,
            last_event_numbers={state.segment_id: state.last_event_number for state in states} if reply.known else {},
            sequences=SequenceRow(reply.stored_through, reply.marks),
            is_refused=bool(reply.is_refused),
        )


def stream_changed(
    what: str, stream: str, retry: Retry, error: SegmentNotFoundError | None = None
) -> RequestTimeoutError:
    """Return the error for a stream that changes between each two requests about it; `error` is the last answer."""
    timeout = RequestTimeoutError(
        f"{what}: {stream} changed each of {retry.failures + 1} times between being asked which segments it has and"
        f" being asked about them, for {retry.limit_s:g} s" + (f"; the last answer was: {error}" if error else "")
    )
    timeout.__cause__ = error
    return timeout
