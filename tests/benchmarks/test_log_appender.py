"""Closed loops on a log in a store that is no distance away: one append of each client."""

from collections.abc import Sequence

import pytest

from benchmarks.log_appender import LogAppenderOptions, LogAppenderResult, run_appender
from millrace.model.checksum import Buffer
from millrace.server.errors import LogFailedError, StoreRefusedError
from tests.support.object_store import MemoryObjectStore

pytestmark = pytest.mark.asyncio


def options(*, clients: int) -> LogAppenderOptions:
    return LogAppenderOptions(
        url="s3://bucket/unused",
        latency_s=0.0,
        clients=clients,
        payload_size=100,
        puts_per_s_max=0.0,
        warm_up_s=0.0,
        duration_s=0.0,
    )


async def test_each_client_appends_and_what_was_put_is_deleted() -> None:
    store = MemoryObjectStore()
    result = await run_appender(options(clients=16), store)
    assert result.appends == 16
    assert result.payload_bytes == 1600
    assert 1 <= result.puts <= 16
    assert 0 < result.p50_s <= result.p99_s
    assert not store.objects


async def test_bare_puts_are_made_one_at_a_time() -> None:
    store = MemoryObjectStore()
    result = await run_appender(options(clients=0), store)
    assert (result.appends, result.puts) == (1, 1)
    assert not store.objects


async def test_a_log_that_fails_ends_the_measurement() -> None:
    class RefusingStore(MemoryObjectStore):
        async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
            raise StoreRefusedError("no", subject=key)

    with pytest.raises(ExceptionGroup) as caught:
        await run_appender(options(clients=2), RefusingStore())
    assert caught.group_contains(LogFailedError)


async def test_rates_are_those_of_the_measured_time() -> None:
    result = LogAppenderResult(
        p50_s=0.006, p99_s=0.01, appends=500, puts=40, payload_bytes=50_000, elapsed_s=2.0, processors=0.5
    )
    assert (result.puts_per_s, result.bytes_per_s) == (20.0, 25_000.0)
