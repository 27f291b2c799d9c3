"""What the server knows of a named writer, and what that says of each of its events."""

from dataclasses import dataclass
from enum import StrEnum

from millrace.client.errors import InvalidArgumentError


class Outcome(StrEnum):
    """What became of an event, as far as the server knows."""

    STORED = "stored"
    NOT_STORED = "not stored"
    EXPIRED = "expired"
    """It was known once: the writer was idle for too long since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterInfo:
    """A named writer and one stream.

    Attributes:
        number: under which the server knows the writer; another one after it expired and started over.
        epoch: under which it was opened last. Appends under a lower one are refused.
        active_us: when it was opened or stored something last, in Unix microseconds; it may be a minute too early.
        expired_us: when its event numbers were dropped because it was idle; None while they are kept.
        last_event_numbers: of the last stored event in each segment of the stream, 0 where it never wrote; empty if
            they have expired.
    """

    writer_id: str
    stream: str
    number: int
    epoch: int
    active_us: int
    expired_us: int | None
    last_event_numbers: dict[int, int]

    def outcome(self, segment_id: int, event_number: int) -> Outcome:
        """Return what became of one event. One that is not stored may still be on its way.

        Raises:
            InvalidArgumentError: the stream has no such segment (any more), or numbers do not go so low.
        """
        if event_number < 1:
            raise InvalidArgumentError(f"event numbers start from 1, {event_number} is none")
        if self.expired_us is not None:
            return Outcome.EXPIRED
        if segment_id not in self.last_event_numbers:
            raise InvalidArgumentError(f"{self.stream} has no segment {segment_id}; truncation drops whole segments")
        return Outcome.STORED if event_number <= self.last_event_numbers[segment_id] else Outcome.NOT_STORED
