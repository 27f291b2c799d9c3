"""Errors of the server, one class per reaction of its caller.

ServerError                       the root: `code` crosses the wire, `retriable` tells whether to try again
+-- ConfigurationError            an option or a data folder that cannot be used; nothing was started
|   +-- FolderLockedError         another server owns the data folder
|   +-- FolderVersionError        the data folder was written by a newer version or another server
+-- StorageError
|   +-- NoSpaceError              the disk is full; nothing was stored; try again later
|   +-- LogFailedError            a write or sync of the log failed: the outcome of what waited is unknown
|   +-- LogClosedError            the log takes no more; reopen it
|   +-- LogCorruptError           the log holds valid records behind damaged ones
|   +-- ChunkCorruptError         a chunk does not match its checksum
|   +-- ChunkNotFoundError        a chunk that should be there is not
|   +-- CheckpointDamagedError    the checkpoint is not what was written; set it aside and restore or rebuild it
+-- ThrottledError                a bound is reached; says what is full and when to try again
+-- ShuttingDownError             the server is going away
+-- InvalidArgumentError          a request that can never succeed
+-- SegmentError                  about one segment
|   +-- SegmentNotFoundError, SegmentExistsError, SegmentSealedError, SegmentTruncatedError,
|       SegmentDamagedError, OffsetBeyondEndError, ConditionFailedError,
|       AttributeConditionFailedError, PipelineBrokenError, AppendTooLargeError
+-- WriterError                   about one writer
|   +-- WriterFencedError, WriterUnknownError, WriterExpiredError, EventNumberGapError,
|       EventNumberOverlapError
+-- StreamError                   about one stream
    +-- StreamNotFoundError, StreamSealedError, StreamNotSealedError, CutInvalidError, CutTruncatedError
"""

from typing import ClassVar

from millrace.wire.errors import RETRIABLE, ErrorCode


class ServerError(Exception):
    """Root of the errors of the server.

    Attributes:
        subject: what the error is about (a segment, a stream, a path), empty where there is none.
        start_offset, length: the valid range of a segment, -1 where it does not apply.
        retry_after_ms: when to try again, 0 where it does not apply.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        subject: str = "",
        start_offset: int = -1,
        length: int = -1,
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.start_offset = start_offset
        self.length = length
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}" if self.subject else self.message

    @property
    def retriable(self) -> bool:
        """Whether the same request may simply be sent again, later."""
        return self.code in RETRIABLE


class ConfigurationError(ServerError):
    """An option or a data folder that cannot be used. Nothing was started."""

    code = ErrorCode.INVALID_ARGUMENT


class FolderLockedError(ConfigurationError):
    """Another server owns the data folder."""


class FolderVersionError(ConfigurationError):
    """The data folder was written by a newer version, or belongs to another server."""


class StorageError(ServerError):
    """Something about the disk."""


class NoSpaceError(StorageError):
    """The disk is full. Nothing was stored; the request may be sent again when there is space."""

    code = ErrorCode.NO_SPACE


class LogFailedError(StorageError):
    """A write or sync of the log failed. The outcome of what waited for it is unknown."""

    code = ErrorCode.OUTCOME_UNKNOWN


class LogClosedError(StorageError):
    """The log takes no more runs; only reopening it helps."""

    code = ErrorCode.SHUTTING_DOWN


class LogCorruptError(StorageError):
    """The log holds valid records behind damaged ones."""


class ChunkCorruptError(StorageError):
    """A chunk whose bytes do not match their checksum.

    Attributes:
        name: the chunk.
        offset: where in the chunk file the damage starts, in bytes.
    """

    code = ErrorCode.SEGMENT_DAMAGED

    def __init__(self, name: str, offset: int, reason: str = "bytes do not match their checksum") -> None:
        super().__init__(f"{reason} at byte {offset}", subject=name)
        self.name = name
        self.offset = offset


class ChunkNotFoundError(StorageError):
    """A chunk that should be there is not."""

    code = ErrorCode.SEGMENT_DAMAGED


class CheckpointDamagedError(StorageError):
    """The checkpoint is not what was written, or cannot be read. Set it aside, then restore a copy or rebuild it."""


class ThrottledError(ServerError):
    """A bound is reached. The text says what is full; `retry_after_ms` says when to try again."""

    code = ErrorCode.THROTTLED


class ShuttingDownError(ServerError):
    """The server is going away."""

    code = ErrorCode.SHUTTING_DOWN


class InvalidArgumentError(ServerError):
    """A request that can never succeed as it stands."""

    code = ErrorCode.INVALID_ARGUMENT


class SegmentError(ServerError):
    """Something about one segment."""


class SegmentNotFoundError(SegmentError):
    """There is no such segment (any more)."""

    code = ErrorCode.SEGMENT_NOT_FOUND


class SegmentExistsError(SegmentError):
    """A segment of that name exists."""

    code = ErrorCode.SEGMENT_EXISTS


class SegmentSealedError(SegmentError):
    """The segment takes no more appends, for ever."""

    code = ErrorCode.SEGMENT_SEALED


class SegmentTruncatedError(SegmentError):
    """The offset lies below the start of the segment."""

    code = ErrorCode.SEGMENT_TRUNCATED


class SegmentDamagedError(SegmentError):
    """The range is known to be damaged on disk, and refused; the rest of the segment is served."""

    code = ErrorCode.SEGMENT_DAMAGED


class OffsetBeyondEndError(SegmentError):
    """The offset lies beyond the length of the segment."""

    code = ErrorCode.OFFSET_BEYOND_END


class ConditionFailedError(SegmentError):
    """The segment did not have the expected length; `length` is the actual one."""

    code = ErrorCode.CONDITION_FAILED


class AttributeConditionFailedError(SegmentError):
    """The attribute did not have the expected value."""

    code = ErrorCode.ATTRIBUTE_CONDITION_FAILED


class PipelineBrokenError(SegmentError):
    """An earlier append of this connection to this segment failed, so this one was not applied."""

    code = ErrorCode.PIPELINE_BROKEN


class AppendTooLargeError(SegmentError):
    """An append above the limit."""

    code = ErrorCode.APPEND_TOO_LARGE


class WriterError(ServerError):
    """Something about one writer."""


class WriterFencedError(WriterError):
    """The writer was opened again elsewhere; this epoch may not write any more."""

    code = ErrorCode.WRITER_FENCED


class WriterUnknownError(WriterError):
    """No such writer number; open the writer first."""

    code = ErrorCode.WRITER_UNKNOWN


class WriterExpiredError(WriterError):
    """The writer was idle for so long that its event numbers are not kept any more; it has to be opened anew."""

    code = ErrorCode.WRITER_EXPIRED


class EventNumberGapError(WriterError):
    """The event number leaves a gap above the last one stored."""

    code = ErrorCode.EVENT_NUMBER_GAP


class EventNumberOverlapError(WriterError):
    """Some events of the append are stored already and others are not: it was batched anew."""

    code = ErrorCode.EVENT_NUMBER_OVERLAP


class StreamError(ServerError):
    """Something about one stream."""


class StreamNotFoundError(StreamError):
    """There is no such stream."""

    code = ErrorCode.STREAM_NOT_FOUND


class StreamSealedError(StreamError):
    """The stream takes no more events, for ever."""

    code = ErrorCode.STREAM_SEALED


class StreamNotSealedError(StreamError):
    """Only a sealed stream can be deleted."""

    code = ErrorCode.STREAM_NOT_SEALED


class CutInvalidError(StreamError):
    """A cut that does not cover the key space of the stream exactly once, or lies off an event border.

    If it goes through an append, `start_offset` is the last border before that place.
    """

    code = ErrorCode.CUT_INVALID


class CutTruncatedError(StreamError):
    """A cut that lies behind the truncation of the stream."""

    code = ErrorCode.CUT_TRUNCATED
