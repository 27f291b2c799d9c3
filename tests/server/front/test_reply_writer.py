import logging

import pytest

from millrace.server.errors import InvalidArgumentError
from millrace.server.front.reply_writer import NO_REPLY, ReplyWriter
from millrace.server.host.metrics import Metrics
from tests.support.clock import ManualClock
from tests.support.reply_writers import Connection, make_reply_writer


@pytest.fixture
def reply_writer() -> ReplyWriter:
    return make_reply_writer(ManualClock(), Metrics(), Connection())


@pytest.mark.parametrize("request_id", [NO_REPLY, 7])
def test_an_unexpected_failure_is_in_the_log_also_where_no_reply_is_wanted(
    reply_writer: ReplyWriter, caplog: pytest.LogCaptureFixture, request_id: int
) -> None:
    """Else nobody would know of it."""
    reply_writer.send_error(request_id, LookupError("a bug"))
    reply_writer.send_error(request_id, InvalidArgumentError("of the client"))

    assert reply_writer.counters.requests_failed_total == 2
    assert [(each.levelno, each.exc_info is not None) for each in caplog.records] == [(logging.ERROR, True)]
