"""One order of all transactions, events and cuts that explains every answer: none exists if they precede one another.

A commit, an event outside of a transaction, and the tails of some streams at one moment each take place at one instant.
What was answered orders these instants:

    place        what lies first in a segment was stored first; a segment is complete before its successors begin
    cut          what is before a cut took place before it, the rest after it
    real time    what was answered took place before anything that was asked for later

Each of these is an edge of a graph. A cycle is a contradiction between answers each of which may be possible by itself:
two transactions that lie in one order in this stream and in the other order in that one, or two readers of different
streams of which each saw what the other had still to see. The graph has a few edges for each event, place and answer,
and is searched in linear time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from .digraph import Digraph, Edge
from .operations import NEVER, Operation
from .rules import Findings, Rule
from .streams import Event, Segment, Streams
from .transactions import Transaction
from .visibility import Seen

Instant = Transaction | Event | Operation
"""What takes place at one instant; the operation is that of a cut."""
Evidence = Event | Operation


class Reason(Enum):
    """Why one instant, or passage, precedes another."""

    PLACE = "lies before"
    BORDER = "a segment and its successor"
    BEFORE_CUT = "is before the cut"
    AFTER_CUT = "is not before the cut"
    ANSWERED = "was answered"
    CALLED = "was called"


class Why(NamedTuple):
    """A reason, with the events that lie so, or the operations that were called and answered so."""

    reason: Reason
    evidence: tuple[Evidence, ...] = ()


@dataclass(slots=True)
class _Interval:
    """Within what time an instant was: after a call, and before an answer."""

    called: int = -1
    answered: int = NEVER
    called_by: Operation | None = None
    answered_by: Operation | None = None

    def begin(self, operation: Operation) -> None:
        """Note an operation without which it could not be."""
        if operation.called > self.called:
            self.called, self.called_by = operation.called, operation

    def end(self, time: int, operation: Operation) -> None:
        """Note when an operation showed that it had been."""
        if time < self.answered:
            self.answered, self.answered_by = time, operation


class Precedence:
    """The graph of what took place before what."""

    def __init__(self, streams: Streams, operations: list[Operation], cuts: Iterable[Seen]) -> None:
        self._graph: Digraph[Why] = Digraph()
        self._instants: dict[int, Instant] = {}
        self._numbers: dict[Transaction | Event, int] = {}
        self._intervals: dict[int, _Interval] = {}
        # Of each segment a passage before all of its events, and one after all of them.
        self._borders: dict[Segment, tuple[int, int]] = {}
        segments = [segment for stream in streams.by_name.values() for segment in stream.segments.values()]
        for segment in segments:
            self._borders[segment] = self._graph.add_node(is_passage=True), self._graph.add_node(is_passage=True)
        for segment in segments:
            self._add_segment(segment)
        for operation in operations:
            for time, took in operation.took:
                for _, _, name in took:
                    event = streams.events.get(name)
                    if event is not None and event.segment is not None:
                        self._intervals[self._number(event)].end(time, operation)
        for cut in cuts:
            self._add_cut(cut)
        self._add_real_time()

    def check(self, findings: Findings) -> None:
        """Report a cycle for each set of instants that precede one another."""
        for cycle in self._graph.cycles():
            steps = list(self._steps(cycle))
            text = "; ".join(step.text for step in steps)
            findings.add(Rule.ORDER, text, [each for step in steps for each in step.operations])

    # --- nodes ---

    def _add(self, instant: Instant, interval: _Interval) -> int:
        number = self._graph.add_node()
        self._instants[number] = instant
        self._intervals[number] = interval
        return number

    def _number(self, event: Event) -> int:
        """Return the node at whose instant an event was stored: that of its transaction, or its own."""
        instant = event.transaction or event
        number = self._numbers.get(instant)
        if number is None:
            interval = _interval_of_commit(instant) if isinstance(instant, Transaction) else _Interval()
            number = self._numbers[instant] = self._add(instant, interval)
        return number

    # --- edges ---

    def _add_segment(self, segment: Segment) -> None:
        first, last = self._borders[segment]
        for successor in segment.before:
            self._graph.add_edge(last, self._borders[successor][0], Why(Reason.BORDER))
        for event in segment.events:
            interval = self._intervals[self._number(event)]
            interval.begin(min(event.writes, key=lambda write: write.called))
            if event.transaction is None and event.acked_by is not None:
                interval.end(event.acked, event.acked_by)
        if not segment.events:
            self._graph.add_edge(first, last, Why(Reason.BORDER))
            return
        self._graph.add_edge(first, self._number(segment.events[0]), Why(Reason.BORDER, (segment.events[0],)))
        for event, following in pairwise(segment.events):
            before, after = self._number(event), self._number(following)
            if before != after:
                self._graph.add_edge(before, after, Why(Reason.PLACE, (event, following)))
        self._graph.add_edge(self._number(segment.events[-1]), last, Why(Reason.BORDER, (segment.events[-1],)))

    def _add_cut(self, seen: Seen) -> None:
        operation = seen.operation
        number = self._add(operation, _Interval(operation.called, operation.answered, operation, operation))
        for segment, place in seen.tiles:
            count = segment.count(place)
            first, last = self._borders[segment]
            if count:
                event = segment.events[count - 1]
                self._graph.add_edge(self._number(event), number, Why(Reason.BEFORE_CUT, (event, operation)))
            else:
                self._graph.add_edge(first, number, Why(Reason.BORDER, (operation,)))
            if count < len(segment.events):
                event = segment.events[count]
                self._graph.add_edge(number, self._number(event), Why(Reason.AFTER_CUT, (operation, event)))
            elif seen.is_whole:
                self._graph.add_edge(number, last, Why(Reason.BORDER, (operation,)))

    def _add_real_time(self) -> None:
        """Add a passage for each answer, in a chain: an instant follows the last one before its call."""
        ends = sorted((each.answered, number) for number, each in self._intervals.items() if each.answered_by)
        starts = sorted((each.called, number) for number, each in self._intervals.items() if each.called_by)
        latest: int | None = None
        index = 0
        for called, number in starts:
            while index < len(ends) and ends[index][0] < called:
                ended = ends[index][1]
                passage = self._graph.add_node(is_passage=True)
                if latest is not None:
                    self._graph.add_edge(latest, passage, Why(Reason.ANSWERED))
                answered_by = self._intervals[ended].answered_by
                assert answered_by is not None
                self._graph.add_edge(ended, passage, Why(Reason.ANSWERED, (answered_by,)))
                latest = passage
                index += 1
            called_by = self._intervals[number].called_by
            if latest is not None and called_by is not None:
                self._graph.add_edge(latest, number, Why(Reason.CALLED, (called_by,)))

    # --- the report ---

    def _steps(self, cycle: list[tuple[int, Edge[Why]]]) -> "Iterator[_Step]":
        """Yield what leads from each instant of a cycle to the next one, over any passages between."""
        start = next((index for index, (source, _) in enumerate(cycle) if source in self._instants), None)
        if start is None:
            yield _Step("segments are their own successors", [])
            return
        before, whys = self._instants[cycle[start][0]], []
        for _, edge in [*cycle[start:], *cycle[:start]]:
            whys.append(edge.reason)
            if edge.target in self._instants:
                after = self._instants[edge.target]
                yield _step(before, after, whys)
                before, whys = after, []


def _interval_of_commit(transaction: Transaction) -> _Interval:
    interval = _Interval()
    asked = [each for each in transaction.commits if each.called == transaction.commit_called]
    if asked:
        interval.begin(asked[0])
    if transaction.committed_by is not None:
        interval.end(transaction.committed, transaction.committed_by)
    return interval


@dataclass(frozen=True, slots=True)
class _Step:
    """What one instant precedes, in words, and the operations that show it."""

    text: str
    operations: list[Operation] = field(default_factory=list)


def _step(before: Instant, after: Instant, whys: list[Why]) -> _Step:
    evidence = [each for why in whys for each in why.evidence]
    operations = [
        *(each for each in evidence if isinstance(each, Operation)),
        *(each for event in evidence if isinstance(event, Event) for each in event.operations),
    ]
    reason = whys[0].reason
    one, other = evidence[0], evidence[-1]
    if reason is Reason.ANSWERED and isinstance(one, Operation) and isinstance(other, Operation):
        how = f"{one.id} was answered before {other.id} was called"
    elif reason is Reason.BORDER:
        how = f"{_named(one)} is in a segment that was replaced by that of {_named(other)}"
    elif reason is Reason.PLACE:
        how = f"{_named(one)} lies before {_named(other)}"
    elif reason is Reason.BEFORE_CUT:
        how = f"{_named(one)} is before the cut"
    else:
        how = f"{_named(other)} is after the cut"
    return _Step(f"{_shown(before)} before {_shown(after)}, as {how}", operations)


def _named(evidence: Evidence) -> str:
    if isinstance(evidence, Operation):
        return f"the end in {evidence.id}"
    segment = evidence.segment.name if evidence.segment is not None else "nowhere"
    return f"{evidence.name} at {evidence.stream} {segment} {evidence.place}"


def _shown(instant: Instant) -> str:
    if isinstance(instant, Transaction):
        return f"transaction {instant.number}"
    return f"event {instant.name}" if isinstance(instant, Event) else f"cut {instant.id}"
