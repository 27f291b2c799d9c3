"""Errors of the server, one class per reaction of its caller.

ServerError                       the root: `code` crosses the wire, `retriable` tells whether to try again
+-- ConfigurationError            an option or a data folder that cannot be used; nothing was started
|   +-- SettingError              a value that an option cannot have; has `option`, `value` and `right`
|   +-- FolderLockedError         another server owns the data folder
|   +-- FolderVersionError        the data folder was written by another version or server
|   +-- UnsupportedStoreError     the object store does not do what it must, or is that of another server
|   +-- OwnedElsewhereError       another server owns a container of the store, or has owned it since
+-- StorageError
|   +-- NoSpaceError              the disk is full; nothing was stored; try again later
|   +-- DiskUnavailableError      the disk cannot be read or written now; nothing was done; try again later
|   +-- LogFailedError            a write or sync of the log failed: the outcome of what waited is unknown
|   +-- LogClosedError            the log takes no more; reopen it
|   +-- DecisionLostError         the log failed before it was known whether to refuse; nothing was stored
|   +-- LogCorruptError           what is left of the log does not tell what there was; nothing can be started
|   +-- ContentLostError          acknowledged content of the log is missing; an operator has to accept that
|   +-- ChunkCorruptError         a chunk does not match its checksum
|   |   +-- ChunkIdentityError    a chunk is another one than its name or its record says
|   +-- ChunkExistsError          another chunk has that name; nothing was stored
|   +-- ChunkNotFoundError        a chunk that should be there is not
|   +-- CheckpointDamagedError    the checkpoint is not what was written; set it aside and restore or rebuild it
|   +-- StoreUnavailableError     the object store does not answer, or asks to come back; the outcome is open
|   |   +-- StoreBusyError        it asks to come back later
|   |   +-- StoreFullError        it has no room, or a quota is used up; try again when there is room
|   +-- StoreRefusedError         the object store does not permit what is asked; nothing was changed
|   +-- ObjectExistsError         the key has an object already; nothing was stored
|   +-- ObjectChangedError        the object is another one than was read; nothing was stored
|   +-- ObjectNotFoundError       there is no such object
|   +-- OwnershipReleasedError    the disk has failed, and another server waits: this one has ended for that
|   +-- ManifestUnreadableError   a manifest or a lease is not one that this version can read; nothing was changed
|   |   +-- ManifestDamagedError  a manifest is not what was written; a claim rebuilds it if the log is in the store
+-- ThrottledError                a bound is reached; says what is full and when to try again
+-- ShuttingDownError             the server is going away
+-- OwnerFencedError              another server has taken the container over; this one must end
+-- LeaseLapsedError              another server may have taken over; nothing is answered until that is known
+-- InvalidArgumentError          a request that can never succeed
+-- DecisionMisfitError           a fault of the server: its decision does not fit what it would change; nothing was
+-- SegmentError                  about one segment
|   +-- SegmentNotFoundError, SegmentExistsError, SegmentSealedError, SegmentTruncatedError,
|       SegmentDamagedError, OffsetBeyondEndError, ConditionFailedError,
|       AttributeConditionFailedError, AttributesFullError, PipelineBrokenError, AppendTooLargeError
+-- WriterError                   about one writer
|   +-- WriterFencedError, WriterUnknownError, WriterExpiredError, EventNumberGapError,
|       EventNumberOverlapError, SequencesRefusedError, SequencesMixedError, StreamHasExclusiveWriterError,
|       EventTimeError
+-- StreamError                   about one stream
|   +-- StreamNotFoundError, StreamSealedError, StreamNotSealedError, CutInvalidError, CutTruncatedError,
|       TailChangedError, EpochChangedError
+-- TransactionError              about one transaction
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
        subject: what the error is about (a segment, a stream, a path), empty where there is none.
        start_offset, length: the valid range of a segment, -1 where it does not apply.
        start_index: the first valid event of the block at `start_offset`.
        retry_after_ms: when to try again, 0 where it does not apply.
        tells_state: whether it tells what the container holds; such an answer waits until that is durable.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    tells_state: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: ErrorCode | None = None) -> None:
        """Give a class its code; without one it has that of its base."""
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
        """Whether the same request may simply be sent again, later."""
        return self.code in RETRIABLE


class ConfigurationError(ServerError, code=ErrorCode.INVALID_ARGUMENT):
    """An option or a data folder that cannot be used. Nothing was started."""


class SettingError(ConfigurationError):
    """A value that an option cannot have.

    Attributes:
        option: its name in its part.
        value: the value with its unit, as text.
        right: what the value must be, as it continues "it must be".
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
    """The object store does not do what every server relies on, or belongs to another server."""


class OwnedElsewhereError(ConfigurationError):
    """Another server owns a container of the object store, or has owned it since this folder did."""


class StorageError(ServerError):
    """Something about the disk."""


class NoSpaceError(StorageError, code=ErrorCode.NO_SPACE):
    """The disk is full. Nothing was stored; the request may be sent again when there is space."""


class DiskUnavailableError(StorageError, code=ErrorCode.UNAVAILABLE):
    """The disk cannot be read or written now. Nothing was done; the request may be sent again."""


class LogFailedError(StorageError, code=ErrorCode.OUTCOME_UNKNOWN):
    """A write or sync of the log failed. The outcome of what waited for it is unknown."""


class LogClosedError(StorageError, code=ErrorCode.SHUTTING_DOWN):
    """The log takes no more runs; only reopening it helps."""


class DecisionLostError(StorageError, code=ErrorCode.SHUTTING_DOWN):
    """The log failed before that was durable which a refusal rested on. Nothing was stored; send it again."""

    def __init__(self) -> None:
        super().__init__(
            "the log failed before it was known whether this is to be refused; it was not stored, send it again",
            retry_after_ms=1000,
        )


class LogCorruptError(StorageError):
    """What is left of the log does not tell what there was. Nothing can be started from it."""


class ContentLostError(StorageError, code=ErrorCode.CONTENT_LOST):
    """Content of the log is missing that may have been acknowledged.

    Nothing is changed or added until the files are put back, or an operator accepts the loss. If the log contradicts
    one entity, that is so for this entity alone.
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
    """A chunk that is sound, but is not the one that its name or the record of it says.

    Attributes:
        found: what the file says that it holds.
        expected: what the name or the record says that it holds.
    """

    def __init__(self, name: str, offset: int, *, found: str, expected: str) -> None:
        super().__init__(name, offset, f"the file holds {found} where {expected} belongs, says its summary")
        self.found = found
        self.expected = expected


class ChunkExistsError(StorageError):
    """Another chunk has the name under which one was to be published. Nothing was stored, and the other one stays."""


class ChunkNotFoundError(StorageError, code=ErrorCode.SEGMENT_DAMAGED):
    """A chunk that should be there is not."""


class CheckpointDamagedError(StorageError):
    """The checkpoint is not what was written, or cannot be read. Set it aside, then restore a copy or rebuild it."""


class StoreUnavailableError(StorageError, code=ErrorCode.UNAVAILABLE):
    """The object store does not answer, or asks to come back later. What was asked may have happened, or happen yet.

    Attributes:
        changed_nothing: the store itself has said that it did not do it; then it will not happen later, either.
    """

    def __init__(self, message: str, *, subject: str = "", changed_nothing: bool = False) -> None:
        super().__init__(message, subject=subject)
        self.changed_nothing = changed_nothing


class StoreBusyError(StoreUnavailableError):
    """The object store asks to come back later: it is asked too often. Never fatal: ask again, after a pause."""


class StoreFullError(StoreUnavailableError, code=ErrorCode.NO_SPACE):
    """The object store has no room, or a quota is used up. Never fatal: try again when there is room."""


class StoreRefusedError(StorageError):
    """The object store does not permit what is asked: credentials, a policy, a bucket that is missing."""


class ObjectExistsError(StorageError):
    """The key has an object already. Nothing was stored."""


class ObjectChangedError(StorageError):
    """The object is another one than the one that was read, or is gone. Nothing was stored."""


class ObjectNotFoundError(StorageError):
    """There is no object under the key."""


class OwnershipReleasedError(StorageError):
    """The disk keeps this server from serving, and another one waits: it has given up what it owned.

    Nothing that was acknowledged is lost. Started again, it stands by, or says what is wrong with its disk.
    """


class ManifestUnreadableError(StorageError):
    """The manifest of a container, or the lease of a server, is damaged, or another version wrote it.

    Nothing is claimed or changed until an operator has looked at it.
    """


class ManifestDamagedError(ManifestUnreadableError):
    """The bytes of the manifest of a container are not the bytes that were written.

    The next claim rebuilds it if the log is in the object store.
    """


class ThrottledError(ServerError, code=ErrorCode.THROTTLED):
    """A bound is reached. The text says what is full; `retry_after_ms` says when to try again."""


class ShuttingDownError(ServerError, code=ErrorCode.SHUTTING_DOWN):
    """The server is going away."""


class OwnerFencedError(ServerError, code=ErrorCode.SHUTTING_DOWN):
    """Another server has taken the container over. Nothing may be acknowledged or deleted any more."""


class LeaseLapsedError(ServerError, code=ErrorCode.UNAVAILABLE):
    """Another server may have taken the container over: the lease could not be renewed. Nothing was done; try again."""


class InvalidArgumentError(ServerError, code=ErrorCode.INVALID_ARGUMENT):
    """A request that can never succeed unchanged."""

    tells_state = True


class DecisionMisfitError(ServerError):
    """A fault of the server: a record that it decided on does not fit what it would change. It was not logged."""


class SegmentError(ServerError):
    """Something about one segment."""

    tells_state = True


class SegmentNotFoundError(SegmentError, code=ErrorCode.SEGMENT_NOT_FOUND):
    """There is no such segment (any more)."""


class SegmentExistsError(SegmentError, code=ErrorCode.SEGMENT_EXISTS):
    """A segment of that name exists."""


class SegmentSealedError(SegmentError, code=ErrorCode.SEGMENT_SEALED):
    """The segment takes no more appends, forever."""


class SegmentTruncatedError(SegmentError, code=ErrorCode.SEGMENT_TRUNCATED):
    """The offset is below the start of the segment."""


class SegmentDamagedError(SegmentError, code=ErrorCode.SEGMENT_DAMAGED):
    """The range is known to be damaged on disk, and refused; the rest of the segment is served."""


class OffsetBeyondEndError(SegmentError, code=ErrorCode.OFFSET_BEYOND_END):
    """The offset is beyond the length of the segment."""


class ConditionFailedError(SegmentError, code=ErrorCode.CONDITION_FAILED):
    """The segment did not have the expected length; `length` is the actual one."""


class AttributeConditionFailedError(SegmentError, code=ErrorCode.ATTRIBUTE_CONDITION_FAILED):
    """The attribute did not have the expected value."""


class AttributesFullError(SegmentError, code=ErrorCode.ATTRIBUTES_FULL):
    """Attributes of a segment, or of all, would take more memory than they may. Nothing was changed."""


class PipelineBrokenError(SegmentError, code=ErrorCode.PIPELINE_BROKEN):
    """An earlier append of this connection to this segment failed, so this one was not applied."""

    tells_state = False  # that one is told first, and has waited


class AppendTooLargeError(SegmentError, code=ErrorCode.APPEND_TOO_LARGE):
    """An append above the limit."""

    tells_state = False


class WriterError(ServerError):
    """Something about one writer."""

    tells_state = True


class WriterFencedError(WriterError, code=ErrorCode.WRITER_FENCED):
    """The writer was opened again elsewhere; this epoch may not write any more."""


class WriterUnknownError(WriterError, code=ErrorCode.WRITER_UNKNOWN):
    """No such writer number; open the writer first."""


class WriterExpiredError(WriterError, code=ErrorCode.WRITER_EXPIRED):
    """The writer was idle for so long that its event numbers are not kept any more; it has to be opened again."""


class EventNumberGapError(WriterError, code=ErrorCode.EVENT_NUMBER_GAP):
    """The event number leaves a gap above the last one stored."""


class EventNumberOverlapError(WriterError, code=ErrorCode.EVENT_NUMBER_OVERLAP):
    """Some events of the append are stored already and others are not: it was batched in another way."""


class SequencesRefusedError(WriterError, code=ErrorCode.SEQUENCES_REFUSED):
    """A writer sent sequences that its row on the stream says are stored; it is refused until they are reset."""


class SequencesMixedError(WriterError, code=ErrorCode.SEQUENCES_MIXED):
    """All events of a named writer on a stream have a sequence, or none has."""


class StreamHasExclusiveWriterError(WriterError, code=ErrorCode.WRITER_EXCLUDED):
    """The stream has an exclusive writer, which is another one, or has another epoch."""

    @classmethod
    def of(cls, holder: ExclusiveWriter, *, subject: str) -> Self:
        """Return the error that names who has the stream."""
        return cls(
            f"the stream takes events from {holder} alone, until that releases it or another exclusive writer takes it"
            " over",
            subject=subject,
        )


class EventTimeError(WriterError, code=ErrorCode.EVENT_TIME_OUTSIDE):
    """An event has a time outside of the bounds of its stream, which refuses it."""


class StreamError(ServerError):
    """Something about one stream."""

    tells_state = True


class StreamNotFoundError(StreamError, code=ErrorCode.STREAM_NOT_FOUND):
    """There is no such stream."""


class StreamSealedError(StreamError, code=ErrorCode.STREAM_SEALED):
    """The stream takes no more events, forever."""


class StreamNotSealedError(StreamError, code=ErrorCode.STREAM_NOT_SEALED):
    """Only a sealed stream can be deleted."""


class CutInvalidError(StreamError, code=ErrorCode.CUT_INVALID):
    """A cut that does not cover the key space of the stream exactly once, or is not at a border of events.

    If it goes through an append, `start_offset` is the last border before that place.
    """


class CutTruncatedError(StreamError, code=ErrorCode.CUT_TRUNCATED):
    """A cut that is before the start of the stream."""


class TailChangedError(StreamError, code=ErrorCode.TAIL_CHANGED):
    """The stream does not end where it was expected to."""


class EpochChangedError(StreamError, code=ErrorCode.EPOCH_CHANGED):
    """A request was routed by other segments than the stream has now. Nothing was changed."""


class TransactionError(ServerError):
    """Something about one transaction."""

    tells_state = True


class TransactionUnknownError(TransactionError, code=ErrorCode.TRANSACTION_UNKNOWN):
    """There is no such transaction, or how it ended is not known any more."""


class TransactionCommittedError(TransactionError, code=ErrorCode.TRANSACTION_COMMITTED):
    """The transaction was committed."""


class TransactionAbortedError(TransactionError, code=ErrorCode.TRANSACTION_ABORTED):
    """The transaction was aborted, by somebody or by its lease. Nothing of it is left."""


class TransactionPreparedError(TransactionError, code=ErrorCode.TRANSACTION_PREPARED):
    """The transaction is prepared: it can only be committed or aborted."""


class CursorMovedError(TransactionError, code=ErrorCode.CURSOR_MOVED):
    """A cursor that is to move with a commit is not where the commit expects it. Nothing was changed."""


class BranchMismatchError(TransactionError, code=ErrorCode.BRANCHES_DIFFER):
    """What is stored of the branches of a transaction is not what the request says. Nothing was changed."""


class TransactionsFullError(TransactionError, code=ErrorCode.TRANSACTIONS_FULL):
    """There are as many open transactions, or parts of them, as there may be."""


class TransactionTooLargeError(TransactionError, code=ErrorCode.TRANSACTION_TOO_LARGE):
    """A transaction has as many bytes as it may have. What it has may still be committed."""


class ProducerCommittedError(TransactionCommittedError, code=ErrorCode.PRODUCER_COMMITTED):
    """The producer has committed this sequence, or a later one. Nothing of this transaction is left."""


class ProducerFencedError(TransactionError, code=ErrorCode.PRODUCER_FENCED):
    """A newer run of the producer has replaced this one, or a reset has. Nothing of this transaction is left."""


class ProducerInUseError(TransactionError, code=ErrorCode.PRODUCER_HELD):
    """Another holder has the writer id of the producer, until it is reset. Nothing of this transaction is left."""


class ProducerUnknownError(TransactionError, code=ErrorCode.PRODUCER_UNKNOWN):
    """No transaction has begun with this producer, or it was forgotten or deleted."""


class ProducersFullError(TransactionError, code=ErrorCode.PRODUCERS_FULL):
    """The limit of producers is reached, and one that has committed something never expires."""
