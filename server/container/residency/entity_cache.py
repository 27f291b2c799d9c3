"""Things with a number and a name, of which most lie on disk: those in use, and those that changed, are in memory.

A container may own millions of segments, streams and writers, of which few are in use. A shelf hands them out by number
or by name. What it has not in memory it loads from the *archive*, which is the last checkpoint; so an idle thing costs
disk, not memory. Three rules make that safe:

- There is never more than one object for a thing: whoever still holds an object that the shelf let go of is found again
  (the shelf refers to all objects weakly), and `get` returns that very object.
- What changed is held until a checkpoint has stored it; so what is loaded is always what was let go of.
- What was deleted or renamed since the last checkpoint is known by its number and by its old name.

Loading blocks. In the event loop it is done ahead, by `loader.EntityLoader`, in a thread; `get` loads only what was
not loaded before.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from sortedcontainers import SortedDict

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)

RESIDENT_COUNT_MAX: Final = 20_000
ABSENT_COUNT_MAX: Final = 16_384
ARCHIVE_PAGE_COUNT: Final = 1000


class Archive(Protocol[Item_co]):
    """Where the things of one kind lie that are not in memory. All methods block and may be called from any thread."""

    def load(self, number: int) -> Item_co | None:
        """Return a thing as it was stored last, None if it was not."""
        ...

    def find(self, name: str) -> int:
        """Return the number of the newest thing of that name, 0 if there is none."""
        ...

    def numbers(self, *, after: int, count_max: int) -> list[int]:
        """Return stored numbers above `after`, ascending."""
        ...

    def names(self, *, prefix: str, after: str, count_max: int) -> list[str]:
        """Return stored names with a prefix, above `after`, in the order of their UTF-8 bytes."""
        ...


class EmptyArchive:
    """The archive of what was never stored."""

    def load(self, number: int) -> None:
        """Return None: nothing is stored."""

    def find(self, name: str) -> int:
        """Return 0: nothing is stored."""
        return 0

    def numbers(self, *, after: int, count_max: int) -> list[int]:
        """Return no numbers."""
        return []

    def names(self, *, prefix: str, after: str, count_max: int) -> list[str]:
        """Return no names."""
        return []


@dataclass(slots=True)
class CacheChanges(Generic[Item]):
    """What changed on a shelf since a checkpoint: the things themselves, what is gone, and whose the names are now."""

    changed: dict[int, Item] = field(default_factory=dict)
    # How many of them are new.
    added_count: int = 0
    gone: set[int] = field(default_factory=set)
    # The number that a name leads to, 0 for one that leads nowhere any more.
    names: "SortedDict[str, int]" = field(default_factory=SortedDict)

    def __bool__(self) -> bool:
        return bool(self.changed or self.gone)

    def update(self, later: "CacheChanges[Item]") -> None:
        """Take in what changed later."""
        for number in later.gone:
            self.changed.pop(number, None)
        self.gone |= later.gone
        self.changed |= later.changed
        self.added_count += later.added_count
        self.names.update(later.names)


class EntityCache(Generic[Item]):
    """The things of one kind; belongs to the event loop, or to the one thread that recovers.

    Args:
        number_of, name_of: what a thing is found by; an empty name leads nowhere.
        archive: where things lie that are not in memory.
        count: how many there are in the archive.
        stored_below: nothing in the archive has a number from this on.
        resident_count_max: so many things are held that nobody uses and that did not change.
    """

    def __init__(
        self,
        *,
        number_of: Callable[[Item], int],
        name_of: Callable[[Item], str],
        archive: Archive[Item] | None = None,
        count: int = 0,
        stored_below: int = 0,
        resident_count_max: int = RESIDENT_COUNT_MAX,
    ) -> None:
        self.archive: Archive[Item] = EmptyArchive() if archive is None else archive
        # How often a checkpoint was stored: what a thread read before that may be older than what memory forgot since.
        self.generation = 0
        self.number_of = number_of
        self._name_of = name_of
        self._count = count
        self._stored_below = stored_below
        self._resident_count_max = resident_count_max
        # Everything in memory, whoever holds it.
        self._present: WeakValueDictionary[int, Item] = WeakValueDictionary()
        self._present_names: WeakValueDictionary[str, Item] = WeakValueDictionary()
        # What the shelf itself holds for having been used last.
        self._resident: OrderedDict[int, Item] = OrderedDict()
        # Numbers and names that were asked for in vain. Numbers are given once, and a name that comes into use passes
        # `add` or `rename`: what is absent stays so until then.
        self._absent: OrderedDict[int | str, None] = OrderedDict()
        self._pending: CacheChanges[Item] = CacheChanges()
        # What the checkpoint under way stores.
        self._taken: CacheChanges[Item] = CacheChanges()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None

    def __getitem__(self, number: int) -> Item:
        item = self.get(number)
        if item is None:
            raise KeyError(number)
        return item

    def get(self, number: int) -> Item | None:
        """Return a thing by its number, None if there is none. Blocks if it must be loaded."""
        item = self._resident.get(number)
        if item is not None:
            self._resident.move_to_end(number)
            return item
        item = self._present.get(number)
        if item is None:
            if self._is_known_absent(number):
                return None
            item = self.archive.load(number)
            if item is None:
                self._remember_absence(number)
                return None
            self._enter(item)
        self._hold(number, item)
        return item

    def find(self, name: str) -> Item | None:
        """Return a thing by its name, None if there is none. Blocks if it must be loaded."""
        item = self._present_names.get(name)
        if item is not None:
            self._hold(self.number_of(item), item)
            return item
        number = self._changed_number(name)
        if number is None:
            if not name or name in self._absent:
                return None
            number = self.archive.find(name)
        item = self.get(number) if number else None
        if item is None:
            self._remember_absence(name)
        return item

    def peek(self, number: int) -> Item | None:
        """Return a thing if it is in memory."""
        return self._present.get(number)

    def expect_new(self, number: int) -> None:
        """Take note that nothing has this number yet, so that nobody looks for it."""
        self._remember_absence(number)

    def is_at_hand(self, number: int) -> bool:
        """Return whether `get` answers from memory."""
        return number in self._resident or number in self._present or self._is_known_absent(number)

    def is_name_at_hand(self, name: str) -> bool:
        """Return whether `find` answers from memory."""
        if name in self._present_names or name in self._absent or not name:
            return True
        number = self._changed_number(name)
        return number is not None and (not number or self.is_at_hand(number))

    def adopt(self, number: int, item: Item | None, *, generation: int) -> bool:
        """Take over what a thread read from the archive when this was the generation; False if it may be outdated."""
        if self.is_at_hand(number):
            return True
        if generation != self.generation:
            return False
        if item is None:
            self._remember_absence(number)
        else:
            self._enter(item)
            self._hold(number, item)
        return True

    def adopt_absence(self, name: str, *, generation: int) -> bool:
        """Take over that the archive had no such name in this generation; False if that may be outdated."""
        if self.is_name_at_hand(name):
            return True
        if generation != self.generation:
            return False
        self._remember_absence(name)
        return True

    def add(self, item: Item) -> None:
        """Put a new thing on the shelf; it has changed."""
        number = self.number_of(item)
        self._count += 1
        self._pending.added_count += 1
        self._pending.changed[number] = item
        self._absent.pop(number, None)
        self._enter(item)
        self._point(self._name_of(item), number)

    def changed(self, item: Item) -> None:
        """Take note that a thing differs from what the archive has; nothing if it is gone."""
        number = self.number_of(item)
        if self._present.get(number) is item:
            self._pending.changed[number] = item

    def remove(self, number: int) -> Item | None:
        """Take a thing off the shelf for ever and return it; None if there is none. Blocks if it must be loaded."""
        item = self.get(number)
        if item is None:
            return None
        self._count -= 1
        self._resident.pop(number, None)
        del self._present[number]
        self._pending.changed.pop(number, None)
        self._pending.gone.add(number)
        self._leave(self._name_of(item), number)
        return item

    def renamed(self, item: Item, *, old_name: str) -> None:
        """Take note that a thing has another name now; it has changed."""
        number = self.number_of(item)
        self._leave(old_name, number)
        self._present_names[self._name_of(item)] = item
        self._point(self._name_of(item), number)
        self._pending.changed[number] = item

    def present(self) -> list[Item]:
        """Return everything that is in memory."""
        return list(self._present.values())

    def values(self) -> Iterator[Item]:
        """Yield everything, by number; holds nothing of it. Blocks, and nothing may change meanwhile."""
        new = sorted(self._pending.changed.keys() | self._taken.changed.keys())
        place = 0
        last = 0
        while stored := self.archive.numbers(after=last, count_max=ARCHIVE_PAGE_COUNT):
            last = stored[-1]
            end = bisect_right(new, last)
            yield from self._existing(sorted({*stored, *new[place:end]}))
            place = end
        yield from self._existing(new[place:])

    def names(self, stored: Sequence[str], *, prefix: str, after: str, last: str | None) -> list[str]:
        """Return the names in use with a prefix, above `after` and up to `last`, ascending.

        Args:
            stored: those of the archive in that range, as of this generation.
            last: None for no end.
        """
        found = set(stored)
        for changes in (self._taken, self._pending):
            for name in changes.names.irange(max(prefix, after), last):
                if not name.startswith(prefix):
                    break
                if changes.names[name]:
                    found.add(name)
                else:
                    found.discard(name)
        found.discard(after)
        return sorted(found)

    # --- checkpoints ---

    @property
    def changes(self) -> CacheChanges[Item]:
        """What changed since the last `take`."""
        return self._pending

    @property
    def unstored(self) -> Iterator[Item]:
        """Everything that the archive has not as it is now."""
        return chain(
            (item for number, item in self._taken.changed.items() if number not in self._pending.gone),
            (item for number, item in self._pending.changed.items() if number not in self._taken.changed),
        )

    def is_stored(self, number: int) -> bool:
        """Return whether a thing is as the archive has it."""
        return not any(number in changes.changed or number in changes.gone for changes in (self._pending, self._taken))

    def take(self) -> CacheChanges[Item]:
        """Return what changed, for a checkpoint; `stored` or `give_back` is to be called next."""
        assert not self._taken, "one checkpoint after the other"
        self._taken, self._pending = self._pending, CacheChanges()
        return self._taken

    def stored(self, *, stored_below: int) -> None:
        """Say that the archive has what was taken; every number in it lies below that."""
        for number, item in self._taken.changed.items():
            if number not in self._pending.gone:
                self._hold(number, item)
        self._taken = CacheChanges()
        self._stored_below = max(self._stored_below, stored_below)
        self.generation += 1

    def give_back(self) -> None:
        """Say that what was taken may not have been stored."""
        taken, self._taken = self._taken, CacheChanges()
        taken.update(self._pending)
        self._pending = taken

    # --- inside ---

    def _existing(self, numbers: Sequence[int]) -> Iterator[Item]:
        for number in numbers:
            item = self._present.get(number)
            if item is None and not self._is_gone(number):
                item = self.archive.load(number)
            if item is not None:
                yield item

    def _enter(self, item: Item) -> None:
        self._present[self.number_of(item)] = item
        if name := self._name_of(item):
            newer = self._present_names.get(name)
            if newer is None or self.number_of(newer) <= self.number_of(item):
                self._present_names[name] = item

    def _hold(self, number: int, item: Item) -> None:
        """Hold a thing for having been used last, and let go of the one that was not used for longest."""
        self._resident[number] = item
        self._resident.move_to_end(number)
        if len(self._resident) > self._resident_count_max:
            self._resident.popitem(last=False)

    def _point(self, name: str, number: int) -> None:
        if name:
            self._absent.pop(name, None)
            self._pending.names[name] = number

    def _leave(self, name: str, number: int) -> None:
        """Let a name lead nowhere, unless it leads to another thing by now."""
        other = self._present_names.get(name)
        if other is not None and self.number_of(other) == number:
            del self._present_names[name]
        if name and self._changed_number(name) in (None, number):
            self._pending.names[name] = 0

    def _changed_number(self, name: str) -> int | None:
        """Return the number that a name leads to, 0 for nowhere, None if the archive knows."""
        number = self._pending.names.get(name)
        return self._taken.names.get(name) if number is None else number

    def _is_gone(self, number: int) -> bool:
        return number in self._pending.gone or number in self._taken.gone

    def _is_known_absent(self, number: int) -> bool:
        return number <= 0 or number >= self._stored_below or number in self._absent or self._is_gone(number)

    def _remember_absence(self, key: int | str) -> None:
        if key:
            self._absent[key] = None
            if len(self._absent) > ABSENT_COUNT_MAX:
                self._absent.popitem(last=False)
