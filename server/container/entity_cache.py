"""Identity map of segments, streams and writers: keeps recently used, dirty and pinned entities; loads the others.

A container may own millions of segments, streams and writers, of which few are in use. Its caches, one for each kind,
hand them out by number or by name. What is not in memory is loaded from the *archive*, which is the last checkpoint; so
an idle entity costs disk, not memory.

The life of an entity in memory:

    add --------------------------> dirty <------------- changed --------------+
                                      |                                        |
                                      | a checkpoint that began after the      |
                                      | last change is stored                  |
                                      v            unpin (the last)            |
    get, pin -- load --> clean and pinned <-----------------> evictable -------+
                                                 pin              |
                                                                  v  the budget is full, the step is over
                                                               evicted

An entity is *evictable* if nothing pins it and if it is not dirty: it is as the last checkpoint has it. How many of
these stay is up to `idle_budget`. Five rules make eviction safe:

- There is one object for an entity in memory: `get` and `pin` return that very object until it is evicted.
- Nothing is evicted within a step of the event loop, so a decision changes the objects that it looked at.
- Who changes an entity, or holds it while waiting for something, pins it before: `pin` counts, `Pins.release` counts
  back, and nothing else does. A change to an object that was evicted would be lost, so it is an assertion.
- What changed stays until a checkpoint has stored it; so what is loaded is always what was evicted. A checkpoint that
  fails changes nothing: the next one takes the same again.
- What was deleted or renamed since the last checkpoint is known by its number: where the archive still finds it by its
  old name, nothing is found.

Loading blocks. For the event loop, `loader.EntityLoader` does it before, in a thread. The pattern is known as an
identity map with a unit of work (M. Fowler, Patterns of Enterprise Application Architecture).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Any, Final, Generic, TypeVar

from .archive import Archive
from .dirty_set import DirtySet
from .idle_budget import IdleBudget

Item = TypeVar("Item")

ABSENT_COUNT_MAX: Final = 16_384
ARCHIVE_PAGE_COUNT: Final = 1000


class Pins:
    """Entities that stay in memory, until `release`; made by `EntityCache.pin`.

    A context manager that releases at its end. `transfer` hands the entities on to an owner that lives longer.

    Attributes:
        held: cache and number of each, which only that cache adds when it counts a pin; None when they are released or
            transferred: then nothing can be added.
    """

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: list[tuple[EntityCache[Any], int]] | None = []

    def __len__(self) -> int:
        return len(self.held or ())

    def __enter__(self) -> "Pins":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def transfer(self) -> "Pins":
        """Return other pins of the same entities, which its new owner releases; these pin nothing any more."""
        assert self.held is not None, "released already"
        other = Pins()
        other.held, self.held = self.held, None
        return other

    def release(self) -> None:
        """Let the entities be evicted, as far as nothing else pins them. Releasing twice is fine."""
        held, self.held = self.held, None
        for cache, number in held or ():
            cache.unpin(number)


class EntityCache(Generic[Item]):
    """The entities of one kind; belongs to the event loop, or to the one thread that recovers.

    Args:
        number_of, name_of: the keys of an entity; an empty name is none.
        archive: has the entities that are not in memory.
        count: how many there are in the archive.
        stored_below: nothing in the archive has a number from this on.
        size_of: about how many bytes of memory an entity takes.
        idle: bounds the evictable entities, of this kind and others.
        is_unused: whether a number was given to nothing yet, though lower ones are stored.
    """

    def __init__(
        self,
        *,
        number_of: Callable[[Item], int],
        name_of: Callable[[Item], str],
        archive: Archive[Item],
        count: int,
        stored_below: int,
        size_of: Callable[[Item], int],
        idle: IdleBudget,
        is_unused: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.archive = archive
        # How often a checkpoint was stored: what a thread read before that may be older than what was evicted since.
        self.generation = 0
        self.number_of = number_of
        self._name_of = name_of
        self._count = self._taken_count = self._stored_count = count
        self._stored_below = stored_below
        self._size_of = size_of
        self._idle = idle
        self._is_unused = is_unused
        # Everything in memory.
        self._resident: dict[int, Item] = {}
        self._resident_names: dict[str, Item] = {}
        # Of what is pinned, how often; never 0. Also of what does not exist (yet), or was deleted meanwhile.
        self._pin_counts: dict[int, int] = {}
        # What may be evicted, and nothing else.
        self._evictable: set[int] = set()
        # Numbers and names that lead nowhere: asked for in vain, or deleted. They stay so until they come into use, as
        # `add` and `renamed` tell; numbers are given once.
        self._absent: OrderedDict[int | str, None] = OrderedDict()
        # Numbers of what the archive has not as it is: changed if it is in memory, deleted if it is not.
        self._dirty: DirtySet[int] = DirtySet()

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
        """Return an entity by its number, None if there is none. Blocks if it must be loaded."""
        item = self._resident.get(number)
        if item is not None:
            if number in self._evictable:
                self._idle.use(self, number)
        elif (item := self._load(number)) is not None:
            self._consider(number)
        return item

    def find(self, name: str) -> Item | None:
        """Return an entity by its name, None if there is none. Blocks if it must be loaded."""
        return self.get(self._find_number(name))

    def lookup(self, key: int | str) -> Item | None:
        """Return an entity by its number or its name, None if there is none. Blocks if it must be loaded."""
        return self.find(key) if isinstance(key, str) else self.get(key)

    def loaded(self, number: int) -> Item | None:
        """Return an entity by its number, None if there is none, without loading: it must be pinned."""
        item = self._resident.get(number)
        assert item is not None or self._is_known_absent(number), "neither pinned nor loaded"
        return item

    def pinned(self, number: int) -> Item | None:
        """Return a pinned entity by its number, None if it does not exist: the admitted view of no other may move."""
        assert number in self._pin_counts or number <= 0, "an admitted change to what may be evicted is lost"
        return self._resident.get(number)

    def peek(self, number: int) -> Item | None:
        """Return an entity if it is in memory."""
        return self._resident.get(number)

    def pin(self, keys: Iterable[int | str], *, into: Pins | None = None) -> Pins:
        """Keep entities in memory, by number or name, until they are released. Blocks if one must be loaded.

        A number is pinned whether the entity exists or not: if it is created meanwhile, it stays in memory from then
        on. A name that leads nowhere pins nothing.

        Args:
            into: pins to which they are added, and that are returned.

        Raises:
            StorageError: one could not be loaded; nothing is pinned, but for what `into` has.
        """
        pins = Pins() if into is None else into
        held = pins.held
        if held is None:
            return pins
        counts = self._pin_counts
        try:
            for key in keys:
                number = self._find_number(key) if isinstance(key, str) else key
                if number in counts:
                    counts[number] += 1
                elif number > 0:
                    if number not in self._resident and number < self._stored_below:
                        self._load(number)
                    counts[number] = 1
                    if number in self._evictable:
                        self._keep(number)
                else:
                    continue
                held.append((self, number))
        except BaseException:
            if into is None:
                pins.release()
            raise
        return pins

    def pin_new(self, numbers: Iterable[int], *, into: Pins) -> None:
        """Keep entities in memory, from when they are added, whose numbers nothing had before: none is looked for."""
        held, counts = into.held, self._pin_counts
        assert held is not None
        for number in numbers:
            counts[number] = counts.get(number, 0) + 1
            held.append((self, number))

    def unpin(self, number: int) -> None:
        """Count back one pin of an entity, which may be evicted then if it was the last: called by `Pins.release`."""
        counts = self._pin_counts
        count = counts[number]
        if count > 1:
            counts[number] = count - 1
        else:
            del counts[number]
            self._consider(number)

    @property
    def pin_counts(self) -> Mapping[int, int]:
        """How often each entity is pinned that is."""
        return self._pin_counts

    def is_resident(self, key: int | str) -> bool:
        """Return whether `get`, or `find` for a name, answers from memory."""
        if isinstance(key, int):
            return key in self._resident or self._is_known_absent(key)
        return key in self._resident_names or key in self._absent or not key

    def install(
        self, key: int | str, number: int, item: Item | None, *, generation: int, pins: Iterable[Pins] = ()
    ) -> bool:
        """Take over what a thread read from the archive for a key when this was the generation, and pin it.

        Returns:
            Whether that is current; else it is not taken over.
        """
        if not self.is_resident(key):
            if generation != self.generation:
                return False
            if item is None or number in self._dirty:
                self._remember_absence(key)
            elif number not in self._resident:
                self._enter(item)
        for each in pins:
            self.pin([key], into=each)
        self._consider(number)
        return True

    def add(self, item: Item) -> None:
        """Take in a new entity; it is dirty."""
        number = self.number_of(item)
        self._count += 1
        self._dirty.add(number)
        self._enter(item)

    def changed(self, item: Item) -> None:
        """Record that an entity differs from what the archive has; no effect if it is deleted."""
        number = self.number_of(item)
        if self._resident.get(number) is item:
            self._dirty.add(number)
            if number in self._evictable:
                self._keep(number)
        else:
            assert self._is_known_absent(number), "a change to what was evicted is lost"

    def remove(self, number: int) -> Item | None:
        """Delete an entity and return it; None if there is none. Blocks if it must be loaded."""
        item = self._resident.get(number) or self._load(number)
        if item is None:
            return None
        self._count -= 1
        self._keep(number)
        self._drop(number, item)
        self._dirty.add(number)
        self._remember_absence(number)
        self._leave(self._name_of(item), item)
        return item

    def renamed(self, item: Item, *, old_name: str) -> None:
        """Record that an entity has another name now; it is dirty."""
        number = self.number_of(item)
        assert self._resident.get(number) is item, "a change to what was evicted is lost"
        self._leave(old_name, item)
        if name := self._name_of(item):
            self._resident_names[name] = item
            self._absent.pop(name, None)
        self.changed(item)

    def present(self) -> list[Item]:
        """Return everything that is in memory."""
        return list(self._resident.values())

    def values(self) -> Iterator[Item]:
        """Yield everything, by number; keeps nothing of it in memory. Blocks, and nothing may change meanwhile."""
        last = 0
        for number in merge(self._stored_numbers(), sorted(self._dirty)):
            if number == last:
                continue
            last = number
            item = self._resident.get(number)
            if item is None and number not in self._dirty:
                item = self.archive.load(number)
            if item is not None:
                yield item

    def names(
        self,
        stored: Sequence[tuple[str, int]],
        *,
        prefix: str,
        after: str,
        last: str | None,
        is_wanted: Callable[[Item], bool],
    ) -> list[str]:
        """Return the names in use with a prefix, above `after` and up to `last`, ascending.

        Args:
            stored: those of the archive in that range, with their numbers, as of this generation.
            last: None for no end.
            is_wanted: whether what is not stored as it is belongs to them.
        """
        names = {name for name, number in stored if number not in self._dirty}
        for item in self.unstored:
            name = self._name_of(item)
            if name.startswith(prefix) and name > after and (last is None or name <= last) and is_wanted(item):
                names.add(name)
        return sorted(names)

    # --- checkpoints ---

    @property
    def added_count(self) -> int:
        """How many more entities there are than the archive has."""
        return self._count - self._stored_count

    @property
    def changed_count(self) -> int:
        """Of how many entities the archive does not know what they are now, or that they are deleted."""
        return len(self._dirty)

    @property
    def unstored(self) -> Iterator[Item]:
        """Everything that the archive has not as it is now."""
        return (self._resident[number] for number in self._dirty if number in self._resident)

    def take(self) -> list[int]:
        """Return the numbers of what the archive has not as it is, for a checkpoint; what is not in memory is deleted.

        If the checkpoint succeeds, `stored` comes next.
        """
        self._taken_count = self._count
        return self._dirty.take()

    def stored(self, *, stored_below: int) -> None:
        """Say that the archive has what was taken last; every number in it is below that."""
        self._stored_count = self._taken_count
        self._stored_below = max(self._stored_below, stored_below)
        self.generation += 1
        for number in self._dirty.stored():
            self._consider(number)

    # --- inside ---

    def _stored_numbers(self) -> Iterator[int]:
        last = 0
        while page := self.archive.numbers(after=last, count_max=ARCHIVE_PAGE_COUNT):
            yield from page
            last = page[-1]

    def _find_number(self, name: str) -> int:
        """Return the number that a name leads to, 0 if there is none. Blocks if the archive must be asked."""
        item = self._resident_names.get(name)
        if item is not None:
            return self.number_of(item)
        if not name or name in self._absent:
            return 0
        number = self.archive.find(name)
        # What the archive still has under a name may be deleted or renamed since.
        if not number or number in self._dirty:
            self._remember_absence(name)
            return 0
        return number

    def _load(self, number: int) -> Item | None:
        """Read an entity that is not in memory; the caller pins it, or calls `_consider`."""
        if self._is_known_absent(number):
            return None
        item = self.archive.load(number)
        if item is None:
            self._remember_absence(number)
            return None
        self._enter(item)
        return item

    def _enter(self, item: Item) -> None:
        number = self.number_of(item)
        assert number not in self._resident, "one object for an entity"
        self._resident[number] = item
        self._absent.pop(number, None)
        if name := self._name_of(item):
            self._absent.pop(name, None)
            newer = self._resident_names.get(name)
            if newer is None or self.number_of(newer) <= number:
                self._resident_names[name] = item

    def _consider(self, number: int) -> None:
        """Make an entity evictable, unless it is dirty or pinned."""
        # A dirty entity is newer than its row, and a pinned one is in use: either would be lost, or read stale.
        if number in self._dirty or number in self._pin_counts or number not in self._resident:
            return
        self._evictable.add(number)
        self._idle.add(self, number, size_bytes=self._size_of(self._resident[number]))

    def _keep(self, number: int) -> None:
        """Remove an entity from the evictable set, if present."""
        if number in self._evictable:
            self._evictable.remove(number)
            self._idle.remove(self, number)

    def evict(self, number: int) -> None:
        """Remove an evictable entity from memory: called by the budget, to which it no longer belongs."""
        assert number not in self._dirty, "a dirty entity is newer than its row"
        assert number not in self._pin_counts, "a pinned entity is in use"
        self._evictable.remove(number)
        self._drop(number, self._resident[number])

    def _drop(self, number: int, item: Item) -> None:
        """Remove an entity from memory that is not evictable."""
        del self._resident[number]
        name = self._name_of(item)
        if self._resident_names.get(name) is item:
            del self._resident_names[name]

    def _leave(self, name: str, item: Item) -> None:
        """Unbind a name from an entity, unless another entity has it by now."""
        if self._resident_names.get(name) is item:
            del self._resident_names[name]
        if name not in self._resident_names:
            self._remember_absence(name)

    def _is_deleted(self, number: int) -> bool:
        return number in self._dirty and number not in self._resident

    def _is_known_absent(self, number: int) -> bool:
        """Return whether an entity that is not in memory is known not to exist."""
        return (
            number <= 0
            # Numbers ascend: one that the checkpoint has not reached is in memory, or was never given.
            or number >= self._stored_below
            # A pin looks its entity up: if it is not in memory then, it does not exist (yet, or any more).
            or number in self._pin_counts
            or number in self._absent
            # The checkpoint still has the row of an entity that was deleted since it was saved.
            or self._is_deleted(number)
            or self._is_unused(number)
        )

    def _remember_absence(self, key: int | str) -> None:
        if key:
            self._absent[key] = None
            if len(self._absent) > ABSENT_COUNT_MAX:
                self._absent.popitem(last=False)
