"""Reads give ranges of segments, whole and in order, and what was acknowledged is in them."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .operations import NEVER, Operation
from .rules import Findings, Rule
from .streams import BEGIN, END, Event, Place, Segment, Stream, Streams


@dataclass(slots=True)
class Truncations:
    """Up to where each segment of a stream was truncated, over time."""

    stream: Stream
    _asked: dict[str, list[tuple[int, Place]]] = field(default_factory=dict)
    _done: dict[str, list[tuple[int, Place]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._asked = self._steps([(each.called, each) for each in self.stream.truncations if each.answer != "refused"])
        self._done = self._steps(
            sorted((each.answered, each) for each in self.stream.truncations if each.answer == "done")
        )

    def asked(self, segment: Segment, time: int) -> Place:
        """Return up to where it may be truncated."""
        return END if self.stream.forgets_since < time else _at(self._asked, segment, time)

    def done(self, segment: Segment, time: int) -> Place:
        """Return up to where it must be truncated."""
        return _at(self._done, segment, time)

    def _steps(self, truncations: list[tuple[int, Operation]]) -> dict[str, list[tuple[int, Place]]]:
        steps: defaultdict[str, list[tuple[int, Place]]] = defaultdict(list)
        gone: set[str] = set()
        for time, operation in truncations:
            cut = places_of(operation.fields["cut"])
            for segment in self.stream.replaced_by(cut, until=gone):
                if segment.name in gone:
                    continue
                gone.add(segment.name)
                steps[segment.name].append((time, END))
            for name, (offset, _) in cut.items():
                before = steps[name][-1][1] if steps[name] else BEGIN
                steps[name].append((time, max(before, (offset, 0))))  # a block that the cut goes through stays
        return steps


def _at(steps: dict[str, list[tuple[int, Place]]], segment: Segment, time: int) -> Place:
    found = steps.get(segment.name, [])
    index = bisect_right(found, (time, BEGIN))
    return found[index - 1][1] if index else BEGIN


def places_of(cut: Mapping[str, Any]) -> dict[str, Place]:
    """Return a cut as it is recorded, with places to compare."""
    return {segment: (place[0], place[1]) for segment, place in cut.items()}


def check_reads(streams: Streams, operations: list[Operation], findings: Findings) -> None:
    """Report each read that is no range, and note what was covered."""
    truncations = {name: Truncations(stream) for name, stream in streams.by_name.items()}
    for operation in operations:
        if operation.call == "read" and (operation.took or operation.answer == "read"):
            name = operation.fields["stream"]
            _Read(streams.stream(name), operation, findings).check(truncations[name])


@dataclass(slots=True)
class _Read:
    stream: Stream
    operation: Operation
    findings: Findings

    def check(self, truncations: Truncations) -> None:
        operation = self.operation
        given: defaultdict[str, list[Place]] = defaultdict(list)
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        count = 0
        for _, took in operation.took:
            for name, place, event in took:
                found = self.stream.segment(name).at.get(place)
                if found is not None and found.name == event:  # whatever is not was reported where it was placed
                    given[name].append(place)
                    first.setdefault(name, count)
                    last[name] = count = count + 1
        start_cut = places_of(operation.fields.get("from") or {})
        to = places_of(operation.result.get("to") or {name: (p[-1][0], p[-1][1] + 1) for name, p in given.items()})
        ends = to | {each.name: END for each in self.stream.replaced_by(to, until=start_cut)}
        for name, places in given.items():
            if name not in ends:
                self._report(Rule.PREFIX, f"segment {name} is not between its start and its end", None)
            self._check_predecessors(self.stream.segment(name), first, last)
            if places[0] < truncations.done(self.stream.segment(name), operation.called):
                self._report(Rule.TRUNCATED, f"{name} {places[0]}", self.stream.segment(name).at[places[0]])
        for name, end in ends.items():
            start = start_cut.get(name, BEGIN)
            self._check_range(self.stream.segment(name), given.get(name, []), start, end, truncations)

    def _check_range(
        self, segment: Segment, given: list[Place], start: Place, end: Place, truncations: Truncations
    ) -> None:
        low, high = segment.count(start), segment.count(end)
        truncated = BEGIN
        if "from" not in self.operation.fields:
            truncated = truncations.asked(segment, self.operation.answered)
        segment.covered.append((start if truncated == BEGIN else given[0] if given else end, end))
        if given == segment.places[low:high]:
            return
        if any(one >= other for one, other in pairwise(given)):
            self._report(Rule.PREFIX, f"{segment.name} is not given in its order", None)
            return
        has = set(given)
        for place in given:
            if not start <= place < end:
                self._report(Rule.PREFIX, f"{place} of {segment.name} is not in [{start}, {end})", segment.at[place])
                return
        begin = given[0] if given else end
        for event in segment.events[low:high]:
            if event.place not in has and not event.place < min(begin, truncated):
                is_gone = event.place < begin and truncations.asked(segment, self.operation.answered) > BEGIN
                self._report_missing(event, segment, given, is_gone=is_gone)
                return

    def _report_missing(self, event: Event, segment: Segment, given: list[Place], *, is_gone: bool) -> None:
        more = (
            [each for each in self.stream.truncations if each.called < self.operation.answered][-1:] if is_gone else []
        )
        if is_gone:
            rule = Rule.TRUNCATED
        elif event.must_show < NEVER:
            rule = Rule.LOST
        elif given and event.place > given[-1] and "to" not in self.operation.result:
            rule = Rule.PREDECESSORS
        else:
            rule = Rule.PREFIX
        self._report(rule, f"{event.name} at {segment.name} {event.place} is missing", event, *more)

    def _check_predecessors(self, segment: Segment, first: dict[str, int], last: dict[str, int]) -> None:
        """Report what was given of a segment after the first event of one that replaced it. Empty ones hide nothing."""
        todo = list(segment.after)
        seen: set[str] = set()
        while todo:
            each = todo.pop()
            if each.name in last:
                if last[each.name] > first[segment.name] + 1:
                    self._report(Rule.PREDECESSORS, f"{segment.name} before the end of {each.name}", None)
                    return
            elif each.name not in seen:
                seen.add(each.name)
                todo += each.after

    def _report(self, rule: Rule, text: str, event: Event | None, *more: Operation) -> None:
        operations = event.operations if event is not None else []
        self.findings.add(rule, f"{self.stream.name}: {text}", [self.operation, *operations, *more])


def last_whole_reads(operations: list[Operation]) -> dict[str, Operation]:
    """Return of each stream the last read that came to its tail."""
    found: dict[str, Operation] = {}
    for operation in operations:
        if operation.call == "read" and (tail := places_of(operation.result.get("tail") or {})):
            to = places_of(operation.result["to"])
            if all(to.get(name, BEGIN) >= place for name, place in tail.items()):
                found[operation.fields["stream"]] = operation
    return found


def check_lost(streams: Streams, operations: list[Operation], findings: Findings) -> int:
    """Report what is acknowledged, and was not found although everything was read; return how many nobody read."""
    last_reads = last_whole_reads(operations)
    have_gaps = {name: stream.has_gap for name, stream in streams.by_name.items()}
    unread = 0
    for event in streams.events.values():
        if event.is_read or event.must_show == NEVER or event.acked == NEVER:
            continue
        transaction = event.transaction
        if transaction is not None and not transaction.needs(event.branch):
            continue
        read = last_reads.get(event.stream)
        if event.segment is not None or have_gaps[event.stream] or read is None or read.called < event.must_show:
            unread += 1  # if it was lost, the range or the tail of a read shows it, if there is one
            continue
        is_half = transaction is not None and any(each.segment is not None for each in transaction.events)
        rule = Rule.ATOMIC if is_half else Rule.LOST
        findings.add(rule, f"{event.stream}: {event.name}", [*event.operations, event.acked_by, read])
    return unread
