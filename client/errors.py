"""The errors of the client: one class for each thing that a caller can do about an error.

MillraceError                        the root; has `code` (number on the wire, or None) and `retriable`
+-- RequestError                     the server's answer to a request; has `facts`
|   +-- InvalidArgumentError         a request that can never succeed  (also a ValueError)
|   |   +-- InvalidNameError         a name outside the rule of names
|   |   +-- EventTooLargeError       an event or append above the limits; refused before it is sent
|   |   +-- ColumnInvalidError       an invalid column of an Arrow batch; has `column`
|   |   +-- CutInvalidError          a cut that does not fit its stream
|   |   |   +-- CutOrderError        a start that is after the end
|   |   +-- BranchTokenError         a branch token of another transaction
|   +-- SegmentNotFoundError
|   +-- SegmentExistsError
|   +-- SegmentSealedError           the segment accepts no more appends
|   |   +-- StreamSealedError
|   +-- StreamNotSealedError
|   +-- SegmentTruncatedError        the position was truncated; has `start_offset` and `length`
|   |   +-- CutTruncatedError        a cut before the start; has `resume_at`
|   +-- SegmentDamagedError          the bytes fail their checksum on the server
|   +-- OffsetBeyondEndError         the position is beyond the end; has `length`
|   +-- ConditionFailedError         the segment has another length than expected; has `length`
|   +-- AttributeConditionFailedError  the attribute has another value than expected
|   +-- AttributesFullError          the attributes exceed their size limit
|   +-- PipelineBrokenError          an earlier append in the pipeline failed; this one is not stored
|   +-- WriterFencedError            the writer was replaced, lost its exclusive stream, or is unknown to the server
|   +-- WriterExpiredError           the writer was idle for so long that its event numbers were deleted
|   +-- EventNumberError             event numbers leave a gap or overlap
|   +-- SequencesRefusedError        the writer reused sequences that count as stored
|   +-- SequencesMixedError          one writer sent events with and without sequences to one stream
|   +-- StreamHasExclusiveWriterError  the stream has an exclusive writer
|   +-- EventTimeError               an event time is outside of the bounds of its stream
|   +-- TailChangedError             the stream does not end where an exclusive writer expected it to
|   +-- EpochChangedError            the stream is scaled faster than this client can fetch its segments
|   +-- StreamNotFoundError
|   +-- StreamExistsError            a stream of that name with another configuration
|   +-- TransactionUnknownError      the server does not know the transaction, or no longer
|   +-- TransactionCommittedError    the transaction is committed already
|   |   +-- ProducerCommittedError   the producer has committed this sequence already
|   +-- TransactionAbortedError      a client aborted it, or its lease expired
|   +-- TransactionPreparedError     it is prepared, and can only be committed or aborted
|   +-- CursorMovedError             a cursor to move with a commit is not at the expected position
|   +-- BranchMismatchError          the stored events differ in number from those to commit
|   +-- TransactionTooLargeError     the transaction has reached its size limit
|   +-- ProducerFencedError          a newer run of the producer has replaced this one
|   +-- ProducerInUseError           another holder uses the writer id of the producer
|   +-- ProducerUnknownError         no transaction has begun with this producer
|   +-- ProducersFullError           the server has reached its limit of producers
|   +-- ThrottledError               has `retry_after_s`
|   |   +-- NoSpaceError             the disk is full
|   |   +-- DiskUnavailableError     the disk, or the object store, cannot be used now
|   |   +-- DeadlineExceededError    the request waited in the server beyond its deadline  (also a TimeoutError)
|   |   +-- TransactionsFullError    too many transactions are open
|   +-- ContentLostError             the server has lost acknowledged data; an operator has to accept the loss
|   +-- OutcomeUnknownError          the request may or may not have been carried out
|   |   +-- AnswerLostError          the connection was lost before the reply  (also a ConnectionError)
|   |   +-- AnswerTimeoutError       no reply within the time limit  (also a TimeoutError)
|   |   +-- DeliveryTimeoutError     a writer gave up; has the number of stored events  (also a TimeoutError)
|   +-- AuthenticationError          the token is missing, wrong, or not sufficient
|   +-- ServerFailedError            internal error of the server, or a protocol violation
|       +-- ServerShuttingDownError  the server is shutting down; nothing was done
+-- ConnectionLostError              (also a ConnectionError)
|   +-- ServerUnreachableError       no connection could be made
+-- RequestTimeoutError              (also a TimeoutError)
|   +-- OutageTimeoutError           the server was away for too long; has `resume_at`
+-- ForkedClientError                a client used in a forked child process
+-- WrongLoopError                   a client used in another event loop than its own  (also a RuntimeError)
+-- GreenThreadsError                gevent or eventlet has patched threads            (also a RuntimeError)
+-- ClientClosedError
+-- NotOpenError                     a writer or reader that is not open yet
+-- BufferFullError                  the program writes faster than the server stores; `await writer.drain()`
+-- MissingExtraError                an optional package is not installed  (also an ImportError)
+-- BlockCorruptError                bytes in a stream that are not an event block  (also a ValueError)
+-- ValueMalformedError              a value that does not fit its columns; has `position`  (also a ValueError)
"""

from collections.abc import Sequence
from typing import Any, Final

from millrace.model.cut import StreamCut
from millrace.model.errors import (
    CutInvalidError,
    ErrorFacts,
    EventTooLargeError,
    InvalidArgumentError,
    InvalidNameError,
    MillraceError,
    RequestError,
)
from millrace.model.event import EventPosition
from millrace.wire import messages as m
from millrace.wire.errors import RETRIABLE, ErrorCode

CLASS_OF_CODE: Final[dict[int, type[RequestError]]] = {
    ErrorCode.INVALID_ARGUMENT: InvalidArgumentError,
    ErrorCode.INVALID_NAME: InvalidNameError,
    ErrorCode.APPEND_TOO_LARGE: EventTooLargeError,
    ErrorCode.CUT_INVALID: CutInvalidError,
}
"""The class for each code on the wire. An unknown code, of a newer server, becomes a plain `RequestError`."""


class _Answer(RequestError):  # noqa: N818  # a base that is never raised
    """An error reply of a server; each class lists its error codes."""

    def __init_subclass__(cls, *, codes: Sequence[ErrorCode] = ()) -> None:
        CLASS_OF_CODE.update(dict.fromkeys(codes, cls))
        if codes:
            cls.retriable = codes[0] in RETRIABLE
            assert all((code in RETRIABLE) is cls.retriable for code in codes), "one class is one reaction"


class SegmentNotFoundError(_Answer, codes=[ErrorCode.SEGMENT_NOT_FOUND]):
    """The segment does not exist: it was never created, or is deleted. The text names it."""


class SegmentExistsError(_Answer, codes=[ErrorCode.SEGMENT_EXISTS]):
    """A segment of that name exists already."""


class SegmentSealedError(_Answer, codes=[ErrorCode.SEGMENT_SEALED]):
    """The segment accepts no more appends. A stream writer never raises this: it continues in the successors."""


class StreamSealedError(SegmentSealedError, codes=[ErrorCode.STREAM_SEALED]):
    """The stream is sealed, and never accepts events again."""


class StreamNotSealedError(_Answer, codes=[ErrorCode.STREAM_NOT_SEALED]):
    """Only a sealed stream can be deleted: seal it first."""


class SegmentTruncatedError(_Answer, codes=[ErrorCode.SEGMENT_TRUNCATED]):
    """The bytes or events at this position were truncated.

    The segment now starts at `start_offset`. If a stream was truncated inside a block, `start_index` is the first
    remaining event of that block.
    """


class CutTruncatedError(SegmentTruncatedError, codes=[ErrorCode.CUT_TRUNCATED]):
    """A cut or a reader is before the start of its stream: the events there were truncated.

    Attributes:
        resume_at: the cut from which a reader continues with the remaining events; None in an error that the server
            sent.
    """

    def __init__(self, facts: ErrorFacts | str, *, resume_at: StreamCut | None = None) -> None:
        super().__init__(facts)
        self.resume_at = resume_at


class SegmentDamagedError(_Answer, codes=[ErrorCode.SEGMENT_DAMAGED]):
    """The bytes are damaged on the server's disk: they fail their checksum. The server does not send them."""


class OffsetBeyondEndError(_Answer, codes=[ErrorCode.OFFSET_BEYOND_END]):
    """The position is beyond the end of the segment, which ends at `length`."""


class ConditionFailedError(_Answer, codes=[ErrorCode.CONDITION_FAILED]):
    """The `length` of the segment differs from the expected offset; nothing was stored."""


class AttributeConditionFailedError(_Answer, codes=[ErrorCode.ATTRIBUTE_CONDITION_FAILED]):
    """The value of the attribute differs from the expected one; nothing was changed."""


class AttributesFullError(_Answer, codes=[ErrorCode.ATTRIBUTES_FULL]):
    """The attributes of the segment, or of all segments, would exceed their size limit; nothing was changed."""


class PipelineBrokenError(_Answer, codes=[ErrorCode.PIPELINE_BROKEN]):
    """An earlier append of the same writer to the same segment failed, so this one was not stored.

    Repeating it is safe; but it was meant to follow the failed append, so handle that error first.
    """


class WriterFencedError(_Answer, codes=[ErrorCode.WRITER_FENCED, ErrorCode.WRITER_UNKNOWN]):
    """The writer is fenced, and can store no more events; the text gives the reason.

    Its id was opened again, another exclusive writer took its stream over, or the server does not know it.
    """


class WriterExpiredError(_Answer, codes=[ErrorCode.WRITER_EXPIRED]):
    """The writer was idle for so long that the server has deleted its event numbers.

    If an append raises this, its events are not stored: open a new writer, and write them again. If opening a writer id
    raises this, read the stream to find the stored events, then open the id with `start_over_if_expired=True`.
    """


class EventNumberError(_Answer, codes=[ErrorCode.EVENT_NUMBER_GAP, ErrorCode.EVENT_NUMBER_OVERLAP]):
    """A program that numbers its own appends left a gap, or reused numbers. Nothing was stored."""


class SequencesRefusedError(_Answer, codes=[ErrorCode.SEQUENCES_REFUSED]):
    """A writer reused sequences that count as stored. The server rejects its events until its sequences are reset.

    Two events had the same sequence, or the writer is faulty. Read the stream to find the stored events, then reset the
    sequences of the writer.
    """


class SequencesMixedError(_Answer, codes=[ErrorCode.SEQUENCES_MIXED]):
    """A writer with an id sent events with and without sequences to one stream; all must have one, or none."""


class StreamHasExclusiveWriterError(_Answer, codes=[ErrorCode.WRITER_EXCLUDED]):
    """The stream has an exclusive writer, which the text names. Nothing was stored.

    If an exclusive writer raises this, another one has taken the stream over.
    """


class EventTimeError(_Answer, codes=[ErrorCode.EVENT_TIME_OUTSIDE]):
    """An event time is outside of the bounds of the stream (`StreamConfig.event_times`). Nothing was stored.

    The text contains the time, and its distance from the server's clock. The other events of the block are not stored
    either, and the writer ends.
    """


class TailChangedError(_Answer, codes=[ErrorCode.TAIL_CHANGED]):
    """The stream does not end at the cut that an exclusive writer expected; the text names both. Nothing changed.

    Read the events written since, and open the writer again.
    """


class StreamNotFoundError(_Answer, codes=[ErrorCode.STREAM_NOT_FOUND]):
    """The stream does not exist: it was never created, or is deleted. The text names it."""


class StreamExistsError(_Answer, codes=[ErrorCode.STREAM_EXISTS]):
    """A stream of that name exists already."""


class EpochChangedError(_Answer, codes=[ErrorCode.EPOCH_CHANGED]):
    """The stream was scaled after this client fetched its segments. Nothing was changed.

    The client retries by itself, and raises this only if the stream is scaled faster than it can fetch the segments.
    """


class TransactionUnknownError(_Answer, codes=[ErrorCode.TRANSACTION_UNKNOWN]):
    """The server does not know the transaction, or no longer knows its outcome."""


class TransactionCommittedError(_Answer, codes=[ErrorCode.TRANSACTION_COMMITTED]):
    """The transaction is committed already."""


class ProducerCommittedError(TransactionCommittedError, codes=[ErrorCode.PRODUCER_COMMITTED]):
    """The producer has committed this sequence already, or a later one. Nothing was added."""


class TransactionAbortedError(_Answer, codes=[ErrorCode.TRANSACTION_ABORTED]):
    """A client aborted the transaction, or its lease expired. Its events are deleted."""


class TransactionPreparedError(_Answer, codes=[ErrorCode.TRANSACTION_PREPARED]):
    """The transaction is prepared: it can only be committed or aborted."""


class CursorMovedError(_Answer, codes=[ErrorCode.CURSOR_MOVED]):
    """A cursor to move with a commit is not at the expected position: another program has moved it. Nothing changed."""


class BranchMismatchError(_Answer, codes=[ErrorCode.BRANCHES_DIFFER]):
    """The stored events of a transaction differ in number from those that the commit names. Nothing was changed."""


class BranchTokenError(InvalidArgumentError):
    """A branch token belongs to another transaction than the one to commit; the text names both."""


class TransactionTooLargeError(_Answer, codes=[ErrorCode.TRANSACTION_TOO_LARGE]):
    """The transaction has reached its size limit. These events were not stored; the others can be committed."""


class ProducerFencedError(_Answer, codes=[ErrorCode.PRODUCER_FENCED]):
    """A newer run of the producer, or a reset, has fenced this run; the text names both. Nothing was committed.

    The same program was started again elsewhere. This run should end.
    """


class ProducerInUseError(_Answer, codes=[ErrorCode.PRODUCER_HELD]):
    """Another program uses the writer id of the producer; the text names both, and the command to change that.

    Two programs use one writer id. Use another id in one of them; or, if the holder is gone for good, reset the
    producer.
    """


class ProducerUnknownError(_Answer, codes=[ErrorCode.PRODUCER_UNKNOWN]):
    """The server does not know this producer: no transaction has begun with it, or it has expired or was deleted."""


class ProducersFullError(_Answer, codes=[ErrorCode.PRODUCERS_FULL]):
    """The server has reached its limit of producers. Reuse a writer id, or delete a producer."""


class ThrottledError(_Answer, codes=[ErrorCode.THROTTLED]):
    """A resource of the server is full; retry after `retry_after_s`."""


class NoSpaceError(ThrottledError, codes=[ErrorCode.NO_SPACE]):
    """The server's disk is full; nothing was stored."""


class DiskUnavailableError(ThrottledError, codes=[ErrorCode.UNAVAILABLE]):
    """The server's disk or object store is unavailable; nothing was done. The server recovers by itself.

    Also raised while the server cannot renew its lease in the object store: another server may have taken over.
    """


class TransactionsFullError(ThrottledError, codes=[ErrorCode.TRANSACTIONS_FULL]):
    """Too many transactions are open, or they have too many parts. Some must end first."""


class DeadlineExceededError(ThrottledError, TimeoutError, codes=[ErrorCode.DEADLINE_EXCEEDED]):
    """The server was too busy to begin the request before its deadline; nothing was done."""


class ContentLostError(_Answer, codes=[ErrorCode.CONTENT_LOST]):
    """The server has lost a part of its log, possibly with acknowledged events; the text says how much, and since when.

    The server is read-only until its operator puts the files back, or accepts the loss with
    `millrace repair --accept-loss`. If the text names a damaged segment, stream, writer, transaction or producer, a
    record of the log contradicts it, and only requests that change it are rejected.
    """


class OutcomeUnknownError(_Answer, codes=[ErrorCode.OUTCOME_UNKNOWN]):
    """The request may or may not have been carried out, and it is not idempotent.

    Find out, for instance by reading the stream, before you repeat it. Writes of an open writer are idempotent: the
    server recognises events that the writer resends.
    """


class AnswerLostError(OutcomeUnknownError, ConnectionError):
    """The connection was lost after the request was sent, before the reply; `__cause__` is the reason."""


class AnswerTimeoutError(OutcomeUnknownError, TimeoutError):
    """The request was sent, and no reply arrived within `request_timeout_s` of the client's options."""


class DeliveryTimeoutError(OutcomeUnknownError, TimeoutError):
    """A writer gave up after its `delivery_timeout_s`; `__cause__` is the error of its last attempt.

    Attributes:
        stored_count: events stored since the writer was opened.
        unknown_count: events sent without an acknowledgement; they may be stored.
        unstored_count: events that are not stored.
    """

    def __init__(self, message: str, *, stored_count: int = 0, unknown_count: int = 0, unstored_count: int = 0) -> None:
        super().__init__(message)
        self.stored_count = stored_count
        self.unknown_count = unknown_count
        self.unstored_count = unstored_count


class AuthenticationError(_Answer, codes=[ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN]):
    """The token is missing, wrong, or not sufficient. Pass the right token to `connect(token=)`."""


class ServerFailedError(_Answer, codes=[ErrorCode.PROTOCOL, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INTERNAL]):
    """The server failed, or does not speak the protocol of this client. See the log of the server."""


class ServerShuttingDownError(ServerFailedError, codes=[ErrorCode.SHUTTING_DOWN]):
    """The server is shutting down, or is reopening its log; nothing was done."""


class ConnectionLostError(MillraceError, ConnectionError):
    """The connection was lost while requests were waiting for replies."""

    retriable = True


class ServerUnreachableError(ConnectionLostError):
    """No connection could be made: no Millrace server listens at the address, or it does not reply.

    Attributes:
        address: host and port, as text; several are separated by commas.
        reason: the error of the attempt; of several addresses, the error of each.
    """

    def __init__(self, address: str, reason: str) -> None:
        # One argument: an `OSError` takes two for a number and a text.
        place = "" if "," in address else f" at {address}"  # of several, the reason names each
        super().__init__(f"no server could be reached{place}: {reason}")
        self.address = address
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the error by its arguments."""
        made_by, _, state = super().__reduce__()
        return made_by, (self.address, self.reason), state


class RequestTimeoutError(MillraceError, TimeoutError):
    """No reply within the time limit of the client's options."""

    retriable = True


class OutageTimeoutError(RequestTimeoutError):
    """The server was unavailable for longer than `outage_timeout_s` of the client's options.

    Attributes:
        resume_at: the cut from which a reader of a stream continues; None for other calls.
    """

    def __init__(self, message: str, *, resume_at: StreamCut | None = None) -> None:
        super().__init__(message)
        self.resume_at = resume_at

    def __str__(self) -> str:
        text = str(self.args[0])
        return text if self.resume_at is None else f"{text}; resume at {self.resume_at}"


class ForkedClientError(MillraceError):
    """A client is used in a forked child process. Make a new client in the child, after the fork."""

    def __str__(self) -> str:
        return "this client was made by the parent of this process; make a new one after fork"


class WrongLoopError(MillraceError, RuntimeError):
    """A client, or an object made by it, is used outside of its event loop: the loop in which it was first used.

    Make one client for each loop; for threads use `millrace.blocking`.
    """

    def __init__(
        self,
        message: str = "this client belongs to another event loop, or to one that has ended: make one client for each"
        " loop; for threads use millrace.blocking",
    ) -> None:
        super().__init__(message)


class GreenThreadsError(MillraceError, RuntimeError):
    """gevent or eventlet has replaced the threads of Python, but the client for threads needs a real one.

    Patch without threads, before anything else: `gevent.monkey.patch_all(thread=False)`, or
    `eventlet.monkey_patch(thread=False)`. Or use the client for asyncio in a process of its own.
    """


class ClientClosedError(MillraceError):
    """The client, writer, reader or transaction was closed before or during the call."""


class NotOpenError(MillraceError):
    """The writer or transaction is not open yet; enter it with `async with`."""


class ColumnInvalidError(InvalidArgumentError):
    """A column of an Arrow batch is missing, has the wrong type, or has nulls where they are not allowed."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column!r} {reason}")
        self.column = column

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the error by its arguments."""
        made_by, _, state = super().__reduce__()
        return made_by, (self.column, self.facts.message.removeprefix(f"column {self.column!r} ")), state


class ValueMalformedError(MillraceError, ValueError):
    """The value of an event is not a JSON object, or does not fit the requested columns.

    Attributes:
        position: position of the event; `client.fetch_event(position)` returns the event.
        reason: what is wrong with the value.
        column: the column that the value does not fit; None if it is malformed as a whole.
    """

    def __init__(self, position: EventPosition, reason: str, column: str | None = None) -> None:
        super().__init__(position, reason, column)
        self.position = position
        self.reason = reason
        self.column = column

    def __str__(self) -> str:
        place = "segment {}, offset {}, index {}".format(*self.position)
        column = "" if self.column is None else f"column {self.column!r} "
        return f"the value of the event at {place}: {column}{self.reason}"


class BufferFullError(MillraceError):
    """The buffer of a writer is full: the program writes faster than the server stores. The event was not accepted.

    Use `await writer.drain()` between writes. A blocking writer waits by itself.

    Attributes:
        pending_bytes: bytes accepted and not yet durable, including the memory of their objects.
        limit_bytes: `buffer_bytes_max` of the writer's options.
    """

    retriable = True

    def __init__(self, pending_bytes: int, limit_bytes: int) -> None:
        super().__init__(pending_bytes, limit_bytes)
        self.pending_bytes = pending_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"the buffer is full: {self.pending_bytes} bytes are pending, and the limit is {self.limit_bytes}; "
            "use `await writer.drain()` between writes"
        )


assert set(CLASS_OF_CODE) == set(ErrorCode), set(ErrorCode) - set(CLASS_OF_CODE)


def error_of_reply(reply: m.ErrorReply) -> RequestError:
    """Return the error that an error reply reports."""
    facts = ErrorFacts(
        message=reply.message,
        code=reply.code,
        retriable=bool(reply.retriable),
        subject=reply.subject,
        start_offset=None if reply.start_offset < 0 else reply.start_offset,
        start_index=reply.start_index,
        length=None if reply.length < 0 else reply.length,
        retry_after_s=reply.retry_after_ms / 1000,
    )
    cls = CLASS_OF_CODE.get(reply.code, RequestError)
    return cls(facts)
