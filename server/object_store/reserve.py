"""A reserve of space in the object store, for the operations that free space.

Theory. In a full store nothing can be deleted: a truncation is a record of the log, which needs space, and so does the
copy of the checkpoint after which chunks are deleted. So the server keeps filler objects:

    reserve/00, reserve/01, ...     random bytes, 8 MiB each but for the last

A put that finds the store full deletes them, and its caller retries it. From then on until the reserve is complete
again, the server rejects appends and flushes nothing. So only appends already under way, records, copies, leases and
claims use that space, and whenever the server accepts appends, the reserve is available for the next time.

The contents are random because some stores compress. Nobody reads them: any object of that name and size will do.
Several servers of one history share one reserve. A start that finds the store full uses it up as well; the owner
notices that when it needs the reserve.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.server.errors import StorageError, StoreFullError
from millrace.server.host.clock import Clock
from millrace.wire.limits import MIB

from .store import ObjectStore

logger = logging.getLogger(__name__)

RESERVE_PREFIX: Final = "reserve/"
PART_SIZE_BYTES: Final = 8 * MIB
"""Larger objects would take too much memory, and would time out over a slow connection."""
PAUSE_S_MIN: Final = 5.0
PAUSE_S_MAX: Final = 30.0
"""Pause between two attempts to restore the reserve, each of which may use up the space that a record needs."""


class Reserve:
    """The reserve of one history; `run` is the body of a task of its owner. Belongs to one event loop.

    Args:
        store: in which a put does not release the reserve.
        size_bytes: of all its objects.

    Attributes:
        reason: why appends are rejected, for people; empty unless the reserve was released and is not restored yet.
    """

    def __init__(self, store: ObjectStore, *, size_bytes: int, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        count = -(-size_bytes // PART_SIZE_BYTES)
        self._sizes = {
            f"{RESERVE_PREFIX}{number:02d}": min(PART_SIZE_BYTES, size_bytes - number * PART_SIZE_BYTES)
            for number in range(count)
        }
        # Objects that are not known to be stored; before the first listing all of them may be.
        self._missing = set(self._sizes)
        self._may_be_stored = True
        # A part that is stored during a release would be forgotten.
        self._changing = asyncio.Lock()
        self._released = asyncio.Event()
        self.reason = ""

    async def release(self, error: StoreFullError) -> None:
        """Delete the reserve because the store is full; once it is deleted, do nothing."""
        if not self.reason:
            logger.error("object store full, rejecting appends until the reserve is restored error=%s", error)
        self.reason = f"the object store is full: {error.message}"
        self._released.set()
        async with self._changing:
            if not self._may_be_stored:
                return
            try:
                await self._store.delete(list(self._sizes))
            except StorageError as failure:
                logger.warning("reserve not released error=%s", failure)
            else:
                self._missing = set(self._sizes)
                self._may_be_stored = False

    async def run(self) -> None:
        """Create the reserve, and restore it after each release as soon as there is space."""
        await self._retried(self._find)
        while True:
            self._released.clear()
            await self._retried(self._complete)
            if not self._released.is_set():
                if self.reason:
                    logger.info("object store has space again, accepting appends")
                self.reason = ""
                await self._released.wait()
            await self._clock.sleep(PAUSE_S_MIN)  # the requests for which it was released go first

    async def _retried(self, step: Callable[[], Awaitable[None]]) -> None:
        pause_s = PAUSE_S_MIN
        while True:
            try:
                await step()
            except StoreFullError as error:
                if not self.reason:
                    logger.error("object store full, no space for the reserve size_bytes=%d", sum(self._sizes.values()))
                self.reason = f"the object store is full: {error.message}"
            except StorageError as error:
                logger.warning("reserve incomplete retry_after_s=%.0f error=%s", pause_s, error)
            else:
                return
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _find(self) -> None:
        """Find out which objects of the reserve are stored; delete those of another size."""
        found = {info.key: info.size async for page in self._store.list(RESERVE_PREFIX) for info in page}
        async with self._changing:
            wrong = [key for key, size in found.items() if self._sizes.get(key) != size]
            if wrong:
                await self._store.delete(wrong)
            self._missing -= {key for key in found if key not in wrong}
            self._may_be_stored = len(self._missing) < len(self._sizes)

    async def _complete(self) -> None:
        """Store the missing objects of the reserve."""
        if not self._missing:
            return
        content = await asyncio.to_thread(os.urandom, max(self._sizes.values()))
        for key, size in self._sizes.items():
            async with self._changing:
                if key in self._missing:
                    self._may_be_stored = True
                    await self._store.create(key, [memoryview(content)[:size]])
                    self._missing.discard(key)
