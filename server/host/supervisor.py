"""Named background tasks whose unexpected end stops their owner.

If a task ended unnoticed, the server would answer requests and do half of its work. So every task is started with a
callback for its end.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from .metrics import Metrics

logger = logging.getLogger(__name__)


class Supervisor:
    """Runs the background tasks of one owner, in one event loop."""

    def __init__(self, *, metrics: Metrics, on_failure: Callable[[str, BaseException], None]) -> None:
        """Take `on_failure`, which is called in the loop with the name and error of each failed task."""
        self._metrics = metrics
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run a coroutine in the background until it returns or `stop` cancels it; an exception is a failure."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end; a failure during shutdown is reported like any other.

        If this is cancelled, the tasks are cancelled but may not have ended.
        """
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        name = task.get_name()
        logger.critical("background task failed task=%s", name, exc_info=error)
        self._metrics.task_failures_total.increase(name)
        self._on_failure(name, error)


def mark_seen(task: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a task that may have no waiter: asyncio logs exceptions that were never retrieved."""
    if not task.cancelled():
        task.exception()
