"""State of a named writer on the server, and the outcome of each of its events."""

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
    """Outcome of an event, as the server knows it."""

    STORED = "stored"
    NOT_STORED = "not stored"
    EXPIRED = "expired"
    """Unknown: the writer was idle for too long, and its event numbers have expired."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WriterInfo(ShortRepr):
    """State of a named writer on one stream.

    Attributes:
        number: the server's number of the writer; a new one after it expired and started over.
        epoch: the epoch of its last opening. Appends under a lower epoch are rejected.
        active_us: time of its last opening or append, in Unix microseconds; up to a minute too early.
        expired_us: when its event numbers expired because it was idle; None if they are kept.
        last_event_numbers: number of its last stored event in each segment of the stream, 0 if it never wrote there;
            empty if they have expired.
        sequences: the sequences that are stored on the stream.
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
        """The highest sequence up to which all events are durable; -1 if none is."""
        return self.sequences.through

    def outcome_of_sequence(self, sequence: int, *, key: str | None = None) -> EventOutcome:
        """Return the outcome of the event with this sequence and key. An event that is not stored may be in flight."""
        if self.expired_us is not None:
            return EventOutcome.EXPIRED
        is_stored = self.sequences.is_stored(sequence, place=place_of(key, sequence=sequence))
        return EventOutcome.STORED if is_stored else EventOutcome.NOT_STORED

    def outcome(self, segment_id: int, event_number: int) -> EventOutcome:
        """Return the outcome of one event. An event that is not stored may be in flight.

        Raises:
            InvalidArgumentError: the segment does not belong to the stream, or was truncated; or the number is below 1.
        """
        if event_number < 1:
            raise InvalidArgumentError(f"event number must be at least 1, not {event_number}")
        if self.expired_us is not None:
            return EventOutcome.EXPIRED
        if segment_id not in self.last_event_numbers:
            raise InvalidArgumentError(f"segment {segment_id} does not belong to {self.stream}, or was truncated")
        return EventOutcome.STORED if event_number <= self.last_event_numbers[segment_id] else EventOutcome.NOT_STORED


async def fetch_writer_info(channel: Channel, stream: str, writer_id: str) -> WriterInfo | None:
    """Return the state of a writer on a stream, None if the writer was never opened.

    Raises:
        StreamNotFoundError: the stream does not exist.
        RequestTimeoutError: for `request_timeout_s`, the stream was scaled faster than its segments could be fetched.
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
        except SegmentNotFoundError as error:  # truncated between the requests
            await retry.wait(stream_changed(f"the state of writer {writer_id!r} is unknown", stream, retry, error))
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
    """Return the error for a stream that changes between any two requests; `error` is the last reply."""
    timeout = RequestTimeoutError(
        f"{what}: in each of {retry.failures + 1} attempts within {retry.limit_s:g} s, {stream} was scaled or truncated"
        " after its segments were fetched" + (f"; the last reply was: {error}" if error else "")
    )
    timeout.__cause__ = error
    return timeout
