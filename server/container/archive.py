"""The archive of entities that are not in memory: the last checkpoint, as a cache sees it."""

from typing import Protocol, TypeVar

Item_co = TypeVar("Item_co", covariant=True)


class Archive(Protocol[Item_co]):
    """Has the entities of one kind as they were stored last. All methods block and may be called from any thread."""

    def load(self, number: int) -> Item_co | None:
        """Return an entity as it was stored last, None if it was not."""
        ...

    def find(self, name: str) -> int:
        """Return the number of the newest entity of that name, 0 if there is none."""
        ...

    def numbers(self, *, after: int, count_max: int) -> list[int]:
        """Return stored numbers above `after`, ascending."""
        ...

    def names(self, *, prefix: str, after: str, count_max: int) -> list[tuple[str, int]]:
        """Return stored names with a prefix, above `after`, in the order of their UTF-8 bytes, each with its number."""
        ...
