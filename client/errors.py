"""The errors of the client: one class for each thing that a caller can do about an error.

MillraceError                        the root; has `code` (number on the wire, or None) and `retriable`
+-- RequestError                     the server's answer to a request; has `facts`
|   +-- InvalidArgumentError         a request that can never succeed  (also a ValueError)
|   |   +-- InvalidNameError         a name outside the rule of names
|   |   +-- EventTooLargeError       an event or append above the limits; refused before it is sent
|   |   +-- ColumnInvalidError       a column of an Arrow batch that is no column of events; has `column`
|   |   +-- CutInvalidError          a cut that does not fit its stream
|   |   |   +-- CutOrderError        a start that is after the end
|   |   +-- BranchTokenError         a token of a branch of another transaction than the one that is committed
|   +-- SegmentNotFoundError
|   +-- SegmentExistsError
|   +-- SegmentSealedError           no more appends
|   |   +-- StreamSealedError
|   +-- StreamNotSealedError
|   +-- SegmentTruncatedError        the place was truncated; has `start_offset` and `length`
|   |   +-- CutTruncatedError        a cut before the start; has `resume_at`
|   +-- SegmentDamagedError          these bytes fail their checksum on the server
|   +-- OffsetBeyondEndError         the place is not there yet; has `length`
|   +-- ConditionFailedError         another length than expected; has `length`
|   +-- AttributeConditionFailedError  another value than expected
|   +-- AttributesFullError          the attributes would take more room than they may
|   +-- PipelineBrokenError          an append before it in the pipeline failed; this one is not stored
|   +-- WriterFencedError            the writer id was opened again, or has lost its stream, or is unknown to the server
|   +-- WriterExpiredError           the writer was idle for so long that its event numbers were deleted
|   +-- EventNumberError             event numbers that leave a gap or overlap
|   +-- SequencesRefusedError        the server takes these sequences for stored, or refused such ones before
|   +-- SequencesMixedError          events with sequences and events without, of one writer on one stream
|   +-- StreamHasExclusiveWriterError  another writer has the stream to itself
|   +-- EventTimeError               an event is further in the future or the past than its stream permits
|   +-- TailChangedError             the stream does not end where an exclusive writer expected it to
|   +-- EpochChangedError            the stream was scaled faster than this client could ask for its segments
|   +-- StreamNotFoundError
|   +-- StreamExistsError            a stream of that name with another configuration
|   +-- TransactionUnknownError      no such transaction, or its outcome was forgotten
|   +-- TransactionCommittedError    it was committed before
|   |   +-- ProducerCommittedError   what has this sequence of its producer was
|   +-- TransactionAbortedError      it was aborted, by somebody or by its lease
|   +-- TransactionPreparedError     it is prepared, and can only be committed or aborted
|   +-- CursorMovedError             a cursor that should move with a commit was not where it was expected
|   +-- BranchMismatchError          not so many events are stored as were to be committed
|   +-- TransactionTooLargeError     it has as many bytes as a transaction may have
|   +-- ProducerFencedError          a newer run of the producer has replaced this one
|   +-- ProducerInUseError           another holder has the writer id of the producer
|   +-- ProducerUnknownError         no transaction ever began with it
|   +-- ProducersFullError           as many producers are known as may be
|   +-- ThrottledError               has `retry_after_s`
|   |   +-- NoSpaceError             the disk is full
|   |   +-- DiskUnavailableError     the disk, or the object store, cannot be used now
|   |   +-- DeadlineExceededError    the server did not get to it in time  (also a TimeoutError)
|   |   +-- TransactionsFullError    as many transactions are open as may be
|   +-- ContentLostError             the server misses what it has acknowledged; an operator has to accept that
|   +-- OutcomeUnknownError          it may or may not have been stored
|   |   +-- AnswerLostError          the connection was lost before the answer  (also a ConnectionError)
|   |   +-- AnswerTimeoutError       no answer within the time limit  (also a TimeoutError)
|   |   +-- DeliveryTimeoutError     a writer gave up; says how much is stored  (also a TimeoutError)
|   +-- AuthenticationError          no token, a wrong token, or one that does not allow this
|   +-- ServerFailedError            the server's fault, or the protocol was broken
|       +-- ServerShuttingDownError  the server is going away; nothing was done
+-- ConnectionLostError              (also a ConnectionError)
|   +-- ServerUnreachableError       no connection could be made
+-- RequestTimeoutError              (also a TimeoutError)
|   +-- OutageTimeoutError           the server was away for too long; has `resume_at`
+-- ForkedClientError                a client used by a child of the process that made it
+-- WrongLoopError                   a client used in another event loop than its own  (also a RuntimeError)
+-- GreenThreadsError                gevent or eventlet has patched threads            (also a RuntimeError)
+-- ClientClosedError
+-- NotOpenError                     a writer or reader that was not opened yet
+-- BufferFullError                  write faster than the server stores; `await writer.drain()`
+-- MissingExtraError                what was asked for needs packages that are not installed  (also an ImportError)
+-- BlockCorruptError                bytes in a stream that are no event block  (also a ValueError)
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
"""The reaction that each code of the wire asks for. A code that a newer server sends is a plain `RequestError`."""


class _Answer(RequestError):  # noqa: N818  # a base that is never raised
    """An answer of a server; each class lists the error codes that it is raised for."""

    def __init_subclass__(cls, *, codes: Sequence[ErrorCode] = ()) -> None:
        CLASS_OF_CODE.update(dict.fromkeys(codes, cls))
        if codes:
            cls.retriable = codes[0] in RETRIABLE
            assert all((code in RETRIABLE) is cls.retriable for code in codes), "one class is one reaction"


class SegmentNotFoundError(_Answer, codes=[ErrorCode.SEGMENT_NOT_FOUND]):
    """There is no such segment: it was never created, or is deleted. The text names it."""


class SegmentExistsError(_Answer, codes=[ErrorCode.SEGMENT_EXISTS]):
    """There is a segment of that name already."""


class SegmentSealedError(_Answer, codes=[ErrorCode.SEGMENT_SEALED]):
    """The segment takes no more appends. A writer of a stream never meets this: it writes to the successors."""


class StreamSealedError(SegmentSealedError, codes=[ErrorCode.STREAM_SEALED]):
    """The stream takes no more events, forever."""


class StreamNotSealedError(_Answer, codes=[ErrorCode.STREAM_NOT_SEALED]):
    """Only a sealed stream can be deleted: seal it first."""


class SegmentTruncatedError(_Answer, codes=[ErrorCode.SEGMENT_TRUNCATED]):
    """The bytes or events at this place were deleted.

    What is left starts at `start_offset`. If a stream was truncated inside a block, `start_index` is the first event of
    that block that is left.
    """


class CutTruncatedError(SegmentTruncatedError, codes=[ErrorCode.CUT_TRUNCATED]):
    """The events at a place were deleted: a cut or a reader is before the start of its stream.

    Attributes:
        resume_at: the cut from which a reader continues with all that is left; None where the server said it.
    """

    def __init__(self, facts: ErrorFacts | str, *, resume_at: StreamCut | None = None) -> None:
        super().__init__(facts)
        self.resume_at = resume_at


class SegmentDamagedError(_Answer, codes=[ErrorCode.SEGMENT_DAMAGED]):
    """These bytes are damaged on the server's disk: they fail their checksum. The server does not send them."""


class OffsetBeyondEndError(_Answer, codes=[ErrorCode.OFFSET_BEYOND_END]):
    """The place is after the end of the segment, which ends at `length`."""


class ConditionFailedError(_Answer, codes=[ErrorCode.CONDITION_FAILED]):
    """The segment has another `length` than the expected offset; nothing was stored."""


class AttributeConditionFailedError(_Answer, codes=[ErrorCode.ATTRIBUTE_CONDITION_FAILED]):
    """The attribute has another value than expected; nothing was changed."""


class AttributesFullError(_Answer, codes=[ErrorCode.ATTRIBUTES_FULL]):
    """The attributes of the segment, or of all segments, would get too large (see the text); nothing was changed."""


class PipelineBrokenError(_Answer, codes=[ErrorCode.PIPELINE_BROKEN]):
    """An earlier append of the same writer to the same segment failed, so this one was not stored.

    Nothing is done twice by making it again; but it was to follow the one that failed, so look at that one first.
    """


class WriterFencedError(_Answer, codes=[ErrorCode.WRITER_FENCED, ErrorCode.WRITER_UNKNOWN]):
    """This writer was replaced, and can store nothing more; the text says why.

    Its id was opened again, or it has lost the stream that it had alone, or the server does not know it.
    """


class WriterExpiredError(_Answer, codes=[ErrorCode.WRITER_EXPIRED]):
    """The writer was idle for so long that the server does not know its event numbers any more.

    Raised by an append, nothing of it is stored: open a new writer and write those events again. Raised by opening a
    writer id, find out what was stored by reading the stream, then open it with `start_over_if_expired=True`.
    """


class EventNumberError(_Answer, codes=[ErrorCode.EVENT_NUMBER_GAP, ErrorCode.EVENT_NUMBER_OVERLAP]):
    """A program that numbers its appends itself has left a gap, or has used numbers again. Nothing was stored."""


class SequencesRefusedError(_Answer, codes=[ErrorCode.SEQUENCES_REFUSED]):
    """A writer sent sequences that count as stored. Nothing more of it is stored until its sequences are reset.

    One sequence was given to two events, or the writer has a fault. Find out what is stored by reading the stream, then
    reset the sequences of the writer.
    """


class SequencesMixedError(_Answer, codes=[ErrorCode.SEQUENCES_MIXED]):
    """A writer with an id sent events with and without sequences to one stream: either all have one, or none."""


class StreamHasExclusiveWriterError(_Answer, codes=[ErrorCode.WRITER_EXCLUDED]):
    """The stream belongs to an exclusive writer, which the text names. Nothing was stored.

    Raised by an exclusive writer, another one has taken the stream over.
    """


class EventTimeError(_Answer, codes=[ErrorCode.EVENT_TIME_OUTSIDE]):
    """An event has a time outside of the bounds that its stream sets (`StreamConfig.event_times`). Nothing was stored.

    The text names the time, and how far it is from the clock of the server. The events of the same block are not stored
    either, and the writer ends.
    """


class TailChangedError(_Answer, codes=[ErrorCode.TAIL_CHANGED]):
    """The stream does not end at the cut that an exclusive writer expected; the text names both. Nothing changed.

    Read what was written since, and open the writer again.
    """


class StreamNotFoundError(_Answer, codes=[ErrorCode.STREAM_NOT_FOUND]):
    """There is no such stream: it was never created, or is deleted. The text names it."""


class StreamExistsError(_Answer, codes=[ErrorCode.STREAM_EXISTS]):
    """There is a stream of that name already."""


class EpochChangedError(_Answer, codes=[ErrorCode.EPOCH_CHANGED]):
    """The stream was scaled since this client asked for its segments. Nothing was changed.

    The client asks for them again by itself; a caller meets this only if the stream is scaled faster than that.
    """


class TransactionUnknownError(_Answer, codes=[ErrorCode.TRANSACTION_UNKNOWN]):
    """There is no such transaction, or the server has forgotten how it ended."""


class TransactionCommittedError(_Answer, codes=[ErrorCode.TRANSACTION_COMMITTED]):
    """The transaction was committed before."""


class ProducerCommittedError(TransactionCommittedError, codes=[ErrorCode.PRODUCER_COMMITTED]):
    """The producer has committed this sequence already, or a later one. Nothing was added."""


class TransactionAbortedError(_Answer, codes=[ErrorCode.TRANSACTION_ABORTED]):
    """The transaction was aborted by a client, or because its lease ran out. Nothing of it is left."""


class TransactionPreparedError(_Answer, codes=[ErrorCode.TRANSACTION_PREPARED]):
    """The transaction is prepared: it can only be committed or aborted."""


class CursorMovedError(_Answer, codes=[ErrorCode.CURSOR_MOVED]):
    """A commit was to move a cursor, and another program has moved that cursor before. Nothing was changed."""


class BranchMismatchError(_Answer, codes=[ErrorCode.BRANCHES_DIFFER]):
    """The branches of a transaction have another number of events than the commit says. Nothing was changed."""


class BranchTokenError(InvalidArgumentError):
    """The token of a branch belongs to another transaction than the one to commit; the text names both."""


class TransactionTooLargeError(_Answer, codes=[ErrorCode.TRANSACTION_TOO_LARGE]):
    """The transaction has reached its largest size. These events were not stored; the others can be committed."""


class ProducerFencedError(_Answer, codes=[ErrorCode.PRODUCER_FENCED]):
    """A newer run of the producer, or a reset, has replaced this run; the text names both. Nothing was committed.

    The same program was started again elsewhere. This run should end.
    """


class ProducerInUseError(_Answer, codes=[ErrorCode.PRODUCER_HELD]):
    """Another program holds the writer id of the producer; the text names both, and says how to change that.

    Two programs use one writer id. Give one of them another, or, if the holder is gone for good, reset the producer.
    """


class ProducerUnknownError(_Answer, codes=[ErrorCode.PRODUCER_UNKNOWN]):
    """The server does not know this producer: no transaction has begun with it, or it was forgotten or deleted."""


class ProducersFullError(_Answer, codes=[ErrorCode.PRODUCERS_FULL]):
    """The server has reached its limit of producers. Use a writer id that it knows, or delete a producer."""


class ThrottledError(_Answer, codes=[ErrorCode.THROTTLED]):
    """Something on the server is full; try again after `retry_after_s`."""


class NoSpaceError(ThrottledError, codes=[ErrorCode.NO_SPACE]):
    """The server's disk is full; nothing was stored."""


class DiskUnavailableError(ThrottledError, codes=[ErrorCode.UNAVAILABLE]):
    """The server cannot use its disk or object store now; nothing was done. It continues by itself when it can again.

    It says so, too, when it could not renew its lease in the object store: then another server may have taken over.
    """


class TransactionsFullError(ThrottledError, codes=[ErrorCode.TRANSACTIONS_FULL]):
    """Too many transactions are open, or have too many parts. Some have to end first."""


class DeadlineExceededError(ThrottledError, TimeoutError, codes=[ErrorCode.DEADLINE_EXCEEDED]):
    """The server was too busy to begin the request within its time limit; nothing was done."""


class ContentLostError(_Answer, codes=[ErrorCode.CONTENT_LOST]):
    """The server has lost a part of its log, maybe with acknowledged events; the text says how much, and since when.

    It serves what is left, and stores nothing until its operator puts the files back or accepts the loss with
    `millrace repair --accept-loss`. If the text names a damaged segment, stream, writer, transaction or
    producer, a record of the log contradicts it: only requests that change it are refused.
    """


class OutcomeUnknownError(_Answer, codes=[ErrorCode.OUTCOME_UNKNOWN]):
    """Nobody knows whether the request was carried out, and to carry it out twice is not the same as once.

    Find out which, for instance by reading what is stored, before making it again. A writer never leaves that to its
    caller while it is open: the server recognises what it sends again.
    """


class AnswerLostError(OutcomeUnknownError, ConnectionError):
    """The request was sent, and the connection ended before the answer came; `__cause__` is why it ended."""


class AnswerTimeoutError(OutcomeUnknownError, TimeoutError):
    """The request was sent, and no answer came within `request_timeout_s` of the client's options."""


class DeliveryTimeoutError(OutcomeUnknownError, TimeoutError):
    """A writer gave up after its `delivery_timeout_s`; `__cause__` is what its last attempt met.

    Attributes:
        stored_count: events of this writer, since it was opened, that are stored.
        unknown_count: events that were sent and have no answer; they may be stored.
        unstored_count: events that are not stored.
    """

    def __init__(self, message: str, *, stored_count: int = 0, unknown_count: int = 0, unstored_count: int = 0) -> None:
        super().__init__(message)
        self.stored_count = stored_count
        self.unknown_count = unknown_count
        self.unstored_count = unstored_count


class AuthenticationError(_Answer, codes=[ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN]):
    """No token, a wrong token, or one that does not allow this. Give the right one to `connect(token=)`."""


class ServerFailedError(_Answer, codes=[ErrorCode.PROTOCOL, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INTERNAL]):
    """The server failed, or does not speak the protocol of this client. The log of the server says more."""


class ServerShuttingDownError(ServerFailedError, codes=[ErrorCode.SHUTTING_DOWN]):
    """The server is shutting down, or opens its log again; nothing was done."""


class ConnectionLostError(MillraceError, ConnectionError):
    """The connection ended while something waited for an answer."""

    retriable = True


class ServerUnreachableError(ConnectionLostError):
    """No connection could be made: nothing listens there, it is no Millrace server, or it does not answer.

    Attributes:
        address: host and port, as text; several with commas between them.
        reason: what was met there; where they are several, at each of them.
    """

    def __init__(self, address: str, reason: str) -> None:
        # One argument: an `OSError` takes two for a number and a text.
        place = "" if "," in address else f" at {address}"  # of several, the reason names each
        super().__init__(f"no server could be reached{place}: {reason}")
        self.address = address
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy it by its arguments."""
        made_by, _, state = super().__reduce__()
        return made_by, (self.address, self.reason), state


class RequestTimeoutError(MillraceError, TimeoutError):
    """No answer within the time limit of the client's options."""

    retriable = True


class OutageTimeoutError(RequestTimeoutError):
    """The server was away, or refused, for longer than `outage_timeout_s` of the client's options.

    Attributes:
        resume_at: the cut from which a reader continues; None where it was not a reader of a stream.
    """

    def __init__(self, message: str, *, resume_at: StreamCut | None = None) -> None:
        super().__init__(message)
        self.resume_at = resume_at

    def __str__(self) -> str:
        text = str(self.args[0])
        return text if self.resume_at is None else f"{text}; resume at {self.resume_at}"


class ForkedClientError(MillraceError):
    """A client is used by a child of the process that made it. Make a new client in the child, after the fork."""

    def __str__(self) -> str:
        return "this client was made by the parent of this process; make a new one after fork"


class WrongLoopError(MillraceError, RuntimeError):
    """A client, or what it made, is used in another event loop than the one that it was first used in, or in none.

    Make a client for each loop; for threads there is `millrace.blocking`.
    """

    def __init__(
        self,
        message: str = "this client belongs to another event loop, or to one that has ended: make one client for each"
        " loop; for threads use millrace.blocking",
    ) -> None:
        super().__init__(message)


class GreenThreadsError(MillraceError, RuntimeError):
    """gevent or eventlet has replaced the threads of Python, and the client for threads needs a real one.

    Patch without threads, before anything else: `gevent.monkey.patch_all(thread=False)`, or
    `eventlet.monkey_patch(thread=False)`. Or use the client for asyncio in a process of its own.
    """


class ClientClosedError(MillraceError):
    """The client, or the writer, reader or transaction, was closed before the call or while it waited."""


class NotOpenError(MillraceError):
    """A writer or transaction that was not opened yet; enter it with `async with`."""


class ColumnInvalidError(InvalidArgumentError):
    """A column of an Arrow batch that cannot be a column of events: missing, of another type, or with nulls."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column!r} {reason}")
        self.column = column

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy it by its arguments."""
        made_by, _, state = super().__reduce__()
        return made_by, (self.column, self.facts.message.removeprefix(f"column {self.column!r} ")), state


class ValueMalformedError(MillraceError, ValueError):
    """The value of an event is no JSON object, or does not fit the columns that it is to become.

    Attributes:
        position: of the event: `client.fetch_event(position)` returns it.
        reason: what is wrong with the value.
        column: which it does not fit; None if it is malformed as a whole.
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
    """More is waiting than a writer may hold: it is written faster than the server stores. The event was not taken.

    Use `await writer.drain()` between writes. A blocking writer waits by itself.

    Attributes:
        pending_bytes: what was taken and is not yet stored, with what its objects cost.
        limit_bytes: `buffer_bytes_max` of the writer's options.
    """

    retriable = True

    def __init__(self, pending_bytes: int, limit_bytes: int) -> None:
        super().__init__(pending_bytes, limit_bytes)
        self.pending_bytes = pending_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"{self.pending_bytes} bytes wait to be stored, the writer may hold {self.limit_bytes}; "
            "use `await writer.drain()` between writes"
        )


assert set(CLASS_OF_CODE) == set(ErrorCode), set(ErrorCode) - set(CLASS_OF_CODE)


def error_of_reply(reply: m.ErrorReply) -> RequestError:
    """Return the error that a reply reports."""
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
