"""The proof: each event that was expected is there once, and those of a key are in their order."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import millrace

from .data import Reading


class Item(NamedTuple):
    """An event as it is compared: in the order of its key its timestamps ascend."""

    key: str
    timestamp_us: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What became of the events that were expected in a stream.

    Attributes:
        once: expected ones that are there exactly once.
        missing: expected ones that are not there.
        extra: those there that were not expected, or more than once; each time too often counts.
        misplaced: those there after a later one of their key.
    """

    stream: str
    expected: int
    once: int
    missing: int
    extra: int
    misplaced: int

    @property
    def holds(self) -> bool:
        """Whether every expected event is there once, in order, and nothing else is."""
        return self.once == self.expected and not (self.missing or self.extra or self.misplaced)


def prove(stream: str, expected: Sequence[Item], found: Iterable[Item]) -> Proof:
    """Compare what should be in a stream with what was found there, in the order in which it was read."""
    wanted = Counter(expected)
    seen: Counter[Item] = Counter()
    latest_us: dict[str, int] = {}
    misplaced = 0
    for item in found:
        seen[item] += 1
        before_us = latest_us.get(item.key, item.timestamp_us)
        misplaced += item.timestamp_us < before_us
        latest_us[item.key] = max(before_us, item.timestamp_us)
    return Proof(
        stream=stream,
        expected=len(expected),
        once=sum(seen[item] == count == 1 for item, count in wanted.items()),
        missing=(wanted - seen).total(),
        extra=(seen - wanted).total(),
        misplaced=misplaced,
    )


async def read(client: millrace.Client, stream: str, item_of: Callable[[millrace.Event], Item]) -> list[Item]:
    """Read a stream from its head to its tail."""
    async with client.reader(stream, start=millrace.HEAD, end=millrace.TAIL) as reader:
        return [item_of(event) async for event in reader]


def written_item(reading: Reading) -> Item:
    """Return what a reading should be in the stream that it was written to."""
    return Item(reading.key, reading.timestamp_us, reading.temp_f)


def converted_item(reading: Reading) -> Item:
    """Return what the query should make of a reading: the same sums in the same order, so the same number."""
    return Item(reading.key, reading.timestamp_us, (reading.temp_f - 32) * 5 / 9)


def item_with(field: str) -> Callable[[millrace.Event], Item]:
    """Return how to compare an event whose value is JSON with the number in this field."""
    return lambda event: Item(event.key or "", event.timestamp_us or 0, json.loads(event.value)[field])
