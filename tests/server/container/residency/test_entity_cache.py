from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.server.container.residency.entity_cache import EntityCache


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

    def names(self, *, prefix: str, after: str, count_max: int) -> list[str]:
        names = {thing.name for thing in self.things.values() if thing.name.startswith(prefix)}
        return sorted(name for name in names if name > after and name)[:count_max]


def shelf_over(archive: MemoryArchive, *, resident_count_max: int = 0, next_number: int = 1) -> EntityCache[Thing]:
    return EntityCache(
        number_of=lambda thing: thing.number,
        name_of=lambda thing: thing.name,
        archive=archive,
        count=len(archive.things),
        stored_below=next_number,
        resident_count_max=resident_count_max,
    )


NAMES = [f"name-{number}" for number in range(8)]


class Shelves(RuleBasedStateMachine):
    """A shelf that lets go of everything at once, beside a dictionary that keeps all."""

    def __init__(self) -> None:
        super().__init__()
        self.archive = MemoryArchive()
        self.shelf = shelf_over(self.archive)
        self.model: dict[int, tuple[str, int]] = {}
        self.next_number = 1
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
        self.shelf.add(thing)
        self.model[thing.number] = (thing.name, 0)

    @rule(choice=st.integers(0, 99), value=st.integers(1, 9))
    def change(self, choice: int, value: int) -> None:
        if (number := self.number(choice)) is not None:
            thing = self.shelf[number]
            thing.value = value
            self.shelf.changed(thing)
            self.model[number] = (thing.name, value)

    @rule(choice=st.integers(0, 99), name=st.sampled_from(NAMES))
    def rename(self, choice: int, name: str) -> None:
        number = self.number(choice)
        if number is None or any(other == name for other, _ in self.model.values()):
            return
        thing = self.shelf[number]
        old_name, thing.name = thing.name, name
        self.shelf.renamed(thing, old_name=old_name)
        self.model[number] = (name, thing.value)

    @rule(choice=st.integers(0, 99))
    def remove(self, choice: int) -> None:
        if (number := self.number(choice)) is not None:
            self.shelf.remove(number)
            del self.model[number]
            assert self.shelf.remove(number) is None

    @rule(choice=st.integers(0, 99))
    def hold(self, choice: int) -> None:
        """Somebody keeps an object: whatever happens, the shelf hands out that very one."""
        if (number := self.number(choice)) is not None:
            self.held.append(self.shelf[number])

    @rule()
    def let_go(self) -> None:
        self.held.clear()

    @precondition(lambda self: not self.taken_next)
    @rule()
    def take(self) -> None:
        changes = self.shelf.take()
        self.removals = set(changes.gone)
        self.taken = [replace(thing) for thing in changes.changed.values()]
        self.taken_next = self.next_number

    @precondition(lambda self: self.taken_next)
    @rule(is_stored=st.booleans())
    def end(self, is_stored: bool) -> None:
        if is_stored:
            for number in self.removals:
                self.archive.things.pop(number, None)
            self.archive.things.update((thing.number, thing) for thing in self.taken)
            self.shelf.stored(stored_below=self.taken_next)
        else:
            self.shelf.give_back()
        self.taken_next = 0

    @invariant()
    def everything_is_there_as_it_should_be(self) -> None:
        assert len(self.shelf) == len(self.model)
        for number in range(1, self.next_number + 2):
            thing = self.shelf.get(number)
            assert (thing and (thing.name, thing.value)) == self.model.get(number)
            assert self.shelf.is_at_hand(number) or thing is not None
        numbers = {name: number for number, (name, _) in self.model.items() if name}
        for name in NAMES:
            found = self.shelf.find(name)
            assert (found and found.number) == numbers.get(name)
        assert self.shelf.find("") is None
        assert [thing.number for thing in self.shelf.values()] == sorted(self.model)
        for thing in self.held:
            if thing.number in self.model:
                assert self.shelf.get(thing.number) is thing

    @invariant()
    def pages_have_all_names(self) -> None:
        expected = sorted(name for name, _ in self.model.values() if name)
        for prefix, after, count in (("", "", 3), ("name-", "name-2", 2), ("name-5", "", 9)):
            stored = self.archive.names(prefix=prefix, after=after, count_max=count)
            last = stored[-1] if len(stored) == count else None
            assert self.shelf.names(stored, prefix=prefix, after=after, last=last) == [
                name for name in expected if name.startswith(prefix) and name > after and (last is None or name <= last)
            ]


Shelves.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestShelves = Shelves.TestCase


def stored_things(count: int) -> Iterator[tuple[int, Thing]]:
    for number in range(1, count + 1):
        yield number, Thing(number, f"name-{number}")


def test_what_is_not_in_use_is_let_go_of() -> None:
    archive = MemoryArchive(dict(stored_things(100)))
    shelf = shelf_over(archive, resident_count_max=10, next_number=101)
    for number in range(1, 101):
        assert shelf.get(number)
    assert len(shelf.present()) == 10
    archive.reads = 0
    assert all(shelf.get(number) for number in range(91, 101))
    assert archive.reads == 0
    assert shelf.get(1)
    assert archive.reads == 1


def test_what_changed_is_held_until_it_is_stored() -> None:
    archive = MemoryArchive(dict(stored_things(100)))
    shelf = shelf_over(archive, next_number=101)
    for number in range(1, 51):
        shelf.changed(shelf[number])
    assert len(shelf.present()) == 50
    shelf.take()
    assert len(shelf.present()) == 50
    shelf.stored(stored_below=101)
    assert len(shelf.present()) == 0


def test_what_is_absent_is_asked_for_once() -> None:
    archive = MemoryArchive(dict(stored_things(3)))
    shelf = shelf_over(archive, next_number=10)
    for _ in range(3):
        assert shelf.get(5) is None
        assert shelf.find("nobody") is None
        assert shelf.get(10) is None  # never given yet: no need to look
    assert archive.reads == 2
    assert shelf.is_at_hand(5)
    assert shelf.is_name_at_hand("nobody")
    shelf.add(Thing(10, "nobody"))
    found = shelf.find("nobody")
    assert found is not None
    assert found.number == 10


def test_what_was_read_before_a_checkpoint_was_stored_is_not_taken_over() -> None:
    """A thread may be slow: meanwhile what it read was loaded, changed, stored and forgotten."""
    archive = MemoryArchive(dict(stored_things(3)))
    shelf = shelf_over(archive, next_number=10)
    generation = shelf.generation
    outdated = archive.load(1)
    thing = shelf[1]
    thing.value = 7
    shelf.changed(thing)
    shelf.take()
    archive.things[1] = replace(thing)
    shelf.stored(stored_below=10)
    del thing

    assert not shelf.adopt(1, outdated, generation=generation)
    assert not shelf.adopt_absence("nobody", generation=generation)
    assert shelf[1].value == 7


@given(st.lists(st.integers(1, 20)))
def test_one_object_for_a_thing(numbers: list[int]) -> None:
    archive = MemoryArchive(dict(stored_things(20)))
    shelf = shelf_over(archive, resident_count_max=2, next_number=21)
    held: dict[int, Any] = {}
    for number in numbers:
        assert shelf[number] is held.setdefault(number, shelf[number])
        other = archive.load(number)
        assert shelf.adopt(number, other, generation=shelf.generation)
        assert shelf[number] is held[number]
