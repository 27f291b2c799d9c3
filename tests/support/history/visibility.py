"""What was visible once stays so, at once in all its parts, and nothing is visible before it was asked for.

An answer shows events: those that it gives, those that it acknowledges, and those before the places that it tells. With
an event all before it in its segment is visible, with the first one of a segment all of the segments that it replaced,
and with one of a transaction all others of it. So for each segment there is a floor that only rises, and each event has
a time from which on everybody must see it. Every event passes the floor once.

A cut shows a transaction whole or not at all. Each event of a transaction gets a random weight, all weights of a
transaction together are 0, and so must be the sum of the weights before a cut. The sum of a segment is that of its
events and a share of the sums of those that it replaced: all of it goes to the first of the successors. A cut crosses
each line of descent once, so the shares of its segments are together all that is before them.
"""

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .operations import NEVER, Operation
from .reads import places_of
from .rules import Findings, Rule
from .streams import Event, Place, Segment, Stream, Streams
from .transactions import Transaction

WEIGHT_BITS = 62


@dataclass(frozen=True, slots=True)
class Seen:
    """The ends of streams, as an operation was told them.

    Attributes:
        is_whole: whether it has a place in each line of segments of its streams, at one instant.
    """

    operation: Operation
    tiles: tuple[tuple[Segment, Place], ...]
    is_whole: bool = True

    @property
    def streams(self) -> frozenset[str]:
        """The streams that it is about."""
        return frozenset(segment.stream for segment, _ in self.tiles)


@dataclass(slots=True)
class _Floor:
    """How many events of a segment were visible, and up to where it was known to reach, over time."""

    count: int = 0
    # Of each step, when it was, and how many events were visible after it.
    times: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ends: list[tuple[int, Place, Operation]] = field(default_factory=list)
    overtaken: int = NEVER
    overtaken_by: Operation | None = None


def ends_seen(streams: Streams, operations: list[Operation]) -> list[Seen]:
    """Return all that operations were told of the ends of streams."""
    found: list[Seen] = []
    for operation in operations:
        result = operation.result
        if operation.answer == "cut":
            cuts = result["cuts"]
        elif operation.answer == "read" and result.get("tail"):
            cuts = {operation.fields["stream"]: result["tail"]}
        elif operation.call == "write" and operation.answer == "refused" and "length" in result:
            segment = streams.stream(operation.fields["stream"]).segment(result["segment"])
            found.append(Seen(operation, ((segment, (result["length"], 0)),), is_whole=False))
            continue
        else:
            continue
        tiles = [
            (streams.stream(name).segment(segment), place)
            for name, cut in cuts.items()
            for segment, place in places_of(cut).items()
        ]
        found.append(Seen(operation, tuple(tiles)))
    return found


class Visibility:
    """The floor of each segment, raised by everything that was answered."""

    def __init__(
        self, streams: Streams, operations: list[Operation], reveals: list[tuple[int, Operation, Transaction]]
    ):
        """Raise the floors.

        Args:
            streams: what is stored.
            operations: all of the history.
            reveals: transactions that something beside their events shows to be committed, and since when.
        """
        self._streams = streams
        self._floors: defaultdict[Segment, _Floor] = defaultdict(_Floor)
        self._entered: set[Segment] = set()
        self.seen = ends_seen(streams, operations)
        steps: list[tuple[int, int, Operation, list[Event], Seen | Transaction | None]] = []
        for operation in operations:
            if operation.call == "write" and operation.answer == "stored" and "txn" not in operation.fields:
                events = [streams.events[name] for name in operation.fields["events"]]
                steps.append((operation.answered, len(steps), operation, events, None))
            for time, took in operation.took:
                events = [streams.events[name] for _, _, name in took if name in streams.events]
                steps.append((time, len(steps), operation, events, None))
        for seen in self.seen:
            steps.append((seen.operation.answered, len(steps), seen.operation, [], seen))
        for since, operation, transaction in reveals:
            steps.append((since, len(steps), operation, [], transaction))
        steps.sort(key=lambda step: step[:2])
        for time, _, operation, events, more in steps:
            todo = [(each.segment, each.segment.count(each.place) + 1) for each in events if each.segment is not None]
            if isinstance(more, Seen):
                todo += self._note_ends(more, time)
            elif more is not None:
                todo += self._reveal(more, time)
            self._raise(todo, time, operation)

    def _note_ends(self, seen: Seen, time: int) -> list[tuple[Segment, int]]:
        todo = []
        for segment, place in seen.tiles:
            ends = self._floors[segment].ends
            if not ends or place > ends[-1][1]:
                ends.append((time, place, seen.operation))
            todo.append((segment, segment.count(place)))
            # Its place says that there is such a segment, so those before it are complete.
            todo += [(each, len(each.events)) for each in segment.after]
        return todo

    @staticmethod
    def _reveal(transaction: Transaction, time: int) -> list[tuple[Segment, int]]:
        transaction.shown = min(transaction.shown, time)
        return [
            (each.segment, each.segment.count(each.place) + 1)
            for each in transaction.events
            if each.segment is not None
        ]

    def _raise(self, todo: list[tuple[Segment, int]], time: int, operation: Operation) -> None:
        while todo:
            segment, count = todo.pop()
            floor = self._floors[segment]
            if count <= floor.count and (count < len(segment.events) or segment in self._entered):
                continue
            for event in segment.events[floor.count : count]:
                event.known, event.known_by = time, operation
                if event.transaction is not None and event.transaction.shown == NEVER:
                    todo += self._reveal(event.transaction, time)
            if count > floor.count:
                floor.count = count
                floor.times.append(time)
                floor.counts.append(count)
            if floor.count and segment not in self._entered:
                self._entered.add(segment)
                for each in segment.after:
                    before = self._floors[each]
                    if time < before.overtaken:
                        before.overtaken, before.overtaken_by = time, operation
                    todo.append((each, len(each.events)))

    # --- the rules ---

    def check(self, findings: Findings) -> None:
        """Report what is visible too early, not yet, or in part."""
        for stream in self._streams.by_name.values():
            for segment in stream.segments.values():
                self._check_times(segment, findings)
        for seen in self.seen:
            self._check_seen(seen, findings)
        wholes: defaultdict[frozenset[str], list[Seen]] = defaultdict(list)
        for seen in self.seen:
            if seen.is_whole:
                wholes[seen.streams].append(seen)
        for names, whole in wholes.items():
            _check_order_of_cuts(self._streams, names, whole, findings)
            _check_atomic(self._streams, names, whole, findings)

    def _check_times(self, segment: Segment, findings: Findings) -> None:
        for event in segment.events:
            if event.known >= event.may_show:
                continue
            by = event.known_by
            is_given = by is not None and any(name == event.name for _, took in by.took for _, _, name in took)
            is_own = by is not None and by in event.operations
            text = f"{segment.stream} {segment.name} {event.place}: {event.name}"
            rule = Rule.EARLY if is_given or is_own or event.called < event.known else Rule.REAL_TIME
            findings.add(rule, text, [by, *event.operations])

    def _check_seen(self, seen: Seen, findings: Findings) -> None:
        called = seen.operation.called
        for segment, place in seen.tiles:
            floor = self._floors[segment]
            count = segment.count(place)
            step = bisect_left(floor.times, called)
            if step and floor.counts[step - 1] > count:
                event = segment.events[count]
                rule = Rule.LOST if event.must_show < called and not event.is_read else Rule.STALE
                text = f"{event.name} is at {event.place}, the end is told to be {place}"
                self._report(findings, rule, seen, segment, text, event.known_by, *event.operations)
                continue
            end = bisect_left(floor.ends, (called, (-1, 0)), key=lambda each: each[:2])
            if end and floor.ends[end - 1][1] > place:
                _, other, by = floor.ends[end - 1]
                self._report(findings, Rule.STALE, seen, segment, f"the end was {other}, is {place}", by)
            elif floor.overtaken < called:
                text = "it was replaced, and is told to be open"
                self._report(findings, Rule.STALE, seen, segment, text, floor.overtaken_by)

    @staticmethod
    def _report(
        findings: Findings, rule: Rule, seen: Seen, segment: Segment, text: str, *operations: Operation | None
    ) -> None:
        findings.add(rule, f"{segment.stream} {segment.name}: {text}", [*operations, seen.operation])


def _check_order_of_cuts(streams: Streams, names: Iterable[str], whole: list[Seen], findings: Findings) -> None:
    """Report two cuts of which each has something that the other has not."""
    before = _sums(streams, names, lambda event: 1)
    latest: dict[Segment, tuple[Place, Seen]] = {}
    for seen in sorted(whole, key=lambda seen: _sum_before(seen, before)):
        for segment, place in seen.tiles:
            other, by = latest.get(segment, (place, seen))
            if segment.count(other) > segment.count(place):
                text = f"{segment.stream} {segment.name}: {other} and {place}"
                findings.add(Rule.CUTS, text, [by.operation, seen.operation])
                return
            latest[segment] = place, seen


def _check_atomic(streams: Streams, names: frozenset[str], whole: list[Seen], findings: Findings) -> None:
    """Report cuts with a part of a transaction."""
    parts: defaultdict[Transaction, list[Event]] = defaultdict(list)
    for name in names:
        for segment in streams.stream(name).segments.values():
            for event in segment.events:
                if event.transaction is not None:
                    parts[event.transaction].append(event)
    if not parts:
        return
    dice = random.Random(0)  # the same verdict each time; whoever records does not know the weights
    weights: dict[Event, int] = {}
    for events in parts.values():
        some = [dice.getrandbits(WEIGHT_BITS) for _ in events[1:]]
        weights.update(zip(events, [*some, -sum(some)], strict=True))
    before = _sums(streams, names, lambda event: weights.get(event, 0))
    for seen in whole:
        if _sum_before(seen, before):
            _name_half(streams, names, seen, parts, findings)


def _name_half(
    streams: Streams,
    names: Iterable[str],
    seen: Seen,
    parts: dict[Transaction, list[Event]],
    findings: Findings,
) -> None:
    """Report the transactions that a cut has in part."""
    inside: dict[Segment, int] = {segment: segment.count(place) for segment, place in seen.tiles}
    for name in names:
        stream: Stream = streams.stream(name)
        tiles = [segment.name for segment, _ in seen.tiles if segment.stream == name]
        inside |= {each: len(each.events) for each in stream.replaced_by(dict.fromkeys(tiles))}
    for transaction, events in parts.items():
        shown = [
            each
            for each in events
            if each.segment is not None and each.segment.count(each.place) < inside.get(each.segment, 0)
        ]
        if 0 < len(shown) < len(events):
            hidden = next(each for each in events if each not in shown)
            text = f"transaction {transaction.number}: {shown[0].name} is before the cut, {hidden.name} is not"
            findings.add(Rule.ATOMIC, text, [seen.operation, *transaction.operations, *hidden.writes])
            return


def _sums(streams: Streams, names: Iterable[str], weight: Callable[[Event], int]) -> dict[Segment, list[int]]:
    """Return for each segment the sums before each of its places, with its share of what it replaced."""
    sums: dict[Segment, list[int]] = {}
    for name in names:
        segments = sorted(streams.stream(name).segments.values(), key=lambda segment: segment.rank)
        shares: defaultdict[Segment, int] = defaultdict(int)
        for segment in segments:
            total = shares[segment]
            sums[segment] = [total]
            for event in segment.events:
                total += weight(event)
                sums[segment].append(total)
            if segment.before:
                shares[segment.before[0]] += total
    return sums


def _sum_before(seen: Seen, sums: dict[Segment, list[int]]) -> int:
    return sum(sums[segment][segment.count(place)] for segment, place in seen.tiles)
