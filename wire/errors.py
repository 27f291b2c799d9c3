"""Errors that cross the wire, and errors of the wire itself.

`ErrorCode` numbers are written on the wire: a number is never changed and never reused.

    WireError                     the root
    +-- CodecError                bytes that do not fit the declared layout
    +-- ProtocolError             the peer violates the protocol; the connection ends
        +-- ChecksumError         a frame whose checksum does not match its bytes
        +-- FrameTooLargeError    a frame above the negotiated limit
        +-- ForeignProtocolError  HTTP or TLS spoken to the data port
        +-- UnsupportedVersionError  no version that both sides speak

Each has the `code` under which it is reported to the peer. None is retriable.
"""

from enum import IntEnum
from typing import ClassVar

from .limits import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN


class ErrorCode(IntEnum):
    """The reason of an error reply. Frozen forever; new reasons take new numbers."""

    PROTOCOL = 1
    UNSUPPORTED_VERSION = 2
    UNAUTHENTICATED = 3
    FORBIDDEN = 4
    INVALID_ARGUMENT = 5
    INVALID_NAME = 6
    INTERNAL = 7
    SHUTTING_DOWN = 8
    THROTTLED = 9
    NO_SPACE = 10
    OUTCOME_UNKNOWN = 11
    DEADLINE_EXCEEDED = 12
    UNAVAILABLE = 13
    CONTENT_LOST = 14
    SEGMENT_NOT_FOUND = 20
    SEGMENT_EXISTS = 21
    SEGMENT_SEALED = 22
    SEGMENT_TRUNCATED = 23
    SEGMENT_DAMAGED = 24
    OFFSET_BEYOND_END = 25
    CONDITION_FAILED = 26
    ATTRIBUTE_CONDITION_FAILED = 27
    PIPELINE_BROKEN = 28
    APPEND_TOO_LARGE = 29
    ATTRIBUTES_FULL = 30
    WRITER_FENCED = 40
    WRITER_UNKNOWN = 41
    EVENT_NUMBER_GAP = 42
    EVENT_NUMBER_OVERLAP = 43
    WRITER_EXPIRED = 44
    SEQUENCES_REFUSED = 45
    SEQUENCES_MIXED = 46
    WRITER_EXCLUDED = 47
    EVENT_TIME_OUTSIDE = 48
    STREAM_NOT_FOUND = 60
    STREAM_EXISTS = 61
    STREAM_SEALED = 62
    STREAM_NOT_SEALED = 63
    CUT_INVALID = 64
    CUT_TRUNCATED = 65
    TAIL_CHANGED = 66
    EPOCH_CHANGED = 67
    TRANSACTION_UNKNOWN = 70
    TRANSACTION_COMMITTED = 71
    TRANSACTION_ABORTED = 72
    BRANCHES_DIFFER = 73
    TRANSACTIONS_FULL = 74
    TRANSACTION_PREPARED = 75
    CURSOR_MOVED = 76
    TRANSACTION_TOO_LARGE = 77
    PRODUCER_FENCED = 80
    PRODUCER_HELD = 81
    PRODUCER_COMMITTED = 82
    PRODUCER_UNKNOWN = 83
    PRODUCERS_FULL = 84


RETRIABLE: frozenset[ErrorCode] = frozenset(
    {
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.THROTTLED,
        ErrorCode.NO_SPACE,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.UNAVAILABLE,
        ErrorCode.TRANSACTIONS_FULL,
    }
)
"""Codes after which the client may resend the same request later."""


class WireError(Exception):
    """Root of the errors of the wire.

    Attributes:
        code: the number of the error reply that reports it.
    """

    code: ClassVar[ErrorCode] = ErrorCode.PROTOCOL


class CodecError(WireError):
    """Bytes that do not fit the declared layout.

    Attributes:
        structure: name of the declaration, for instance `Hello`.
        field: the field that did not fit, or an empty string.
        reason: what was wrong, and what would be right.
    """

    def __init__(self, structure: str, field: str, reason: str) -> None:
        super().__init__(f"{structure}.{field}: {reason}" if field else f"{structure}: {reason}")
        self.structure = structure
        self.field = field
        self.reason = reason


class ProtocolError(WireError):
    """A peer that breaks the protocol. The connection cannot continue."""


class ChecksumError(ProtocolError):
    """A frame whose checksum does not match its bytes."""

    def __init__(self, *, expected: int, actual: int) -> None:
        super().__init__(f"frame checksum is {actual:#010x}, its header says {expected:#010x}")


class FrameTooLargeError(ProtocolError):
    """A frame above the limit of the connection."""

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"frame of {size_bytes} bytes is above the limit of {limit_bytes} bytes")


class ForeignProtocolError(ProtocolError):
    """HTTP or TLS spoken to the data port."""

    def __init__(self, protocol: str) -> None:
        super().__init__(f"the peer speaks {protocol}; this is the Millrace data port")
        self.protocol = protocol


class UnsupportedVersionError(ProtocolError):
    """Both sides have no common version of the protocol."""

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, *, version_min: int, version_max: int) -> None:
        super().__init__(
            f"the peer speaks versions {version_min} to {version_max} of the protocol, "
            f"this side {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}"
        )
