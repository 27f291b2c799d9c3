import logging

import pytest

from millrace.server.errors import InvalidArgumentError
from millrace.server.front.counters import FrontCounters
from millrace.server.front.latency import Latency
from millrace.server.front.outlet import NO_REPLY, Outlet
from millrace.server.front.reader_memory import ReaderMemory
from millrace.server.front.replies import error_reply
from millrace.server.front.request_memory import RequestMemory
from millrace.server.host.metrics import Metrics
from millrace.wire.limits import MIB
from millrace.wire.server_session import ServerSession
from tests.support.clock import ManualClock


class Nobody:
    """A connection that is asked for nothing."""

    def give_back(self) -> None:
        raise AssertionError

    def request_room_found(self) -> None:
        raise AssertionError

    def unsent_bytes(self) -> int:
        raise AssertionError

    def abort(self) -> None:
        raise AssertionError


@pytest.fixture
def outlet() -> Outlet:
    clock, counters, nobody = ManualClock(), FrontCounters(), Nobody()
    requests = RequestMemory(bytes_max=64 * MIB, counters=counters).account(nobody)
    session = ServerSession(
        now_s=0.0,
        handshake_timeout_s=5.0,
        keepalive_s=20.0,
        frame_timeout_s=30.0,
        run_size_bytes_max=MIB,
        refusal=error_reply,
        allowance=requests,
    )
    readers = ReaderMemory(bytes_max=16 * MIB, patience_s=5.0, clock=clock, counters=counters)
    latency = Latency(clock, Metrics().request_seconds)
    account = readers.account(nobody)
    return Outlet(
        session,
        clock=clock,
        counters=counters,
        account=account,
        requests=requests,
        latency=latency,
        may_be_superseded=lambda: False,
        abort=nobody.abort,
    )


@pytest.mark.parametrize("request_id", [NO_REPLY, 7])
def test_an_unexpected_failure_is_in_the_log_also_where_no_reply_is_wanted(
    outlet: Outlet, caplog: pytest.LogCaptureFixture, request_id: int
) -> None:
    """Else nobody would know of it."""
    outlet.send_error(request_id, LookupError("a bug"))
    outlet.send_error(request_id, InvalidArgumentError("of the client"))

    assert outlet.counters.requests_failed_total == 2
    assert [(each.levelno, each.exc_info is not None) for each in caplog.records] == [(logging.ERROR, True)]
