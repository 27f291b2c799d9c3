"""Waits for space in a full object store: nothing is lost by waiting, and only somebody else can free space.

There is no deadline, because a store can stay full for days. Each wait logs one line when it begins and one when it
ends, however often the request is retried in between.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from millrace.model.checksum import Buffer
from millrace.server.errors import LogClosedError, StoreFullError
from millrace.server.host.clock import Clock

from .reserve import Reserve
from .store import ObjectStore

logger = logging.getLogger(__name__)

PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 5.0
"""Between two attempts. Each sends its bytes again."""

T = TypeVar("T")


async def when_there_is_room(step: Callable[[], Awaitable[T]], *, name: str, clock: Clock) -> T:
    """Run a step of a start, retrying while the object store is full; return its result.

    Args:
        step: may be repeated after a StoreFullError.
        name: of the step, for the log.
        clock: for the pauses.
    """
    pause_s = PAUSE_S_MIN
    is_first = True
    while True:
        try:
            return await step()
        except StoreFullError as error:
            if is_first:
                logger.warning("object store full, startup waits for space step=%s error=%s", name, error)
            is_first = False
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


class PatientPuts:
    """Creates objects that have to be stored under their names, and waits while the store is full.

    The oldest waiting object is retried, and the others once it is stored, so that a full store gets few requests.
    Belongs to one event loop.

    Args:
        reserve: of the store; new objects are rejected until it is complete. None if the store has none.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock, reserve: Reserve | None = None) -> None:
        self._store = store
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting_count = 0
        self._ended = asyncio.Event()
        self._reserve = reserve
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why an object waits, or would leave no space for cleanup; for people, empty if there is space."""
        return self._reason or (self._reserve.reason if self._reserve is not None else "")

    def end(self) -> None:
        """Retry each waiting object once more, and then abandon it."""
        self._ended.set()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """Store an object under a free key; while the store is full, retry the same request.

        Raises:
            LogClosedError: the store is full, and `end` was called.
            StorageError: as `ObjectStore.create`.
        """
        try:
            await self._store.create(key, pieces)
        except StoreFullError as error:
            full = error
        else:
            return
        if not self._waiting_count:
            logger.error("object store full, the log waits for space error=%s", full)
        self._waiting_count += 1
        self._reason = f"the object store is full: {full.message}"
        try:
            async with self._turn:
                await self._create_waiting(key, pieces)
        finally:
            self._waiting_count -= 1
            if not self._waiting_count:
                self._reason = ""
        if not self._waiting_count:
            logger.info("object store has space again, the log continues")

    async def _create_waiting(self, key: str, pieces: Sequence[Buffer]) -> None:
        pause_s = PAUSE_S_MIN
        while True:
            is_last = self._ended.is_set()
            try:
                await self._store.create(key, pieces)
            except StoreFullError as error:
                if is_last:
                    raise LogClosedError("closed while the object store is full", subject=key) from error
            else:
                return
            with suppress(TimeoutError):
                async with self._clock.timeout(pause_s):
                    await self._ended.wait()
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
