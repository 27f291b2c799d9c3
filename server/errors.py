"""Errors of the server, one class per reaction of its caller.

ServerError                       the root: `code` crosses the wire; `retriable` is whether to try again +--
ConfigurationError            an option or a data folder that cannot be used; nothing was started |   +-- SettingError
an invalid value of an option; has `option`, `value` and `right` |   +-- FolderLockedError         another server has
locked the data folder |   +-- FolderVersionError        the data folder was written by another version or server |
+-- UnsupportedStoreError     the object store lacks a required guarantee, or belongs to another server |   +--
OwnedElsewhereError       another server owns a container of the store, or has owned it since +-- StorageError |   +--
NoSpaceError              the disk is full; nothing was stored; try again later |   +-- DiskUnavailableError      the
disk cannot be read or written now; nothing was done; try again later |   +-- LogFailedError            a write or sync
of the log failed: the outcome of waiting runs is unknown |   +-- LogClosedError            the log accepts no more
runs; reopen it |   +-- DecisionLostError         the log failed before a rejection was certain; nothing was stored |
+-- LogCorruptError           the log is damaged beyond recovery; the container cannot start |   +-- ContentLostError
acknowledged content of the log is missing; an operator has to accept the loss |   +-- ChunkCorruptError         a chunk
does not match its checksum |   |   +-- ChunkIdentityError    a chunk is another one than its name or its record says |
+-- ChunkExistsError          another chunk has that name; nothing was stored |   +-- ChunkNotFoundError        a
required chunk is missing |   +-- CheckpointDamagedError    the checkpoint is damaged; set it aside and restore or
rebuild it |   +-- StoreUnavailableError     the object store does not answer, or rate-limits; the outcome is open |   |
+-- StoreBusyError        the store rate-limits requests |   |   +-- StoreFullError        the store has no space, or a
quota is used up; try again when it has space |   +-- StoreRefusedError         the object store does not permit the
request; nothing was changed |   +-- ObjectExistsError         the key has an object already; nothing was stored |   +--
ObjectChangedError        the object has changed since it was read; nothing was stored |   +-- ObjectNotFoundError
the object does not exist |   +-- OwnershipReleasedError    the disk has failed and a standby is ready: this server has
released ownership |   +-- ManifestUnreadableError   this version cannot read a manifest or a lease; nothing was changed
|   |   +-- ManifestDamagedError  a manifest is damaged; a claim rebuilds it if the log is in the store +--
ThrottledError                a limit is reached; says what is full and when to retry +-- ShuttingDownError
the server is shutting down +-- OwnerFencedError              another server has taken over the container; this one must
exit +-- LeaseLapsedError              the lease has expired, so another server may have taken over; no reply is sent
meanwhile +-- InvalidArgumentError          a request that can never succeed +-- DecisionMisfitError           a bug in
the server: its decision contradicts the state; it was not logged +-- SegmentError                  about one segment |
+-- SegmentNotFoundError, SegmentExistsError, SegmentSealedError, SegmentTruncatedError, |       SegmentDamagedError,
OffsetBeyondEndError, ConditionFailedError, |       AttributeConditionFailedError, AttributesFullError,
PipelineBrokenError, AppendTooLargeError +-- WriterError                   about one writer |   +-- WriterFencedError,
WriterUnknownError, WriterExpiredError, EventNumberGapError, |       EventNumberOverlapError, SequencesRefusedError,
SequencesMixedError, StreamHasExclusiveWriterError, |       EventTimeError +-- StreamError                   about one
stream |   +-- StreamNotFoundError, StreamSealedError, StreamNotSealedError, CutInvalidError, CutTruncatedError, |
TailChangedError, EpochChangedError +-- TransactionError              about one transaction
    +-- TransactionUnknownError, TransactionCommittedError, TransactionAbortedError, TransactionPreparedError,
        BranchMismatchError, CursorMovedError, TransactionsFullError, TransactionTooLargeError,
        ProducerCommittedError, ProducerFencedError, ProducerInUseError, ProducerUnknownError, ProducersFullError
"""

from typing import ClassVar, Self

from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.wire.errors import RETRIABLE, ErrorCode


class ServerError(Exception):
    """Root of the errors of the server.

    Attributes:
        subject: the segment, stream or path that the error is about; empty if none.
        start_offset, length: the valid range of a segment, -1 if not applicable.
        start_index: the first valid event of the block at `start_offset`.
        retry_after_ms: when to try again, 0 if not applicable.
        tells_state: whether it reveals the state of the container; such a reply waits until that state is durable.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    tells_state: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: ErrorCode | None = None) -> None:
        """Set the code of a class; without one it inherits the code of its base."""
        cls.code = code or cls.code

    def __init__(
        self,
        message: str,
        *,
        subject: str = "",
        start_offset: int = -1,
        start_index: int = 0,
        length: int = -1,
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.start_offset = start_offset
        self.start_index = start_index
        self.length = length
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}" if self.subject else self.message

    @property
    def retriable(self) -> bool:
        """Whether the client may resend the same request later."""
        return self.code in RETRIABLE


class ConfigurationError(ServerError, code=ErrorCode.INVALID_ARGUMENT):
    """An option or a data folder that cannot be used. Nothing was started."""


class SettingError(ConfigurationError):
    """An invalid value of an option.

    Attributes:
        option: its name in its part.
        value: the value with its unit, as text.
        right: the valid values, as a continuation of "it must be".
    """

    def __init__(self, option: str, *, value: str, right: str) -> None:
        super().__init__(f"{option} is {value}; it must be {right}")
        self.option = option
        self.value = value
        self.right = right


class FolderLockedError(ConfigurationError):
    """Another server owns the data folder."""


class FolderVersionError(ConfigurationError):
    """The data folder was written by another version, or belongs to another server."""


class UnsupportedStoreError(ConfigurationError):
    """The object store lacks a guarantee that every server relies on, or belongs to another server."""


class OwnedElsewhereError(ConfigurationError):
    """Another server owns a container of the object store, or has owned it since this folder did."""


class StorageError(ServerError):
    """Something about the disk."""


class NoSpaceError(StorageError, code=ErrorCode.NO_SPACE):
    """The disk is full. Nothing was stored; retry when it has space."""


class DiskUnavailableError(StorageError, code=ErrorCode.UNAVAILABLE):
    """The disk cannot be read or written now. Nothing was done; retry later."""


class LogFailedError(StorageError, code=ErrorCode.OUTCOME_UNKNOWN):
    """A write or sync of the log failed. The outcome of the runs that waited for it is unknown."""


class LogClosedError(StorageError, code=ErrorCode.SHUTTING_DOWN):
    """The log accepts no more runs; only reopening it helps."""


class DecisionLostError(StorageError, code=ErrorCode.SHUTTING_DOWN):
    """The log failed before the state that a rejection rests on was durable. Nothing was stored; retry."""

    def __init__(self) -> None:
        super().__init__(
            "the log failed before the rejection of this request was certain; it was not stored, send it again",
            retry_after_ms=1000,
        )


class LogCorruptError(StorageError):
    """The log is damaged so that its content is unknown. No container can start from it."""


class ContentLostError(StorageError, code=ErrorCode.CONTENT_LOST):
    """Content of the log is missing that may have been acknowledged.

    The container is read-only until the files are restored, or an operator accepts the loss. If the log contradicts one
    entity, only this entity is read-only.
    """


class ChunkCorruptError(StorageError, code=ErrorCode.SEGMENT_DAMAGED):
    """A chunk whose bytes do not match their checksum.

    Attributes:
        name: the chunk.
        offset: where in the chunk file the damage starts, in bytes.
    """

    def __init__(self, name: str, offset: int, reason: str = "bytes do not match their checksum") -> None:
        super().__init__(f"{reason} at byte {offset}", subject=name)
        self.name = name
        self.offset = offset


class ChunkIdentityError(ChunkCorruptError):
    """A sound chunk that is not the one that its name or its record says.

    Attributes:
        found: the content according to the file.
        expected: the content according to the name or the record.
    """

    def __init__(self, name: str, offset: int, *, found: str, expected: str) -> None:
        super().__init__(name, offset, f"the file holds {found}, expected {expected}")
        self.found = found
        self.expected = expected


class ChunkExistsError(StorageError):
    """Another chunk has the name under which a chunk was to be published. It stays, and nothing was stored."""


class ChunkNotFoundError(StorageError, code=ErrorCode.SEGMENT_DAMAGED):
    """A required chunk is missing."""


class CheckpointDamagedError(StorageError):
    """The checkpoint is damaged, or cannot be read. Set it aside, then restore a copy or rebuild it."""


class StoreUnavailableError(StorageError, code=ErrorCode.UNAVAILABLE):
    """The object store does not answer, or rate-limits. The request may have happened, or happen later.

    Attributes:
        changed_nothing: the store itself has rejected the request; it will not happen later, either.
    """

    def __init__(self, message: str, *, subject: str = "", changed_nothing: bool = False) -> None:
        super().__init__(message, subject=subject)
        self.changed_nothing = changed_nothing


class StoreBusyError(StoreUnavailableError):
    """The object store rate-limits requests. Never fatal: retry after a pause."""


class StoreFullError(StoreUnavailableError, code=ErrorCode.NO_SPACE):
    """The object store has no space, or a quota is used up. Never fatal: retry when it has space."""


class StoreRefusedError(StorageError):
    """The object store does not permit the request: credentials, a policy, a missing bucket."""


class ObjectExistsError(StorageError):
    """The key has an object already. Nothing was stored."""


class ObjectChangedError(StorageError):
    """The object has changed since it was read, or is gone. Nothing was stored."""


class ObjectNotFoundError(StorageError):
    """The key has no object."""


class OwnershipReleasedError(StorageError):
    """The local disk has failed and a standby is ready, so this server has released ownership.

    No acknowledged event is lost. When restarted, the server becomes a standby, or reports the error of its disk.
    """


class ManifestUnreadableError(StorageError):
    """The manifest of a container, or the lease of a server, is damaged, or was written by another version.

    Nothing is claimed or changed until an operator has looked at it.
    """


class ManifestDamagedError(ManifestUnreadableError):
    """The bytes of the manifest of a container are not the bytes that were written.

    The next claim rebuilds it if the log is in the object store.
    """


class ThrottledError(ServerError, code=ErrorCode.THROTTLED):
    """A limit is reached. The text says what is full; `retry_after_ms` says when to retry."""


class ShuttingDownError(ServerError, code=ErrorCode.SHUTTING_DOWN):
    """The server is going away."""


class OwnerFencedError(ServerError, code=ErrorCode.SHUTTING_DOWN):
    """Another server has taken over the container. This one may neither acknowledge nor delete anything."""


class LeaseLapsedError(ServerError, code=ErrorCode.UNAVAILABLE):
    """The lease has expired, so another server may have taken over the container. Nothing was done; retry."""


class InvalidArgumentError(ServerError, code=ErrorCode.INVALID_ARGUMENT):
    """A request that can never succeed unchanged."""

    tells_state = True


class DecisionMisfitError(ServerError):
    """A bug in the server: a record that it decided on contradicts the state. It was not logged."""


class SegmentError(ServerError):
    """Something about one segment."""

    tells_state = True


class SegmentNotFoundError(SegmentError, code=ErrorCode.SEGMENT_NOT_FOUND):
    """The segment does not exist (any more)."""


class SegmentExistsError(SegmentError, code=ErrorCode.SEGMENT_EXISTS):
    """A segment of that name exists."""


class SegmentSealedError(SegmentError, code=ErrorCode.SEGMENT_SEALED):
    """The segment is sealed: it accepts no more appends."""


class SegmentTruncatedError(SegmentError, code=ErrorCode.SEGMENT_TRUNCATED):
    """The offset is below the start of the segment."""


class SegmentDamagedError(SegmentError, code=ErrorCode.SEGMENT_DAMAGED):
    """The range is damaged on disk, so reads of it fail; the rest of the segment is served."""


class OffsetBeyondEndError(SegmentError, code=ErrorCode.OFFSET_BEYOND_END):
    """The offset is beyond the length of the segment."""


class ConditionFailedError(SegmentError, code=ErrorCode.CONDITION_FAILED):
    """The segment did not have the expected length; `length` is the actual one."""


class AttributeConditionFailedError(SegmentError, code=ErrorCode.ATTRIBUTE_CONDITION_FAILED):
    """The attribute did not have the expected value."""


class AttributesFullError(SegmentError, code=ErrorCode.ATTRIBUTES_FULL):
    """The attributes of a segment, or of all segments, would exceed their memory limit. Nothing was changed."""


class PipelineBrokenError(SegmentError, code=ErrorCode.PIPELINE_BROKEN):
    """An earlier append of this connection to this segment failed, so this one was not applied."""

    tells_state = False  # the earlier failure is reported first, and has waited


class AppendTooLargeError(SegmentError, code=ErrorCode.APPEND_TOO_LARGE):
    """An append above the limit."""

    tells_state = False


class WriterError(ServerError):
    """Something about one writer."""

    tells_state = True


class WriterFencedError(WriterError, code=ErrorCode.WRITER_FENCED):
    """The writer was opened again elsewhere; its old epoch is fenced."""


class WriterUnknownError(WriterError, code=ErrorCode.WRITER_UNKNOWN):
    """The writer number is unknown; open the writer first."""


class WriterExpiredError(WriterError, code=ErrorCode.WRITER_EXPIRED):
    """The writer expired because it was idle, and its event numbers are deleted; open it again."""


class EventNumberGapError(WriterError, code=ErrorCode.EVENT_NUMBER_GAP):
    """The event number leaves a gap above the last one stored."""


class EventNumberOverlapError(WriterError, code=ErrorCode.EVENT_NUMBER_OVERLAP):
    """Some events of the append are stored already and others are not: it was batched in another way."""


class SequencesRefusedError(WriterError, code=ErrorCode.SEQUENCES_REFUSED):
    """A writer sent sequences that are stored already according to its row; it is rejected until a reset."""


class SequencesMixedError(WriterError, code=ErrorCode.SEQUENCES_MIXED):
    """Either all events of a named writer on a stream have a sequence, or none."""


class StreamHasExclusiveWriterError(WriterError, code=ErrorCode.WRITER_EXCLUDED):
    """The stream has an exclusive writer: another writer, or another epoch."""

    @classmethod
    def of(cls, holder: ExclusiveWriter, *, subject: str) -> Self:
        """Return the error that names the exclusive writer of the stream."""
        return cls(
            f"the stream accepts events only from {holder}, until it releases the stream or another exclusive writer"
            " takes over",
            subject=subject,
        )


class EventTimeError(WriterError, code=ErrorCode.EVENT_TIME_OUTSIDE):
    """An event has a time outside of the bounds of its stream, which rejects it."""


class StreamError(ServerError):
    """Something about one stream."""

    tells_state = True


class StreamNotFoundError(StreamError, code=ErrorCode.STREAM_NOT_FOUND):
    """The stream does not exist."""


class StreamSealedError(StreamError, code=ErrorCode.STREAM_SEALED):
    """The stream is sealed: it accepts no more events."""


class StreamNotSealedError(StreamError, code=ErrorCode.STREAM_NOT_SEALED):
    """Only a sealed stream can be deleted."""


class CutInvalidError(StreamError, code=ErrorCode.CUT_INVALID):
    """A cut that does not cover the key space of the stream exactly once, or is not at a border of events.

    If it goes through an append, `start_offset` is the last border before that place.
    """


class CutTruncatedError(StreamError, code=ErrorCode.CUT_TRUNCATED):
    """A cut that is before the start of the stream."""


class TailChangedError(StreamError, code=ErrorCode.TAIL_CHANGED):
    """The stream does not end at the expected place."""


class EpochChangedError(StreamError, code=ErrorCode.EPOCH_CHANGED):
    """A request was routed by other segments than the stream has now. Nothing was changed."""


class TransactionError(ServerError):
    """Something about one transaction."""

    tells_state = True


class TransactionUnknownError(TransactionError, code=ErrorCode.TRANSACTION_UNKNOWN):
    """The transaction does not exist, or its outcome was forgotten."""


class TransactionCommittedError(TransactionError, code=ErrorCode.TRANSACTION_COMMITTED):
    """The transaction was committed."""


class TransactionAbortedError(TransactionError, code=ErrorCode.TRANSACTION_ABORTED):
    """The transaction was aborted, by a client or by lease expiry. All its events were deleted."""


class TransactionPreparedError(TransactionError, code=ErrorCode.TRANSACTION_PREPARED):
    """The transaction is prepared: it can only be committed or aborted."""


class CursorMovedError(TransactionError, code=ErrorCode.CURSOR_MOVED):
    """A cursor that moves with a commit is not at the expected place. Nothing was changed."""


class BranchMismatchError(TransactionError, code=ErrorCode.BRANCHES_DIFFER):
    """The stored branches of a transaction differ from those in the request. Nothing was changed."""


class TransactionsFullError(TransactionError, code=ErrorCode.TRANSACTIONS_FULL):
    """The limit of open transactions, or of their parts, is reached."""


class TransactionTooLargeError(TransactionError, code=ErrorCode.TRANSACTION_TOO_LARGE):
    """A transaction has reached its size limit. It may still be committed."""


class ProducerCommittedError(TransactionCommittedError, code=ErrorCode.PRODUCER_COMMITTED):
    """The producer has committed this sequence, or a later one. The events of this transaction were deleted."""


class ProducerFencedError(TransactionError, code=ErrorCode.PRODUCER_FENCED):
    """A newer run of the producer, or a reset, has fenced this one. The events of this transaction were deleted."""


class ProducerInUseError(TransactionError, code=ErrorCode.PRODUCER_HELD):
    """Another holder uses the writer id of the producer, until a reset. The events of this transaction were deleted."""


class ProducerUnknownError(TransactionError, code=ErrorCode.PRODUCER_UNKNOWN):
    """No transaction has begun with this producer, or it was forgotten or deleted."""


class ProducersFullError(TransactionError, code=ErrorCode.PRODUCERS_FULL):
    """The limit of producers is reached, and one that has committed something never expires."""
