"""The sum at the end, apart from the checker of histories: each transaction whole and once, or not at all."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.crash.transactions.recorded import Tag

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
ENDS: Final[Mapping[str, str]] = {
    "committed": COMMITTED,
    "already": COMMITTED,
    "aborted": ABORTED,
    "repeated": ABORTED,
    "fenced": ABORTED,
    "held": ABORTED,
}
"""What each answer says of the end of a transaction."""


@dataclass
class Written:
    """What one life of a client wrote in one transaction."""

    number: int
    branch: str
    events: set[str] = field(default_factory=set)


@dataclass
class Books:
    """What the histories say that was written and told.

    Attributes:
        names: of all transactions that have one.
        told: the ends that anybody was told of a transaction, by its number.
        taken: the branches that an acknowledged commit or preparation of a transaction takes, by its number.
    """

    names: set[str] = field(default_factory=set)
    told: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    taken: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    written: dict[Tag, Written] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[str]) -> "Books":
        """Return the books of a history."""
        books = cls()
        records = [json.loads(line) for line in lines]
        calls = {record["id"]: record for record in records if "call" in record}
        for call in calls.values():
            books._note_call(call)
        for record in records:
            if "answer" in record:
                books._note_answer(calls[record["id"]], record)
        return books

    def check(self, streams: Mapping[str, Iterable[tuple[str, str]]]) -> Counter[str]:
        """Compare with what is in the streams; return how many transactions ended how.

        Args:
            streams: of each stream all events with their keys, in an order in which those of each key are.

        Raises:
            AssertionError: naming what is not whole, too much, or out of order.
        """
        for number, ends in self.told.items():
            assert len(ends) == 1, f"transaction {number} is told to be {ends}"
        seen = _events_by_tag(streams)
        assert seen.keys() <= self.written.keys(), f"nobody wrote {seen.keys() - self.written.keys()}"
        visible: defaultdict[int, list[Tag]] = defaultdict(list)
        for tag, events in seen.items():
            written = self.written[tag]
            assert len(set(events)) == len(events), f"{tag} is there twice"
            assert set(events) == written.events, f"{tag} is there with {len(events)} events of {len(written.events)}"
            visible[written.number].append(tag)
        counted: Counter[str] = Counter()
        for number in {written.number for written in self.written.values()}:
            counted[self._end_of(number, visible[number])] += 1
        return counted

    def _end_of(self, number: int, visible: list[Tag]) -> str:
        """Return how a transaction ended, which must fit to what is visible of it."""
        assert len(visible) <= 1, f"transaction {number} is there in several branches: {visible}"
        if not self.told[number]:
            return "untold, and there" if visible else "untold, and not there"
        (end,) = self.told[number]
        assert bool(visible) == (end == COMMITTED), f"transaction {number} is {end}, and there is {visible}"
        if visible and (taken := self.taken[number]):
            assert self.written[visible[0]].branch in taken, f"transaction {number} is there, and {visible[0]} was left"
        return end

    def _note_call(self, call: Mapping[str, Any]) -> None:
        if call["call"] == "begin" and "name" in call:
            self.names.add(call["name"])
        if call["call"] == "write" and "txn" in call:
            for event in call["events"]:
                found = Tag.parse(event)
                assert found is not None
                self.written.setdefault(found[0], Written(call["txn"], call["branch"])).events.add(event)

    def _note_answer(self, call: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        if "txn" in answer and (end := ENDS.get(answer["answer"])):
            self.told[answer["txn"]].add(end)
        if (call["call"], answer["answer"]) in {("commit", "committed"), ("prepare", "prepared")}:
            self.taken[call["txn"]] |= set(call.get("branches", ()))


def _events_by_tag(streams: Mapping[str, Iterable[tuple[str, str]]]) -> dict[Tag, list[str]]:
    """Return the events of each transaction; those of a key in a life must be in the order of their writes."""
    found: defaultdict[Tag, list[str]] = defaultdict(list)
    for stream, events in streams.items():
        latest: dict[tuple[str, int, str], tuple[int, int]] = {}
        for key, event in events:
            if (parsed := Tag.parse(event)) is None:
                continue
            tag, index, _ = parsed
            found[tag].append(event)
            before = latest.get((tag.client, tag.life, key), (-1, -1))
            assert before <= (tag.number, index), f"{stream}: {event} of key {key} is after {before}"
            latest[tag.client, tag.life, key] = tag.number, index
    return found
