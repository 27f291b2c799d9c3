"""The tasks of one connection: requests that wait for the log, loads and fetches that wait for a disk."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from .flow_control import FlowControl, Reason

logger = logging.getLogger(__name__)


class ConnectionTasks:
    """Runs coroutines for as long as a connection lives; above a number of them it is not read.

    Args:
        failed: called when a task ends by an error that it should have handled itself.
        ended: called after each task.
    """

    def __init__(
        self, flow: FlowControl, *, count_max: int, failed: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self._flow = flow
        self._count_max = count_max
        self._failed = failed
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        self._flow.set(Reason.TASKS, len(self._tasks) >= self._count_max)
        return task

    def cancel(self) -> None:
        """Cancel all: the connection was lost."""
        for task in self._tasks:
            task.cancel()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task of a connection failed task=%s", task.get_name(), exc_info=error)
            self._failed()
        self._ended()
        self._flow.set(Reason.TASKS, len(self._tasks) >= self._count_max)
