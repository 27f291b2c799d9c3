"""Loads entities that are not resident, in a thread; concurrent requests for one entity share a load.

Idle segments, streams and writers are in the checkpoint. Reading them blocks, so the event loop never does it: a
request is carried out once `pin` has loaded what it names.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.writer import Writer
from millrace.wire import messages as m

from .entity_cache import EntityCache, Pins

ATTEMPTS_COUNT: Final = 10
BATCH_COUNT_MAX: Final = 500
"""Read in one go: other requests wait no longer than for that."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """An entity that is to be loaded into a cache, by number or by name."""

    cache: EntityCache[Any]
    key: int | str

    def read(self) -> tuple[int, Any]:
        """Return number and entity as they are stored, 0 and None if there is none; blocks."""
        number = self.cache.archive.find(self.key) if isinstance(self.key, str) else self.key
        item = self.cache.archive.load(number) if number else None
        return (number if item is not None else 0), item


@dataclass(frozen=True, slots=True)
class _Load:
    """A load that is queued or under way.

    Attributes:
        is_current: resolves when it ended, to whether what was read was taken over.
        pins: get the entity pinned before anything else can run.
    """

    is_current: asyncio.Future[bool]
    pins: list[Pins] = field(default_factory=list)


class EntityLoader:
    """Reads entities from the checkpoint of one container, for its event loop.

    Args:
        state: has the caches that they are loaded into.
    """

    def __init__(self, state: ContainerState) -> None:
        self._state = state
        self._queue: dict[LoadRequest, _Load] = {}
        self._task: asyncio.Task[None] | None = None

    async def pin(
        self,
        *,
        segments: Sequence[int | str] = (),
        writers: Sequence[int | str] = (),
        streams: Sequence[int | str] = (),
    ) -> Pins:
        """Load entities by number or name, with a stream its segments, and pin those that exist.

        Safe to cancel: nothing stays pinned.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        required = m.Required(segments=tuple(segments), writers=tuple(writers), streams=tuple(streams))
        with Pins() as pins:
            for cache, keys in self._state.required(required):
                await self._pin([LoadRequest(cache, key) for key in keys], pins)
            return pins.transfer()

    async def names(
        self,
        cache: EntityCache[Segment] | EntityCache[Writer] | EntityCache[Stream],
        *,
        prefix: str,
        after: str,
        count_max: int,
    ) -> tuple[list[str], bool]:
        """Return a page of the names in use that have a prefix, above `after`, and whether more follow.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        found: list[str] = []
        while len(found) <= count_max:
            generation = cache.generation
            stored = await asyncio.to_thread(cache.archive.names, prefix=prefix, after=after, count_max=count_max + 1)
            if cache.generation != generation:
                continue
            last = stored[-1] if len(stored) > count_max else None
            found += cache.names(stored, prefix=prefix, after=after, last=last)
            if last is None:
                break
            after = last
        return found[:count_max], len(found) > count_max

    async def _pin(self, requests: Sequence[LoadRequest], pins: Pins) -> None:
        missing = []
        for request in requests:
            if request.cache.is_resident(request.key):
                request.cache.pin([request.key], into=pins)
            else:
                missing.append(request)
        for _ in range(ATTEMPTS_COUNT):
            if not missing:
                return
            loads = [self._load(request, pins) for request in missing]
            await asyncio.wait(loads)
            missing = [request for request, load in zip(missing, loads, strict=True) if not load.result()]
        # Checkpoints were stored faster than we could read: read what is missing here and now.
        for request in missing:
            request.cache.pin([request.key], into=pins)

    def _load(self, request: LoadRequest, pins: Pins) -> asyncio.Future[bool]:
        """Return a future of whether what was read is current, and has been pinned."""
        load = self._queue.get(request)
        if load is None:
            load = self._queue[request] = _Load(asyncio.get_running_loop().create_future())
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._work(), name="load")
        load.pins.append(pins)
        return load.is_current

    async def _work(self) -> None:
        while self._queue:
            batch = dict(islice(self._queue.items(), BATCH_COUNT_MAX))
            for request in batch:
                del self._queue[request]
            generations = [request.cache.generation for request in batch]
            try:
                found = await asyncio.to_thread(_read, list(batch))
            except Exception as error:  # noqa: BLE001  # all who wait get it
                for load in batch.values():
                    load.is_current.set_exception(error)
                    load.is_current.exception()  # its waiters may have been cancelled
                continue
            for (request, load), (number, item), generation in zip(batch.items(), found, generations, strict=True):
                load.is_current.set_result(
                    request.cache.install(request.key, number, item, generation=generation, pins=load.pins)
                )
        self._task = None


def _read(requests: Sequence[LoadRequest]) -> list[tuple[int, Any]]:
    return [request.read() for request in requests]
