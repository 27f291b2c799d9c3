import asyncio

import pytest

from millrace.server.host.metrics import Metrics
from millrace.server.host.supervisor import Supervisor

pytestmark = [pytest.mark.asyncio, pytest.mark.both_loops]


async def test_a_task_that_returns_is_forgotten() -> None:
    failures: list[str] = []
    supervisor = Supervisor(metrics=Metrics(), on_failure=lambda name, _: failures.append(name))
    done = asyncio.Event()

    async def work() -> None:
        done.set()

    supervisor.start(work(), name="flusher")
    assert [task.get_name() for task in supervisor._tasks] == ["flusher"]
    await done.wait()
    await asyncio.sleep(0)

    assert not supervisor._tasks
    assert failures == []


async def test_a_task_that_fails_is_reported_with_its_name_and_counted() -> None:
    failures: list[tuple[str, BaseException]] = []
    reported = asyncio.Event()
    metrics = Metrics()

    def on_failure(name: str, error: BaseException) -> None:
        failures.append((name, error))
        reported.set()

    async def work() -> None:
        raise OSError("no more")

    supervisor = Supervisor(metrics=metrics, on_failure=on_failure)
    supervisor.start(work(), name="flusher")
    await reported.wait()

    assert [(name, str(error)) for name, error in failures] == [("flusher", "no more")]
    assert metrics.task_failures_total.counts() == {"flusher": 1}


async def test_stop_cancels_all_and_waits_for_their_end() -> None:
    failures: list[str] = []
    ended: list[str] = []
    supervisor = Supervisor(metrics=Metrics(), on_failure=lambda name, _: failures.append(name))

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    supervisor.start(work("a"), name="a")
    supervisor.start(work("b"), name="b")
    await asyncio.sleep(0)

    await supervisor.stop()
    await supervisor.stop()

    assert sorted(ended) == ["a", "b"]
    assert not supervisor._tasks
    assert failures == []
