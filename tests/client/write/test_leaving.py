import asyncio
import logging

import pytest

from millrace.client.errors import ConnectionLostError
from millrace.client.exit_flush import WriterBacklog
from millrace.client.write.leaving import leave

pytestmark = pytest.mark.asyncio


class Closing:
    """Remembers what was done to it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.log: list[str] = []
        self.pending_count = 0

    async def leave(self, kind: type[BaseException] | None) -> list[str]:
        await leave(kind, close=self._close, abandon=self._abandon, stream="a/b")
        return self.log

    def _abandon(self) -> WriterBacklog:
        self.log.append("abandoned")
        return WriterBacklog(events=self.pending_count)

    async def _close(self) -> None:
        self.log.append("closed")
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("kind", [None, ValueError, KeyError])
async def test_a_body_that_ends_or_fails_closes(kind: type[BaseException] | None) -> None:
    assert await Closing().leave(kind) == ["closed"]


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit])
async def test_a_body_that_is_cancelled_abandons(kind: type[BaseException]) -> None:
    assert await Closing().leave(kind) == ["abandoned"]


async def test_why_closing_failed_is_raised_unless_the_body_failed_before(caplog: pytest.LogCaptureFixture) -> None:
    closing = Closing(ConnectionLostError("lost"))
    with pytest.raises(ConnectionLostError):
        await closing.leave(None)
    with caplog.at_level(logging.WARNING):
        await closing.leave(ValueError)
    assert "stream=a/b error=lost" in caplog.text


async def test_what_is_abandoned_is_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    closing = Closing()
    await closing.leave(KeyboardInterrupt)
    assert caplog.text == ""
    closing.pending_count = 12
    await closing.leave(KeyboardInterrupt)
    assert "stream=a/b unacknowledged_events=12 unacknowledged_bytes=0 cause=KeyboardInterrupt" in caplog.text
