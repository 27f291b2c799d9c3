import logging

import pytest

from millrace.server.errors import InvalidArgumentError
from millrace.server.front.outlet import NO_REPLY, Outlet
from millrace.server.host.metrics import Metrics
from tests.support.clock import ManualClock
from tests.support.outlets import Connection, make_outlet


@pytest.fixture
def outlet() -> Outlet:
    return make_outlet(ManualClock(), Metrics(), Connection())


@pytest.mark.parametrize("request_id", [NO_REPLY, 7])
def test_an_unexpected_failure_is_in_the_log_also_where_no_reply_is_wanted(
    outlet: Outlet, caplog: pytest.LogCaptureFixture, request_id: int
) -> None:
    """Else nobody would know of it."""
    outlet.send_error(request_id, LookupError("a bug"))
    outlet.send_error(request_id, InvalidArgumentError("of the client"))

    assert outlet.counters.requests_failed_total == 2
    assert [(each.levelno, each.exc_info is not None) for each in caplog.records] == [(logging.ERROR, True)]
