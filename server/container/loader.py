"""Loads entities that are not resident, in a thread; concurrent requests for one entity share a load.

Idle entities of all kinds are in the checkpoint. Reading them blocks, so
the event loop never does it: a request is carried out once `pin` has loaded what it names.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar

from millrace.server.container.state.container_state import ContainerState
from millrace.wire import messages as m

from .entity_cache import EntityCache, Pins

Item = TypeVar("Item")

ATTEMPTS_COUNT: Final = 10
BATCH_COUNT_MAX: Final = 500
"""Read in one go: other requests wait no longer than for that."""


@dataclass(slots=True, eq=False)
class _Load:
    """An entity that is being loaded into a cache, by number or by name.

    Attributes:
        is_current: resolves when it ended, to whether what was read was taken over.
        pins: get the entity pinned before anything else can run.
    """

    cache: EntityCache[Any]
    key: int | str
    is_current: asyncio.Future[bool]
    pins: list[Pins] = field(default_factory=list)

    def read(self) -> tuple[int, Any]:
        """Return number and entity as they are stored, 0 and None if there is none; blocks."""
        number = self.cache.archive.find(self.key) if isinstance(self.key, str) else self.key
        item = self.cache.archive.load(number) if number else None
        return (number if item is not None else 0), item


class EntityLoader:
    """Reads entities from the checkpoint of one container, for its event loop.

    Args:
        state: has the caches that they are loaded into.
    """

    def __init__(self, state: ContainerState) -> None:
        self._state = state
        self._queue: dict[tuple[EntityCache[Any], int | str], _Load] = {}
        self._task: asyncio.Task[None] | None = None

    async def pin(self, required: m.Required) -> Pins:
        """Load entities by number or name, with a stream its segments, and pin those that exist.

        The segments of a stream are those that it has in the step in which this returns. Safe to cancel: nothing stays
        pinned.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        with Pins() as pins:
            has_waited = False
            for cache, keys in self._state.required(required):
                has_waited |= await self._pin(cache, keys, pins)
            # Meanwhile a scale or a commit may have given a stream other segments.
            while has_waited and (late := self._segments_not_in(pins, required)):
                await self._pin(self._state.segments, late, pins)
            return pins.transfer()

    def _segments_not_in(self, pins: Pins, required: m.Required) -> list[int]:
        """Return those segments of some pinned streams that are not among what was pinned."""
        state = self._state
        pinned = {number for cache, number in pins.held or () if cache is state.segments}
        late = []
        for cache, keys, segments_of in state.named(required):
            for entity in map(cache.lookup, keys if segments_of is not None else ()):
                if segments_of is not None and entity is not None:
                    late += [each for each in segments_of(entity) if each not in pinned]
        return late

    def is_resident(self, required: m.Required) -> bool:
        """Return whether all of this is in memory, or is known not to be; of streams without their segments."""
        return all(all(map(cache.is_resident, keys)) for cache, keys, _ in self._state.named(required))

    async def _pin(self, cache: EntityCache[Any], keys: Sequence[int | str], pins: Pins) -> bool:
        """Pin entities of one kind; return whether some had to be waited for."""
        missing = []
        for key in keys:
            if cache.is_resident(key):
                cache.pin([key], into=pins)
            else:
                missing.append(key)
        if not missing:
            return False
        for _ in range(ATTEMPTS_COUNT):
            if not missing:
                return True
            loads = [self._load(cache, key, pins) for key in missing]
            await asyncio.wait(loads)
            missing = [key for key, load in zip(missing, loads, strict=True) if not load.result()]
        # Checkpoints were stored faster than we could read: read what is missing here and now.
        cache.pin(missing, into=pins)
        return True

    def _load(self, cache: EntityCache[Any], key: int | str, pins: Pins) -> asyncio.Future[bool]:
        """Return a future of whether what was read is current, and has been pinned."""
        load = self._queue.get((cache, key))
        if load is None:
            load = self._queue[cache, key] = _Load(cache, key, asyncio.get_running_loop().create_future())
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._work(), name="load")
        load.pins.append(pins)
        return load.is_current

    async def _work(self) -> None:
        while self._queue:
            batch = list(islice(self._queue.values(), BATCH_COUNT_MAX))
            for load in batch:
                del self._queue[load.cache, load.key]
            generations = [load.cache.generation for load in batch]
            try:
                found = await asyncio.to_thread(_read, batch)
            except Exception as error:  # noqa: BLE001  # all who wait get it
                for load in batch:
                    load.is_current.set_exception(error)
                    load.is_current.exception()  # its waiters may have been cancelled
                continue
            for load, (number, item), generation in zip(batch, found, generations, strict=True):
                load.is_current.set_result(
                    load.cache.install(load.key, number, item, generation=generation, pins=load.pins)
                )
        self._task = None


def _read(loads: Sequence[_Load]) -> list[tuple[int, Any]]:
    return [load.read() for load in loads]


async def page_of_names(
    cache: EntityCache[Item],
    stored: Callable[..., list[tuple[str, int]]],
    *,
    prefix: str,
    after: str,
    count_max: int,
    is_wanted: Callable[[Item], bool] = lambda _: True,
) -> tuple[list[str], bool]:
    """Return a page of the names in use that have a prefix, above `after`, and whether more follow.

    Args:
        stored: returns those that are stored, as `Archive.names` does; in a thread.
        is_wanted: whether what is not stored as it is belongs to them.

    Raises:
        StorageError: the checkpoint cannot be read.
    """
    found: list[str] = []
    while len(found) <= count_max:
        generation = cache.generation
        names = await asyncio.to_thread(stored, prefix=prefix, after=after, count_max=count_max + 1)
        if cache.generation != generation:
            continue
        last = names[-1][0] if len(names) > count_max else None
        found += cache.names(names, prefix=prefix, after=after, last=last, is_wanted=is_wanted)
        if last is None:
            break
        after = last
    return found[:count_max], len(found) > count_max
