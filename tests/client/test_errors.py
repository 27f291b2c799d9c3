import asyncio
import copy
import inspect
import pickle
from typing import Any

import pytest

import millrace
from millrace.client import errors
from millrace.client.errors import (
    CLASS_OF_CODE,
    AnswerLostError,
    AnswerTimeoutError,
    BufferFullError,
    ColumnInvalidError,
    ConnectionLostError,
    CutTruncatedError,
    DeadlineExceededError,
    DeliveryTimeoutError,
    NoSpaceError,
    OutageTimeoutError,
    OutcomeUnknownError,
    RequestTimeoutError,
    SegmentTruncatedError,
    ServerUnreachableError,
    ThrottledError,
    ValueMalformedError,
    error_of_reply,
)
from millrace.client.options import ClientOptions
from millrace.model.cut import StreamCut
from millrace.model.errors import ErrorFacts, MillraceError, MissingExtraError, RequestError
from millrace.model.event import EventPosition
from millrace.server import errors as server_errors
from millrace.server.errors import ServerError
from millrace.server.front.replies import error_reply
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.model_server import STREAM, ModelServer, turns
from tests.support.tables import table

CUT = StreamCut.of("a/b", {1: (2, 3)})
FACTS = ErrorFacts(message="m", code=3, subject="a/b", start_offset=1, length=2, retry_after_s=0.5)

PUBLIC = [
    value
    for name in millrace.__all__
    if isinstance(value := getattr(millrace, name), type) and issubclass(value, MillraceError)
]
ARGUMENTS: dict[type[MillraceError], tuple[tuple[Any, ...], dict[str, Any]]] = {
    BufferFullError: ((), {"pending_bytes": 2, "limit_bytes": 1}),
    ColumnInvalidError: (("key", "is missing"), {}),
    CutTruncatedError: ((FACTS,), {"resume_at": CUT}),
    DeliveryTimeoutError: (("given up",), {"stored_count": 1, "unknown_count": 2, "unstored_count": 3}),
    MissingExtraError: (("pyarrow", "millrace-streams[arrow]"), {}),
    OutageTimeoutError: (("away",), {"resume_at": CUT}),
    ServerUnreachableError: (("h:1", "refused"), {}),
    ValueMalformedError: ((EventPosition(1, 2, 3), "is no JSON", "price"), {}),
}
"""How those are made that take more than a text or facts."""


def made(cls: type[MillraceError]) -> MillraceError:
    positional, named = ARGUMENTS.get(cls, ((FACTS if issubclass(cls, RequestError) else "m",), {}))
    error = cls(*positional, **named)
    error.__cause__ = ConnectionRefusedError(111, "refused")
    error.add_note("a note")
    return error


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


def answer_of(code: ErrorCode) -> m.ErrorReply:
    """Return the answer of the server to a request that failed for this reason."""
    cls = type("Failed", (ServerError,), {}, code=code)
    return error_reply(cls("why"))


@table("code", ErrorCode)
def test_every_code_has_a_class_that_keeps_the_facts(code: ErrorCode) -> None:
    error = error_of_reply(reply(code))

    assert type(error) is CLASS_OF_CODE[code]
    assert (error.code, error.retriable, error.subject) == (code, True, "a/b")
    assert (error.start_offset, error.length, error.retry_after_s) == (None, 42, 0.25)
    assert str(error) == "a/b: why length=42 retry_after_s=0.25"


@pytest.mark.asyncio
@table("code", ErrorCode)
async def test_a_request_is_made_again_after_the_answers_whose_class_says_so(code: ErrorCode) -> None:
    """Also where nobody knows whether it was carried out: to repeat this one is the same as once."""
    cls = CLASS_OF_CODE[code]
    server = ModelServer(options=ClientOptions(request_timeout_s=1))
    server.answers[m.GetStream] = answer_of(code)
    channel = server.channel()

    asking = asyncio.create_task(channel.request(m.GetStream(STREAM)))
    for _ in range(12):
        await turns()
        await server.clock.advance(0.1)

    with pytest.raises(cls) as caught:
        await asking
    assert caught.value.retriable is cls.retriable
    was_repeated = sum(isinstance(request, m.GetStream) for request in server.requests) > 1
    assert was_repeated is (cls.retriable or cls is OutcomeUnknownError)
    await channel.close()


@pytest.mark.asyncio
@table("cls", PUBLIC)
async def test_the_client_makes_another_attempt_after_the_errors_whose_class_says_so(cls: type[MillraceError]) -> None:
    retry = ModelServer().channel().retry()

    if cls.retriable:
        assert retry.next_wait_s(made(cls)) > 0
    else:
        with pytest.raises(cls):
            retry.next_wait_s(made(cls))


def test_the_errors_that_servers_raise_have_a_class_that_says_the_same() -> None:
    raised = [cls for _, cls in inspect.getmembers(server_errors, inspect.isclass) if issubclass(cls, ServerError)]

    assert len(raised) > 10
    for cls in raised:
        assert CLASS_OF_CODE[cls.code].retriable is cls.__new__(cls).retriable, cls


def test_a_code_of_a_newer_server_is_a_plain_request_error() -> None:
    error = error_of_reply(reply(9999))

    assert type(error) is RequestError
    assert (error.code, error.retriable) == (9999, True)


def test_the_tree_in_the_docstring_names_every_class() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}

    assert errors.__doc__ is not None
    assert {name for name in classes if name not in errors.__doc__} == set()


def test_every_class_is_public_but_the_bases_that_are_never_raised() -> None:
    def below(cls: type[MillraceError]) -> set[type[MillraceError]]:
        return {cls}.union(*map(below, cls.__subclasses__()))

    own = {cls for cls in below(MillraceError) if cls.__module__.startswith("millrace.")}
    assert {cls.__name__ for cls in own - set(PUBLIC)} == {"_Answer"}


def test_callers_can_catch_a_reaction_by_its_base() -> None:
    assert issubclass(NoSpaceError, ThrottledError)
    assert issubclass(CutTruncatedError, SegmentTruncatedError)


def test_time_outs_and_lost_connections_are_those_of_python_too() -> None:
    assert {cls for cls in PUBLIC if issubclass(cls, TimeoutError)} == {
        AnswerTimeoutError, DeadlineExceededError, DeliveryTimeoutError, OutageTimeoutError, RequestTimeoutError,
    }  # fmt: skip
    assert {cls for cls in PUBLIC if issubclass(cls, ConnectionError)} == {
        AnswerLostError, ConnectionLostError, ServerUnreachableError,
    }  # fmt: skip
    assert {cls for cls in PUBLIC if "Timeout" in cls.__name__} <= {cls for cls in PUBLIC if issubclass(cls, OSError)}


@table("cls", PUBLIC)
@table("twin", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_errors_cross_processes_with_all_that_they_know(cls: type[MillraceError], twin: Any) -> None:
    error = made(cls)
    other = twin(error)

    assert type(other) is cls
    assert (str(other), repr(other), other.args) == (str(error), repr(error), error.args)
    assert vars(other) == vars(error)
    assert repr(other.__cause__) == "ConnectionRefusedError(111, 'refused')"


def test_a_cause_that_may_be_anything_is_left_out() -> None:
    error = ConnectionLostError("gone")
    error.__cause__ = type("Local", (Exception,), {})()

    assert pickle.loads(pickle.dumps(error)).__cause__ is None


@table("cls", PUBLIC)
def test_every_error_says_something_and_has_no_number_of_the_system(cls: type[MillraceError]) -> None:
    """An `OSError` takes two arguments for a number and a text; ours are none."""
    error = made(cls)

    assert str(error)
    assert getattr(error, "errno", None) is None
