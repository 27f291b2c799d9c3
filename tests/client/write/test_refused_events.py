"""Errors of `write` for threads that came after the call, without a server."""

import pytest

from millrace.client.write.events import WriteResult
from millrace.client.write.refused_events import ERRORS_COUNT_MAX, RefusedEvents, WriteFuture


def refused_future(refused: RefusedEvents, text: str) -> WriteFuture:
    future = WriteFuture()
    future.refuse(ValueError(text), refused)
    return future


def test_an_error_that_a_caller_has_seen_is_handled() -> None:
    refused = RefusedEvents()
    first, second = refused_future(refused, "first"), refused_future(refused, "second")
    with pytest.raises(ValueError, match="first"):
        first.result(0)
    with pytest.raises(ValueError, match="first"):  # again: it counts once
        first.result(0)
    assert refused.count == 1
    assert str(refused.take()) == "second"
    assert refused.take() is None
    assert isinstance(second.exception(0), ValueError)
    assert refused.count == 0


def test_a_timeout_is_not_an_error_of_the_event() -> None:
    refused, future = RefusedEvents(), WriteFuture()
    with pytest.raises(TimeoutError):
        future.result(0)
    future.refuse(ValueError("x"), refused)
    assert refused.count == 1
    assert future.exception(0) is not None
    assert refused.count == 0


def test_an_event_that_was_taken_counts_nowhere() -> None:
    future = WriteFuture()
    future.set_result(WriteResult(1, 0, 1, 1))
    assert future.result(0) == WriteResult(1, 0, 1, 1)
    assert future.exception(0) is None


def test_any_number_of_errors_costs_bounded_memory_and_is_counted_exactly() -> None:
    refused = RefusedEvents()
    futures = [refused_future(refused, str(number)) for number in range(3 * ERRORS_COUNT_MAX)]
    dropped = len(futures[-10:])
    del futures[-10:]
    for future in futures:
        assert future.exception(0) is not None
    assert refused.count == dropped
    assert str(refused.take()) == str(3 * ERRORS_COUNT_MAX - 1)
    assert refused.count == 0
    before = refused_future(refused, "newer")
    assert all(future.exception(0) for future in futures)
    assert refused.count == 1
    assert before.exception(0) is not None
