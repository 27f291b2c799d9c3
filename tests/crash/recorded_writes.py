"""Writes of the client, as a history records their outcomes."""

import asyncio
from functools import partial

from millrace.client.write.events import WriteResult
from tests.support.history import Recorder


def record_outcome(recorder: Recorder, operation: str, future: "asyncio.Future[WriteResult]") -> None:
    """Record that a write is stored, when it is. Whatever else becomes of it leaves its outcome unknown."""
    future.add_done_callback(partial(_answer, recorder, operation))


def _answer(recorder: Recorder, operation: str, future: "asyncio.Future[WriteResult]") -> None:
    if not future.cancelled() and future.exception() is None:
        recorder.answer(operation, "stored")
