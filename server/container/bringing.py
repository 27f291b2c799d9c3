"""Bringing what requests name into memory, before they are carried out.

Idle segments, streams and writers lie in the checkpoint. Reading them blocks, so a thread does it: whoever needs some
waits here, and what many need at the same time is read in one go.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.server.errors import CheckpointDamagedError

from .segment import Segment
from .shelf import Shelf
from .state import ContainerState, Writer
from .stream import Stream

ATTEMPTS_COUNT: Final = 10


@dataclass(frozen=True, slots=True)
class Want:
    """A thing that is wanted from a shelf, by number or by name."""

    shelf: Shelf[Any]
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

    def adopt(self, found: tuple[int, Any], *, generation: int) -> None:
        """Hand over what was read, unless it may be outdated."""
        number, item = found
        if isinstance(self.key, str) and item is None:
            self.shelf.adopt_absence(self.key, generation=generation)
        else:
            self.shelf.adopt(number, item, generation=generation)


class Bringer:
    """Reads things from the checkpoint of one container, for its event loop.

    Args:
        state: whose shelves they are put on.
        on_damage: called when the checkpoint turns out to be damaged; those who wait get the error too.
    """

    def __init__(self, state: ContainerState, *, on_damage: Callable[[CheckpointDamagedError], None]) -> None:
        self._state = state
        self._on_damage = on_damage
        self._queue: dict[Want, None] = {}
        self._next: asyncio.Future[list[Any]] | None = None
        self._task: asyncio.Task[None] | None = None

    def has_segment(self, segment_id: int) -> bool:
        """Return whether `segment` would not wait."""
        return self._state.segments.is_at_hand(segment_id)

    def has_writer(self, writer_number: int) -> bool:
        """Return whether `writer` would not wait."""
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
                *(Want(state.segments, key) for key in segments),
                *(Want(state.writers, key) for key in writers),
                *(Want(state.streams, key) for key in streams),
            ]
        )
        if streams:
            held += await self._take(
                [
                    Want(state.segments, segment_id)
                    for stream in held
                    if isinstance(stream, Stream)
                    for segment_id in stream.segment_ids
                ]
            )
        return held

    async def names(
        self, shelf: Shelf[Segment] | Shelf[Writer] | Shelf[Stream], *, prefix: str, after: str, count_max: int
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

    async def _take(self, wants: Sequence[Want]) -> list[object]:
        held: list[Any] = []
        for _ in range(ATTEMPTS_COUNT):
            missing = [want for want in wants if not want.is_at_hand]
            if not missing:
                break
            held += await self._read(missing)
        # If checkpoints were stored faster than we could read, this reads what is missing here and now.
        return [item for want in wants if (item := want.take()) is not None]

    def _read(self, wants: Sequence[Want]) -> asyncio.Future[list[Any]]:
        """Return a future of what is read next, with these among it."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._queue.update(dict.fromkeys(wants))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="bring")
        return asyncio.shield(self._next)

    async def _work(self) -> None:
        while self._next is not None:
            wants, future = list(self._queue), self._next
            self._queue, self._next = {}, None
            generations = [want.shelf.generation for want in wants]
            try:
                found = await asyncio.to_thread(lambda batch: [want.read() for want in batch], wants)
            except Exception as error:  # noqa: BLE001  # whoever waits gets it
                future.set_exception(error)
                future.exception()  # nobody may be waiting any more
                if isinstance(error, CheckpointDamagedError):
                    self._on_damage(error)
                continue
            for want, each, generation in zip(wants, found, generations, strict=True):
                want.adopt(each, generation=generation)
            future.set_result([item for _, item in found])
        self._task = None
