"""Bringing what requests name into memory, before they are carried out.

Idle segments, streams and writers lie in the checkpoint. Reading them blocks, so a thread does it: whoever needs some
waits here, and what many need at the same time is read in one go.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.writer import Writer

from .entity_cache import EntityCache

ATTEMPTS_COUNT: Final = 10
BATCH_COUNT_MAX: Final = 500
"""Read in one go: others wait no longer than for that for their turn."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A thing that is wanted from a shelf, by number or by name."""

    shelf: EntityCache[Any]
    key: int | str

    @property
    def is_at_hand(self) -> bool:
        """Whether the shelf can tell without reading."""
        return self.shelf.is_name_at_hand(self.key) if isinstance(self.key, str) else self.shelf.is_at_hand(self.key)

    def take(self) -> object:
        """Return the thing, None if there is none."""
        return self.shelf.find(self.key) if isinstance(self.key, str) else self.shelf.get(self.key)

    def read(self) -> tuple[int, Any]:
        """Return number and thing as they are stored; blocks."""
        number = self.shelf.archive.find(self.key) if isinstance(self.key, str) else self.key
        return number, self.shelf.archive.load(number) if number else None

    def adopt(self, found: tuple[int, Any], *, generation: int) -> bool:
        """Hand over what was read; False if it may be outdated."""
        number, item = found
        if isinstance(self.key, str) and item is None:
            return self.shelf.adopt_absence(self.key, generation=generation)
        return self.shelf.adopt(number, item, generation=generation)


class EntityLoader:
    """Reads things from the checkpoint of one container, for its event loop.

    Args:
        state: whose shelves they are put on.
    """

    def __init__(self, state: ContainerState) -> None:
        self._state = state
        # What is to be read, and who waits for it: those that asked for the same share a future.
        self._queue: dict[LoadRequest, asyncio.Future[Any]] = {}
        self._task: asyncio.Task[None] | None = None

    def has_segment(self, segment_id: int) -> bool:
        """Return whether a segment, or that there is none, is known without reading."""
        return self._state.segments.is_at_hand(segment_id)

    def has_writer(self, writer_number: int) -> bool:
        """Return whether a writer, or that there is none, is known without reading."""
        return self._state.writers.is_at_hand(writer_number)

    async def bring(
        self,
        *,
        segments: Sequence[int | str] = (),
        writers: Sequence[int | str] = (),
        streams: Sequence[int | str] = (),
    ) -> list[object]:
        """Bring things by number or name, and with a stream its segments.

        Returns:
            What there is of them. As long as it is held, the shelves have it in memory.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        state = self._state
        held = await self._take(
            [
                *(LoadRequest(state.segments, key) for key in segments),
                *(LoadRequest(state.writers, key) for key in writers),
                *(LoadRequest(state.streams, key) for key in streams),
            ]
        )
        if streams:
            held += await self._take(
                [
                    LoadRequest(state.segments, segment_id)
                    for stream in held
                    if isinstance(stream, Stream)
                    for segment_id in stream.segment_ids
                ]
            )
        return held

    async def names(
        self,
        shelf: EntityCache[Segment] | EntityCache[Writer] | EntityCache[Stream],
        *,
        prefix: str,
        after: str,
        count_max: int,
    ) -> tuple[list[str], bool]:
        """Return a page of the names on a shelf that have a prefix, above `after`, and whether more follow.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        found: list[str] = []
        while len(found) <= count_max:
            generation = shelf.generation
            stored = await asyncio.to_thread(shelf.archive.names, prefix=prefix, after=after, count_max=count_max + 1)
            if shelf.generation != generation:
                continue
            last = stored[-1] if len(stored) > count_max else None
            found += shelf.names(stored, prefix=prefix, after=after, last=last)
            if last is None:
                break
            after = last
        return found[:count_max], len(found) > count_max

    async def _take(self, wants: Sequence[LoadRequest]) -> list[object]:
        """Return what there is of some wants. What was read is held here, so it is not let go of meanwhile."""
        answers: dict[LoadRequest, Any] = {}
        for _ in range(ATTEMPTS_COUNT):
            missing = [want for want in wants if want not in answers and not want.is_at_hand]
            if not missing:
                break
            futures = [self._ask(want) for want in missing]
            await asyncio.wait(futures)
            for want, future in zip(missing, futures, strict=True):
                is_current, item = future.result()
                if is_current:
                    answers[want] = item
        # If checkpoints were stored faster than we could read, this reads what is missing here and now.
        items = (answers[want] if want in answers and answers[want] is None else want.take() for want in wants)
        return [item for item in items if item is not None]

    def _ask(self, want: LoadRequest) -> asyncio.Future[Any]:
        """Return a future of whether what was read is current, and of what it is."""
        future = self._queue.get(want)
        if future is None:
            future = self._queue[want] = asyncio.get_running_loop().create_future()
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._work(), name="bring")
        return future

    async def _work(self) -> None:
        while self._queue:
            batch = dict(islice(self._queue.items(), BATCH_COUNT_MAX))
            for want in batch:
                del self._queue[want]
            generations = [want.shelf.generation for want in batch]
            try:
                found = await asyncio.to_thread(_read, list(batch))
            except Exception as error:  # noqa: BLE001  # whoever waits gets it
                for future in batch.values():
                    future.set_exception(error)
                    future.exception()  # nobody may be waiting any more
                continue
            for (want, future), each, generation in zip(batch.items(), found, generations, strict=True):
                future.set_result((want.adopt(each, generation=generation), each[1]))
        self._task = None


def _read(wants: Sequence[LoadRequest]) -> list[tuple[int, Any]]:
    return [want.read() for want in wants]
