"""The dirty set: keys of entities that changed since the last stored checkpoint."""

from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


class DirtySet(dict[Key, int]):
    """Keys of entities that changed since the last stored checkpoint, each with the number of checkpoints before it.

    `take` begins a checkpoint, `stored` ends it. One that fails is not ended: the next one takes its keys again.
    """

    __slots__ = ("_taken_count",)

    def __init__(self) -> None:
        super().__init__()
        self._taken_count = 0

    def add(self, key: Key) -> None:
        """Note that something has changed."""
        self[key] = self._taken_count

    def take(self) -> list[Key]:
        """Return all keys, for a checkpoint of what they are about as it is now."""
        self._taken_count += 1
        return list(self)

    def stored(self) -> list[Key]:
        """Remove the keys that were taken last and have not changed since, and return them."""
        stored = [key for key, taken_count in self.items() if taken_count < self._taken_count]
        for key in stored:
            del self[key]
        return stored
