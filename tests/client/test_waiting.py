import logging
from collections.abc import Callable

import pytest

from millrace.client.errors import ConnectionLostError, NoSpaceError, ServerUnreachableError, error_of_reply
from millrace.client.waiting import LOG_INTERVAL_S, WaitInfo, WaitReason, Waits, reason_of
from millrace.wire.errors import RETRIABLE, ErrorCode
from tests.support.clock import ManualClock
from tests.support.model_server import error_reply

DOWN = ServerUnreachableError("db:1", "refused")
FULL = NoSpaceError("the disk is full")


class Told:
    """Waits, what was said of them, and what was logged."""

    def __init__(self, records: Callable[[], list[logging.LogRecord]]) -> None:
        self.clock = ManualClock()
        self.changes: list[WaitInfo | None] = []
        self.waits = Waits("db:1", monotonic_s=self.clock.monotonic_s, on_change=self.changes.append)
        self._records = records

    @property
    def logged(self) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in self._records()]

    @property
    def reasons(self) -> list[WaitReason | None]:
        return [None if change is None else change.reason for change in self.changes]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.INFO, logger="millrace")
    return Told(lambda: caplog.records)


def test_one_warning_names_the_reason_and_the_end_is_told(told: Told) -> None:
    """Behaviour 89: however many wait, and however often they try."""
    for _ in range(100):
        for subject in range(10):
            told.waits.begin(subject, DOWN)
        told.clock.move(60)
    for subject in range(10):
        assert told.waits.current is not None
        told.waits.end(subject)
    assert told.waits.current is None
    assert told.reasons == [WaitReason.UNREACHABLE, None]
    assert told.logged == [
        ("WARNING", f"waiting for server server=db:1 reason=unreachable detail={DOWN}"),
        ("INFO", "server answers again server=db:1 waited_s=6000.0"),
    ]


def test_another_reason_is_another_warning(told: Told) -> None:
    told.waits.begin(1, DOWN)
    told.waits.begin(1, FULL)
    told.waits.begin(1, DOWN)
    told.waits.end(1)
    assert told.reasons == [WaitReason.UNREACHABLE, WaitReason.NO_SPACE, None]


def test_the_wait_that_began_first_is_the_one_that_is_shown(told: Told) -> None:
    begin_s = told.clock.monotonic_s()
    told.waits.begin(1, DOWN)
    told.clock.move(5)
    told.waits.begin(2, FULL)
    told.clock.move(5)
    told.waits.begin(1, FULL)
    assert told.waits.current == WaitInfo(reason=WaitReason.NO_SPACE, since_s=begin_s, detail="the disk is full")
    told.waits.end(1)
    assert told.waits.current == WaitInfo(reason=WaitReason.NO_SPACE, since_s=begin_s + 5, detail="the disk is full")
    told.waits.end(2)
    told.waits.end(2)
    assert told.waits.current is None


def test_a_reason_that_comes_and_goes_is_logged_now_and_then(told: Told) -> None:
    for _ in range(1000):
        told.waits.throttled(1, "memory is full")
        told.waits.end(1)
        told.clock.move(LOG_INTERVAL_S / 10)
    assert len(told.logged) == 2 * 100


def test_an_outage_soon_after_a_short_one_is_logged_as_it_lasts(told: Told) -> None:
    told.waits.begin(1, DOWN)
    told.waits.end(1)
    told.waits.begin(1, DOWN)
    assert told.reasons == [WaitReason.UNREACHABLE, None]
    told.clock.move(LOG_INTERVAL_S)
    told.waits.begin(1, DOWN)
    assert told.reasons == [WaitReason.UNREACHABLE, None, WaitReason.UNREACHABLE]


def test_every_error_that_is_waited_out_has_a_reason(told: Told) -> None:
    reasons = {code: reason_of(error_of_reply(error_reply(code))) for code in RETRIABLE}
    assert reasons[ErrorCode.NO_SPACE] is WaitReason.NO_SPACE
    assert reasons[ErrorCode.THROTTLED] is WaitReason.THROTTLED
    assert reasons[ErrorCode.SHUTTING_DOWN] is WaitReason.REFUSED
    assert None not in reasons.values()
    assert reason_of(ConnectionLostError("lost")) is WaitReason.UNREACHABLE
    # It only follows from another one.
    told.waits.begin(1, error_of_reply(error_reply(ErrorCode.PIPELINE_BROKEN)))
    assert told.waits.current is None
