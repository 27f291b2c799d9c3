from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.server.container.entity_cache import ABSENT_COUNT_MAX, EntityCache, Pins
from millrace.server.container.idle_budget import IdleBudget
from tests.server.container.states import evict_at_once
from tests.support.examples import examples


@dataclass(eq=False)
class Thing:
    number: int
    name: str
    value: int = 0


@dataclass
class MemoryArchive:
    """What a checkpoint would have stored: copies, and a count of how often somebody read them."""

    things: dict[int, Thing] = field(default_factory=dict)
    reads: int = 0

    def load(self, number: int) -> Thing | None:
        self.reads += 1
        thing = self.things.get(number)
        return None if thing is None else replace(thing)

    def find(self, name: str) -> int:
        self.reads += 1
        return max((thing.number for thing in self.things.values() if thing.name == name), default=0)

    def numbers(self, *, after: int, count_max: int) -> list[int]:
        return sorted(number for number in self.things if number > after)[:count_max]

    def names(self, *, prefix: str, after: str, count_max: int) -> list[tuple[str, int]]:
        names = [(thing.name, thing.number) for thing in self.things.values() if thing.name.startswith(prefix)]
        return sorted((name, number) for name, number in names if name > after)[:count_max]


def cache_over(archive: MemoryArchive, *, idle_count_max: int = 0, next_number: int = 1) -> EntityCache[Thing]:
    return EntityCache(
        number_of=lambda thing: thing.number,
        name_of=lambda thing: thing.name,
        archive=archive,
        count=len(archive.things),
        stored_below=next_number,
        size_of=lambda _: 1,
        idle=evict_at_once(IdleBudget(idle_count_max)),
    )


NAMES = [f"name-{number}" for number in range(8)]


class Caches(RuleBasedStateMachine):
    """A cache that evicts everything at once, beside a dictionary that keeps all."""

    def __init__(self) -> None:
        super().__init__()
        self.archive = MemoryArchive()
        self.cache = cache_over(self.archive)
        self.model: dict[int, tuple[str, int]] = {}
        self.next_number = 1
        self.pins: list[Pins] = []
        self.held: list[Thing] = []
        self.taken: list[Thing] = []
        self.taken_next = 0

    def number(self, choice: int) -> int | None:
        numbers = sorted(self.model)
        return numbers[choice % len(numbers)] if numbers else None

    @rule(name=st.sampled_from(NAMES), is_named=st.booleans())
    def add(self, name: str, is_named: bool) -> None:
        if is_named and any(other == name for other, _ in self.model.values()):
            return
        thing = Thing(self.next_number, name if is_named else "")
        self.next_number += 1
        self.cache.add(thing)
        self.model[thing.number] = (thing.name, 0)

    @rule(choice=st.integers(0, 99), value=st.integers(1, 9))
    def change(self, choice: int, value: int) -> None:
        if (number := self.number(choice)) is not None:
            with self.cache.pin([number]):
                thing = self.cache[number]
                thing.value = value
                self.cache.changed(thing)
            self.model[number] = (thing.name, value)

    @rule(choice=st.integers(0, 99), name=st.sampled_from(NAMES))
    def rename(self, choice: int, name: str) -> None:
        number = self.number(choice)
        if number is None or any(other == name for other, _ in self.model.values()):
            return
        with self.cache.pin([number]):
            thing = self.cache[number]
            old_name, thing.name = thing.name, name
            self.cache.renamed(thing, old_name=old_name)
        self.model[number] = (name, thing.value)

    @rule(choice=st.integers(0, 99))
    def remove(self, choice: int) -> None:
        if (number := self.number(choice)) is not None:
            self.cache.remove(number)
            del self.model[number]
            assert self.cache.remove(number) is None

    @rule(choice=st.integers(0, 99), by_name=st.booleans(), is_handed_on=st.booleans())
    def pin(self, choice: int, by_name: bool, is_handed_on: bool) -> None:
        """Whatever happens to what is pinned, the cache hands out that very object."""
        if (number := self.number(choice)) is not None:
            name, _ = self.model[number]
            pins = self.cache.pin([name if by_name and name else number])
            self.pins.append(pins.transfer() if is_handed_on else pins)
            self.held.append(self.cache[number])

    @rule()
    def release(self) -> None:
        for pins in self.pins:
            pins.release()
            pins.release()
        self.pins.clear()
        self.held.clear()
        assert not self.cache.pin_counts

    @invariant()
    def only_what_must_stay_is_in_memory(self) -> None:
        dirty = {thing.number for thing in self.cache.unstored}
        resident = {thing.number for thing in self.cache.present()}
        assert resident == {number for number in self.model if number in dirty or number in self.cache.pin_counts}

    @precondition(lambda self: not self.taken_next)
    @rule()
    def take(self) -> None:
        numbers = self.cache.take()
        self.taken = [replace(thing) for number in numbers if (thing := self.cache.peek(number)) is not None]
        self.removals = set(numbers) - {thing.number for thing in self.taken}
        self.taken_next = self.next_number

    @precondition(lambda self: self.taken_next)
    @rule(is_stored=st.booleans())
    def end(self, is_stored: bool) -> None:
        if is_stored:
            for number in self.removals:
                self.archive.things.pop(number, None)
            self.archive.things.update((thing.number, thing) for thing in self.taken)
            self.cache.stored(stored_below=self.taken_next)
        self.taken_next = 0

    @invariant()
    def everything_is_there_as_it_should_be(self) -> None:
        assert len(self.cache) == len(self.model)
        for number in range(1, self.next_number + 2):
            thing = self.cache.get(number)
            assert (thing and (thing.name, thing.value)) == self.model.get(number)
            assert self.cache.is_resident(number) or thing is not None
        numbers = {name: number for number, (name, _) in self.model.items() if name}
        for name in NAMES:
            found = self.cache.find(name)
            assert (found and found.number) == numbers.get(name)
        assert self.cache.find("") is None
        assert [thing.number for thing in self.cache.values()] == sorted(self.model)
        for thing in self.held:
            if thing.number in self.model:
                assert self.cache.get(thing.number) is thing

    @invariant()
    def pages_have_all_names(self) -> None:
        expected = sorted(name for name, _ in self.model.values() if name)
        for prefix, after, count in (("", "", 3), ("name-", "name-2", 2), ("name-5", "", 9)):
            stored = self.archive.names(prefix=prefix, after=after, count_max=count)
            last = stored[-1][0] if len(stored) == count else None
            assert self.cache.names(stored, prefix=prefix, after=after, last=last, is_wanted=lambda _: True) == [
                name for name in expected if name.startswith(prefix) and name > after and (last is None or name <= last)
            ]


Caches.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
TestCaches = Caches.TestCase


def stored_things(count: int) -> Iterator[tuple[int, Thing]]:
    for number in range(1, count + 1):
        yield number, Thing(number, f"name-{number}")


def test_what_was_not_used_for_longest_is_evicted() -> None:
    archive = MemoryArchive(dict(stored_things(100)))
    cache = cache_over(archive, idle_count_max=10, next_number=101)
    for number in range(1, 101):
        assert cache.get(number)
    assert len(cache.present()) == 10
    archive.reads = 0
    assert all(cache.get(number) for number in range(91, 101))
    assert archive.reads == 0
    assert cache.get(1)
    assert archive.reads == 1
    assert cache.get(92)
    assert cache.peek(91) is None


def test_what_is_pinned_does_not_count_and_is_not_evicted() -> None:
    archive = MemoryArchive(dict(stored_things(9)))
    cache = cache_over(archive, idle_count_max=1, next_number=10)
    pins = cache.pin([1, 2, "name-3", 1, 77, "nobody"])
    # A number is pinned whether there is anything of it or not, a name only if it leads somewhere.
    assert dict(cache.pin_counts) == {1: 2, 2: 1, 3: 1, 77: 1}
    assert len(pins) == 5
    cache.get(8)
    assert [thing.number for thing in cache.present()] == [1, 2, 3, 8]
    pins.release()
    assert len(cache.present()) == 1


def test_a_change_to_what_was_evicted_is_an_assertion() -> None:
    cache = cache_over(MemoryArchive(dict(stored_things(2))), next_number=3)
    thing = cache[1]
    with pytest.raises(AssertionError, match="evicted"):
        cache.changed(thing)
    with pytest.raises(AssertionError, match="neither pinned nor loaded"):
        cache.loaded(1)
    with cache.pin([1]):
        removed = cache.remove(1)
        assert removed is not None
        cache.changed(removed)
        assert cache.loaded(1) is None


def test_what_changed_is_held_until_it_is_stored() -> None:
    archive = MemoryArchive(dict(stored_things(100)))
    cache = cache_over(archive, next_number=101)
    with cache.pin(range(1, 51)):
        for number in range(1, 51):
            cache.changed(cache[number])
    assert len(cache.present()) == 50
    cache.take()
    assert len(cache.present()) == 50
    cache.stored(stored_below=101)
    assert len(cache.present()) == 0


def test_what_is_absent_is_asked_for_once() -> None:
    archive = MemoryArchive(dict(stored_things(3)))
    cache = cache_over(archive, next_number=10)
    for _ in range(3):
        assert cache.get(5) is None
        assert cache.find("nobody") is None
        assert cache.get(10) is None  # never given yet: no need to look
    assert archive.reads == 2
    assert cache.is_resident(5)
    assert cache.is_resident("nobody")
    cache.add(Thing(10, "nobody"))
    found = cache.find("nobody")
    assert found is not None
    assert found.number == 10


def test_what_was_read_before_a_checkpoint_was_stored_is_not_taken_over() -> None:
    """A thread may be slow: meanwhile what it read was loaded, changed, stored and forgotten."""
    archive = MemoryArchive(dict(stored_things(3)))
    cache = cache_over(archive, next_number=10)
    generation = cache.generation
    outdated = archive.load(1)
    with cache.pin([1]):
        thing = cache[1]
        thing.value = 7
        cache.changed(thing)
    cache.take()
    archive.things[1] = replace(thing)
    cache.stored(stored_below=10)
    del thing

    pins = Pins()
    assert not cache.install(1, 1, outdated, generation=generation, pins=[pins])
    assert not cache.install("nobody", 0, None, generation=generation, pins=[pins])
    assert len(pins) == 0
    assert cache[1].value == 7


@given(st.lists(st.integers(1, 20)))
def test_one_object_for_a_thing(numbers: list[int]) -> None:
    archive = MemoryArchive(dict(stored_things(20)))
    cache = cache_over(archive, idle_count_max=2, next_number=21)
    held: dict[int, Thing] = {}
    with Pins() as pins:
        for number in numbers:
            assert cache.install(number, number, archive.load(number), generation=cache.generation, pins=[pins])
            assert cache[number] is held.setdefault(number, cache[number])
            assert cache.install(f"name-{number}", number, archive.load(number), generation=cache.generation)
            assert cache[number] is held[number]
        assert sum(cache.pin_counts.values()) == len(numbers)
    assert len(cache.present()) <= 2


def test_what_is_created_while_its_number_is_pinned_stays_in_memory() -> None:
    """Two decisions about a new writer: the first creates it, the second finds the same object after a checkpoint."""
    archive = MemoryArchive({})
    cache = cache_over(archive, idle_count_max=0, next_number=5)
    with cache.pin([5]):
        assert cache.loaded(5) is None
        thing = Thing(5, "name-5")
        cache.add(thing)
        archive.things[5] = thing
        cache.take()
        cache.stored(stored_below=6)
        assert cache.loaded(5) is thing
    assert cache.peek(5) is None


def test_what_is_absent_and_pinned_is_not_looked_for_again() -> None:
    archive = MemoryArchive({})
    cache = cache_over(archive, idle_count_max=0, next_number=99_999)
    with cache.pin([1]):
        for number in range(2, ABSENT_COUNT_MAX + 3):
            assert cache.get(number) is None
        reads = archive.reads
        assert cache.loaded(1) is None
        assert archive.reads == reads
