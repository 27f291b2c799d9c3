"""Recovery of a small log from a store that is no distance away."""

import pytest

from benchmarks.log_reader import OBJECT_SIZE_BYTES, LogReaderOptions, run_reader
from millrace.wire.limits import MIB
from tests.support.object_store import MemoryObjectStore


@pytest.mark.asyncio
async def test_all_that_was_written_is_read_once() -> None:
    store = MemoryObjectStore()
    result = await run_reader(LogReaderOptions(url="s3://bucket/unused", latency_s=0.0, log_bytes=2 * MIB), store)
    assert result.size_bytes >= 2 * MIB
    assert result.objects >= 2 * MIB // OBJECT_SIZE_BYTES
    # Each object once; a fence is put without a look.
    assert result.gets == result.objects
    assert not store.objects
