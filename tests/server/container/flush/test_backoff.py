"""Behaviour 44: a store that fails for long is asked less and less often, in virtual time."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from millrace.model.checksum import Buffer
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX
from millrace.server.container.flush.backoff import RETRY_S, RETRY_S_MAX, FlushBackoff
from millrace.server.errors import StorageError
from millrace.wire.limits import KIB
from tests.support.clock import ManualClock
from tests.support.scenario import Scenario
from tests.support.servers import QUIET
from tests.support.storage import SCOPE, FaultyStorage
from tests.support.waiting import PATIENCE_S

WAITS_S = [1.0, 2.0, 4.0, 8.0, 16.0, 16.0]


def test_waits_double_up_to_a_bound_and_begin_again_after_a_success() -> None:
    clock = ManualClock()
    backoff = FlushBackoff(clock)
    assert backoff.is_over
    waits_s = []
    for _ in WAITS_S:
        waits_s.append(backoff.failed())
        clock.move(waits_s[-1] - 0.5)
        assert not backoff.is_over
        clock.move(0.5)
        assert backoff.is_over
    assert waits_s == WAITS_S
    assert waits_s[-1] == RETRY_S_MAX
    backoff.succeeded()
    assert backoff.failed() == RETRY_S


class RefusingStorage(FaultyStorage):
    """Refuses what has a prefix, and notes when that was tried.

    Args:
        prefix: within the scope of a container.
    """

    def __init__(self, clock: ManualClock, prefix: str) -> None:
        super().__init__()
        self._clock = clock
        self._prefix = prefix
        self.is_refusing = True
        self.tried_s: list[float] = []

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        if self.is_refusing and SCOPE.sub("", name).startswith(self._prefix):
            self.tried_s.append(self._clock.monotonic_s())
            raise StorageError("the bucket is full", subject=name)
        await super().publish(name, pieces)


@pytest.mark.parametrize(
    ("prefix", "line"), [(CHECKPOINT_PREFIX, "checkpoint copy failed"), ("segments/", "step=flush")]
)
@pytest.mark.asyncio
async def test_a_step_that_the_store_refuses_is_tried_less_and_less_often(
    scenario: Scenario, caplog: pytest.LogCaptureFixture, prefix: str, line: str
) -> None:
    """A copy exports and verifies the whole checkpoint, a flush sends all its bytes: not each second."""
    clock = scenario.clock
    storage = scenario.storage = RefusingStorage(clock, prefix)
    container = replace(QUIET, flush_size_bytes=KIB, checkpoint_interval_s=1.0, copy_interval_s=1.0)
    async with scenario.running(container=container, in_background=True) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")

        async def wait_for(count: int) -> list[float]:
            """Let time pass until a step has failed so often; return what was to be waited each time."""
            async with asyncio.timeout(PATIENCE_S):
                while len(found := re.findall(f"{line}.* retry_after_s=([0-9.]+) ", caplog.text)) < count:
                    await peer.store(segment_id, bytes(2 * KIB))
                    clock.move(0.5)
            return [float(wait_s) for wait_s in found]

        assert (await wait_for(len(WAITS_S)))[: len(WAITS_S)] == WAITS_S
        passed_s = [after - before for before, after in pairwise(storage.tried_s)]
        assert all(passed >= wait for passed, wait in zip(passed_s, WAITS_S, strict=False)), passed_s

        storage.is_refusing = False
        async with asyncio.timeout(PATIENCE_S):
            while not storage.names(prefix):
                clock.move(0.5)
                await peer.info(segment_id)
        caplog.clear()
        storage.is_refusing = True
        assert (await wait_for(1))[0] == RETRY_S
        storage.is_refusing = False
