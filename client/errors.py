"""What the client raises: one class for each reaction of the caller.

MillraceError                        the root; has `code` (number on the wire, or None) and `retriable`
+-- RequestError                     the server's answer to a request; has `facts`
|   +-- InvalidArgumentError         a request that can never succeed  (also a ValueError)
|   |   +-- InvalidNameError         a name outside the rule of names
|   |   +-- EventTooLargeError       an event or append above the limits; refused before it is sent
|   |   +-- CutInvalidError          a cut that does not fit its stream
|   +-- SegmentNotFoundError
|   +-- SegmentExistsError
|   +-- SegmentSealedError           no more appends, for ever
|   |   +-- StreamSealedError
|   +-- StreamNotSealedError
|   +-- SegmentTruncatedError        the place is gone; has `start_offset` and `length`
|   |   +-- CutTruncatedError        a cut behind the truncation; has `resume_at`
|   +-- SegmentDamagedError          these bytes fail their checksum on the server
|   +-- OffsetBeyondEndError         the place is not there yet; has `length`
|   +-- ConditionFailedError         another length than expected; has `length`
|   +-- AttributeConditionFailedError  another value than expected
|   +-- PipelineBrokenError          an earlier append of the pipeline failed; this one is not stored
|   +-- WriterFencedError            the writer id was opened again
|   +-- WriterExpiredError           the writer was idle for so long that its event numbers are gone
|   +-- EventNumberError             event numbers that leave a gap or overlap
|   +-- StreamNotFoundError
|   +-- StreamExistsError            a stream of that name with another configuration
|   +-- ThrottledError               has `retry_after_s`
|   |   +-- NoSpaceError             the disk is full
|   +-- OutcomeUnknownError          it may or may not have been stored
|   +-- AuthenticationError          no token, a wrong token, or one that does not allow this
|   +-- ServerFailedError            the server's fault, or it is shutting down, or the protocol was broken
+-- ConnectionLostError              (also a ConnectionError)
|   +-- ServerUnreachableError       no connection could be made
+-- RequestTimeoutError              (also a TimeoutError)
+-- ForkedClientError                a client used by a child of the process that made it
+-- ClientClosedError
+-- BufferFullError                  write faster than the server stores; `await writer.drain()`
+-- BlockCorruptError                bytes in a stream that are no event block  (also a ValueError)
"""

from typing import Final

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
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode


class SegmentNotFoundError(RequestError):
    """There is no such segment."""


class SegmentExistsError(RequestError):
    """There is a segment of that name already."""


class SegmentSealedError(RequestError):
    """The segment takes no more appends, for ever."""


class StreamSealedError(SegmentSealedError):
    """The stream takes no more events, for ever."""


class StreamNotSealedError(RequestError):
    """Only a sealed stream can be deleted."""


class SegmentTruncatedError(RequestError):
    """The place is gone: `start_offset` is the first that is left."""


class CutTruncatedError(SegmentTruncatedError):
    """A cut, or the place of a reader, behind the truncation of its stream.

    Attributes:
        resume_at: the cut where a reader goes on with all that is left behind its place; None where the server said it.
    """

    def __init__(self, facts: ErrorFacts | str, *, resume_at: StreamCut | None = None) -> None:
        super().__init__(facts)
        self.resume_at = resume_at


class SegmentDamagedError(RequestError):
    """The bytes fail their checksum on the server's disk; they are not served."""


class OffsetBeyondEndError(RequestError):
    """The place is not there yet: the segment ends at `length`."""


class ConditionFailedError(RequestError):
    """The segment has another `length` than the expected offset; nothing was stored."""


class AttributeConditionFailedError(RequestError):
    """The attribute has another value than expected; nothing was changed."""


class PipelineBrokenError(RequestError):
    """An earlier append of the same pipeline failed; this one was not stored."""


class WriterFencedError(RequestError):
    """The writer id was opened again elsewhere; this writer stores nothing any more."""


class WriterExpiredError(RequestError):
    """The writer was idle for so long that the server does not know its event numbers any more.

    Raised by an append, nothing of it is stored: open a new writer and write those events again. Raised by opening a
    writer id, find out what was stored by reading the stream, then open it with `start_over_if_expired=True`.
    """


class EventNumberError(RequestError):
    """Event numbers that leave a gap or overlap what is stored."""


class StreamNotFoundError(RequestError):
    """There is no such stream."""


class StreamExistsError(RequestError):
    """There is a stream of that name already."""


class ThrottledError(RequestError):
    """Something on the server is full; try again after `retry_after_s`."""


class NoSpaceError(ThrottledError):
    """The server's disk is full; nothing was stored."""


class OutcomeUnknownError(RequestError):
    """The request may or may not have been carried out."""


class AuthenticationError(RequestError):
    """No token, a wrong token, or one that does not allow this."""


class ServerFailedError(RequestError):
    """The server failed, is shutting down, or refuses to speak the protocol of this client."""


class ConnectionLostError(MillraceError, ConnectionError):
    """The connection ended while something waited for an answer."""

    @property
    def retriable(self) -> bool:
        """Yes."""
        return True


class ServerUnreachableError(ConnectionLostError):
    """No connection could be made."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"no server could be reached at {self.address}: {self.reason}"


class RequestTimeoutError(MillraceError, TimeoutError):
    """No answer within the time limit of the client's options."""

    @property
    def retriable(self) -> bool:
        """Yes."""
        return True


class ForkedClientError(MillraceError):
    """A client is used by a child of the process that made it."""

    def __str__(self) -> str:
        return "this client was made by the parent of this process; make a new one after fork"


class ClientClosedError(MillraceError):
    """The client, writer or reader was closed."""


class BufferFullError(MillraceError):
    """More is waiting than a writer may hold."""

    def __init__(self, *, pending_bytes: int, limit_bytes: int) -> None:
        super().__init__(pending_bytes, limit_bytes)
        self.pending_bytes = pending_bytes
        self.limit_bytes = limit_bytes

    def __reduce__(self) -> tuple[object, ...]:
        return _buffer_full, (self.pending_bytes, self.limit_bytes)

    def __str__(self) -> str:
        return (
            f"{self.pending_bytes} bytes wait to be stored, the writer may hold {self.limit_bytes}; "
            "use `await writer.drain()` between writes"
        )

    @property
    def retriable(self) -> bool:
        """Yes."""
        return True


def _buffer_full(pending_bytes: int, limit_bytes: int) -> BufferFullError:
    return BufferFullError(pending_bytes=pending_bytes, limit_bytes=limit_bytes)


CLASS_OF_CODE: Final[dict[ErrorCode, type[RequestError]]] = {
    ErrorCode.PROTOCOL: ServerFailedError,
    ErrorCode.UNSUPPORTED_VERSION: ServerFailedError,
    ErrorCode.UNAUTHENTICATED: AuthenticationError,
    ErrorCode.FORBIDDEN: AuthenticationError,
    ErrorCode.INVALID_ARGUMENT: InvalidArgumentError,
    ErrorCode.INVALID_NAME: InvalidNameError,
    ErrorCode.INTERNAL: ServerFailedError,
    ErrorCode.SHUTTING_DOWN: ServerFailedError,
    ErrorCode.THROTTLED: ThrottledError,
    ErrorCode.NO_SPACE: NoSpaceError,
    ErrorCode.OUTCOME_UNKNOWN: OutcomeUnknownError,
    ErrorCode.DEADLINE_EXCEEDED: ThrottledError,
    ErrorCode.SEGMENT_NOT_FOUND: SegmentNotFoundError,
    ErrorCode.SEGMENT_EXISTS: SegmentExistsError,
    ErrorCode.SEGMENT_SEALED: SegmentSealedError,
    ErrorCode.SEGMENT_TRUNCATED: SegmentTruncatedError,
    ErrorCode.SEGMENT_DAMAGED: SegmentDamagedError,
    ErrorCode.OFFSET_BEYOND_END: OffsetBeyondEndError,
    ErrorCode.CONDITION_FAILED: ConditionFailedError,
    ErrorCode.ATTRIBUTE_CONDITION_FAILED: AttributeConditionFailedError,
    ErrorCode.PIPELINE_BROKEN: PipelineBrokenError,
    ErrorCode.APPEND_TOO_LARGE: EventTooLargeError,
    ErrorCode.WRITER_FENCED: WriterFencedError,
    ErrorCode.WRITER_UNKNOWN: WriterFencedError,
    ErrorCode.WRITER_EXPIRED: WriterExpiredError,
    ErrorCode.EVENT_NUMBER_GAP: EventNumberError,
    ErrorCode.EVENT_NUMBER_OVERLAP: EventNumberError,
    ErrorCode.STREAM_NOT_FOUND: StreamNotFoundError,
    ErrorCode.STREAM_EXISTS: StreamExistsError,
    ErrorCode.STREAM_SEALED: StreamSealedError,
    ErrorCode.STREAM_NOT_SEALED: StreamNotSealedError,
    ErrorCode.CUT_INVALID: CutInvalidError,
    ErrorCode.CUT_TRUNCATED: CutTruncatedError,
}
"""Each code of the wire and the reaction it asks for. A code that a newer server sends is a plain `RequestError`."""

_CLASS_OF_NUMBER: Final = {int(code): cls for code, cls in CLASS_OF_CODE.items()}
assert set(CLASS_OF_CODE) == set(ErrorCode), set(ErrorCode) - set(CLASS_OF_CODE)


def error_of_reply(reply: m.ErrorReply) -> RequestError:
    """Return the error that a reply stands for."""
    facts = ErrorFacts(
        message=reply.message,
        code=reply.code,
        retriable=bool(reply.retriable),
        subject=reply.subject,
        start_offset=None if reply.start_offset < 0 else reply.start_offset,
        length=None if reply.length < 0 else reply.length,
        retry_after_s=reply.retry_after_ms / 1000,
        successors=tuple(reply.successors),
    )
    cls = _CLASS_OF_NUMBER.get(reply.code, RequestError)
    return cls(facts)
