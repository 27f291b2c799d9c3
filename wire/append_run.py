"""The one record of a run of appends, from the scan of the receive buffer through the log to the memtable.

A run is some whole frames of one segment and one writer that follow one another. It is scanned, admitted, logged, made
durable and read as one; only what really differs per append (its outcome) has a record of its own.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from millrace.model.checksum import Buffer

from .limits import APPEND_HEADER_SIZE_BYTES, SEQUENCED_APPEND_HEADER_SIZE_BYTES

KIND_APPENDS: Final = 0
KIND_CONTROL: Final = 1


class Sequences(NamedTuple):
    """The sequences of a sequenced append; see `messages.SequencedAppend`."""

    first: int
    last: int
    stored_below: int


@dataclass(slots=True)
class AppendRun:
    """Some whole appends of one segment and one writer, or one control record of the log.

    It carries what the scan found, what of that the log stores, and what admission has decided (`offset`): nothing is
    copied from record to record on the way of an append. A control record takes the same way, so that it has its place
    in one order with the appends: it is its frame, and has no segment, writer or events, which are all 0. The frames
    must not change until the run is durable.
    """

    segment_id: int
    # Place in the segment of the first payload byte; 0 until the run is admitted.
    offset: int
    frames: Buffer
    frame_count: int
    # Size of each frame if all have the same, else 0.
    frame_size: int
    event_count: int
    # 0 without a writer, as are the next two.
    writer_number: int = 0
    # Its events are numbered without a gap up to this.
    last_event_number: int = 0
    writer_epoch: int = 0
    kind: int = KIND_APPENDS
    # Of its only append, None if that is a plain one or there are several.
    sequences: Sequences | None = None
    # Of its first append; the others follow without a gap. Not stored in the log.
    request_id: int = 0
    # The length that the segment must have for its only append, or -1. Not stored in the log.
    expected_offset: int = -1

    @classmethod
    def of_record(cls, frame: bytes) -> "AppendRun":
        """Return a control record, given as its frame, for the log."""
        return cls(
            segment_id=0,
            offset=0,
            frames=frame,
            frame_count=1,
            frame_size=len(frame),
            event_count=0,
            kind=KIND_CONTROL,
        )

    @property
    def event_number(self) -> int:
        """Number of its first event, 0 without a writer."""
        return self.last_event_number - self.event_count + 1 if self.writer_number else 0

    def split(self, size: int, *, frame_count: int, event_count: int) -> tuple["AppendRun", "AppendRun"]:
        """Cut a run of a writer after its first `frame_count` appends, which have `size` bytes and so many events."""
        assert self.sequences is None, "a sequenced append is a run of its own"
        number = self.event_number + event_count
        return (
            replace(
                self,
                frames=self.frames[:size],
                frame_count=frame_count,
                event_count=event_count,
                last_event_number=number - 1,
            ),
            replace(
                self,
                frames=self.frames[size:],
                frame_count=self.frame_count - frame_count,
                event_count=self.event_count - event_count,
                request_id=self.request_id + frame_count,
            ),
        )

    @property
    def header_size(self) -> int:
        """Bytes of a frame before its payload."""
        return APPEND_HEADER_SIZE_BYTES if self.sequences is None else SEQUENCED_APPEND_HEADER_SIZE_BYTES

    @property
    def payload_size(self) -> int:
        """How many bytes of the segment it holds: those of its appends without their headers."""
        return len(self.frames) - self.header_size * self.frame_count

    @property
    def last_append_offset(self) -> int:
        """Where in the segment its last append starts."""
        offset = self.offset
        if self.frame_size:
            return offset + (self.frame_count - 1) * (self.frame_size - self.header_size)
        position = 0
        for _ in range(self.frame_count - 1):
            length = int.from_bytes(self.frames[position : position + 4], "little")
            position += length
            offset += length - APPEND_HEADER_SIZE_BYTES
        return offset
