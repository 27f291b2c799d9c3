"""A run of appends, the one record from the scan of the receive buffer through the log to the memtable.

A run consists of some whole, consecutive frames of one segment and one writer. It is scanned, admitted, logged, made
durable and read as one; only the outcome, which differs per append, has a record of its own.
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

    It carries the result of the scan, the part of it that the log stores, and the decision of admission (`offset`):
    nothing is copied from record to record on the path of an append. A control record takes the same path, so that it
    is ordered with the appends: it is its frame, and has no segment, writer or events, which are all 0. The frames must
    not change until the run is durable.
    """

    segment_id: int
    # Offset in the segment of the first payload byte; 0 until the run is admitted.
    offset: int
    frames: Buffer
    frame_count: int
    # Size of each frame if they are equal, else 0.
    frame_size: int
    event_count: int
    # 0 without a writer, as are the next two.
    writer_number: int = 0
    # Its event numbers end with this one, without a gap.
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
        """Split a run of a writer after its first `frame_count` appends, with their size and number of events."""
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
        """Payload bytes of its appends, without their headers."""
        return len(self.frames) - self.header_size * self.frame_count

    @property
    def last_append_offset(self) -> int:
        """Offset in the segment of its last append."""
        offset = self.offset
        if self.frame_size:
            return offset + (self.frame_count - 1) * (self.frame_size - self.header_size)
        position = 0
        for _ in range(self.frame_count - 1):
            length = int.from_bytes(self.frames[position : position + 4], "little")
            position += length
            offset += length - APPEND_HEADER_SIZE_BYTES
        return offset
