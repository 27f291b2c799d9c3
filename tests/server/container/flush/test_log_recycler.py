"""Giving back what no start needs any more."""

import asyncio

import pytest

from millrace.server.container.flush.log_recycler import LogRecycler
from tests.support.memory_log import LogMedium, MemoryLog
from tests.support.wal import append_run


@pytest.mark.asyncio
async def test_batches_up_to_the_sequence_are_given_back_once() -> None:
    medium = LogMedium()
    log = MemoryLog(medium)
    list(log.recover())
    await log.start(on_durable=lambda runs, sequence, wall_time_us: None, on_failure=lambda error: None)
    for _ in range(3):
        log.submit(append_run(7, 0, b"x"))
        await asyncio.sleep(0)
    recycler = LogRecycler(log)

    recycler.recycle(2)

    assert ([batch.sequence for batch in medium.batches], recycler.recycled_sequence) == ([3], 2)
    with pytest.raises(AssertionError):
        recycler.recycle(2)
