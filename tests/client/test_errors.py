import pickle

import pytest

from millrace.client import errors
from millrace.client.errors import (
    CLASS_OF_CODE,
    BufferFullError,
    ConnectionLostError,
    CutTruncatedError,
    NoSpaceError,
    SegmentTruncatedError,
    ServerUnreachableError,
    ThrottledError,
    error_of_reply,
)
from millrace.model.errors import ErrorFacts, MillraceError, RequestError
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode


def reply(code: int) -> m.ErrorReply:
    return m.ErrorReply(
        code=code,
        retriable=1,
        retry_after_ms=250,
        start_offset=-1,
        length=42,
        subject="a/b",
        message="why",
    )


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_class_that_keeps_the_facts(code: ErrorCode) -> None:
    error = error_of_reply(reply(code))

    assert type(error) is CLASS_OF_CODE[code]
    assert (error.code, error.retriable, error.subject) == (code, True, "a/b")
    assert (error.start_offset, error.length, error.retry_after_s) == (None, 42, 0.25)
    assert str(error) == "a/b: why length=42 retry_after_s=0.25"


def test_a_code_of_a_newer_server_is_a_plain_request_error() -> None:
    error = error_of_reply(reply(9999))

    assert type(error) is RequestError
    assert error.code == 9999


def test_the_tree_in_the_docstring_names_every_class() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}

    assert errors.__doc__ is not None
    assert {name for name in classes if name not in errors.__doc__} == set()


def test_callers_can_catch_a_reaction_by_its_base() -> None:
    assert issubclass(NoSpaceError, ThrottledError)
    assert issubclass(CutTruncatedError, SegmentTruncatedError)
    assert issubclass(ServerUnreachableError, ConnectionError)


@pytest.mark.parametrize(
    "error",
    [
        RequestError(ErrorFacts(message="m", code=3, length=1)),
        ServerUnreachableError("h:1", "refused"),
        BufferFullError(pending_bytes=2, limit_bytes=1),
        ConnectionLostError("gone"),
    ],
)
def test_errors_cross_processes(error: MillraceError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (str(copy), copy.code, copy.retriable) == (str(error), error.code, error.retriable)
