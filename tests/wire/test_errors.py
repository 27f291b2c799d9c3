from millrace.wire.errors import (
    RETRIABLE,
    ChecksumError,
    CodecError,
    ErrorCode,
    ForeignProtocolError,
    FrameTooLargeError,
    ProtocolError,
    UnsupportedVersionError,
    WireError,
)
from tests.support.tables import table

NUMBERS = """
PROTOCOL 1, UNSUPPORTED_VERSION 2, UNAUTHENTICATED 3, FORBIDDEN 4, INVALID_ARGUMENT 5, INVALID_NAME 6, INTERNAL 7,
SHUTTING_DOWN 8, THROTTLED 9, NO_SPACE 10, OUTCOME_UNKNOWN 11, DEADLINE_EXCEEDED 12, UNAVAILABLE 13,
CONTENT_LOST 14, SEGMENT_NOT_FOUND 20,
SEGMENT_EXISTS 21, SEGMENT_SEALED 22, SEGMENT_TRUNCATED 23, SEGMENT_DAMAGED 24, OFFSET_BEYOND_END 25,
CONDITION_FAILED 26, ATTRIBUTE_CONDITION_FAILED 27, PIPELINE_BROKEN 28, APPEND_TOO_LARGE 29, ATTRIBUTES_FULL 30,
WRITER_FENCED 40, WRITER_UNKNOWN 41, EVENT_NUMBER_GAP 42, EVENT_NUMBER_OVERLAP 43, WRITER_EXPIRED 44,
SEQUENCES_REFUSED 45, SEQUENCES_MIXED 46, WRITER_EXCLUDED 47, EVENT_TIME_OUTSIDE 48,
STREAM_NOT_FOUND 60, STREAM_EXISTS 61, STREAM_SEALED 62,
STREAM_NOT_SEALED 63, CUT_INVALID 64, CUT_TRUNCATED 65, TAIL_CHANGED 66, EPOCH_CHANGED 67,
TRANSACTION_UNKNOWN 70,
TRANSACTION_COMMITTED 71, TRANSACTION_ABORTED 72, BRANCHES_DIFFER 73, TRANSACTIONS_FULL 74, TRANSACTION_PREPARED 75,
CURSOR_MOVED 76, TRANSACTION_TOO_LARGE 77, PRODUCER_FENCED 80,
PRODUCER_HELD 81, PRODUCER_COMMITTED 82, PRODUCER_UNKNOWN 83, PRODUCERS_FULL 84
"""


def test_numbers_of_errors_are_frozen() -> None:
    """Add lines for new codes; never change one."""
    frozen = dict(pair.split() for pair in NUMBERS.replace("\n", " ").split(","))

    assert {code.name: str(code.value) for code in ErrorCode} == frozen


@table(
    ("error", "code", "text"),
    [
        (CodecError("Hello", "token", "is long"), ErrorCode.PROTOCOL, "Hello.token: is long"),
        (CodecError("Hello", "", "is long"), ErrorCode.PROTOCOL, "Hello: is long"),
        (ProtocolError("no"), ErrorCode.PROTOCOL, "no"),
        (ChecksumError(expected=1, actual=2), ErrorCode.PROTOCOL, "checksum is 0x00000002, its header says 0x00000001"),
        (FrameTooLargeError(size_bytes=9, limit_bytes=8), ErrorCode.PROTOCOL, "9 bytes is above the limit of 8 bytes"),
        (ForeignProtocolError("TLS"), ErrorCode.PROTOCOL, "the peer speaks TLS"),
        (
            UnsupportedVersionError(version_min=2, version_max=3),
            ErrorCode.UNSUPPORTED_VERSION,
            "versions 2 to 3 of the protocol, this side 1 to 1",
        ),
    ],
)
def test_every_error_says_what_happened_and_under_which_code(error: WireError, code: ErrorCode, text: str) -> None:
    assert text in str(error)
    assert error.code is code
    assert code not in RETRIABLE


def test_what_may_be_sent_again_is_known() -> None:
    assert {code.name for code in RETRIABLE} == {
        "SHUTTING_DOWN", "THROTTLED", "NO_SPACE", "DEADLINE_EXCEEDED", "UNAVAILABLE", "TRANSACTIONS_FULL",
    }  # fmt: skip
