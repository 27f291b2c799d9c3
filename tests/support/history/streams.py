"""What the streams of a history hold, by all that was said of them together.

An event is placed where a read found it, or where its writer was told that it is. Everything else is a rule over these
places: no rule looks at more than one stream at a time, or at an event more than a few times.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .operations import NEVER, Operation
from .rules import Findings, Rule
from .transactions import Transaction, Transactions

Place = tuple[int, int]
"""Offset and index in a segment."""

BEGIN: Final[Place] = (-1, 0)
END: Final[Place] = (NEVER, 0)


@dataclass(slots=True, eq=False)
class Event:
    """One event, with all operations that wrote it.

    Attributes:
        called: when it was first sent.
        first, last: when it was first and last sent, and the how manieth of its call it was then.
        acked, acked_by: when somebody was first told that it is stored, or a part of its open transaction.
        is_refused: whether each operation that wrote it was refused.
        is_read: whether any read was given it.
        known, known_by: when it must have been visible: it was read, acknowledged, or something after it was.
    """

    name: str
    stream: str
    key: str | None
    writer: str | None
    sequence: int | None
    transaction: Transaction | None
    branch: str
    writes: list[Operation]
    called: int
    first: tuple[int, int]
    last: tuple[int, int]
    acked: int = NEVER
    acked_by: Operation | None = None
    is_refused: bool = True
    is_read: bool = False
    segment: "Segment | None" = None
    place: Place = BEGIN
    known: int = NEVER
    known_by: Operation | None = None

    @property
    def may_show(self) -> int:
        """When it can be visible at the earliest."""
        return self.called if self.transaction is None else max(self.called, self.transaction.commit_called)

    @property
    def must_show(self) -> int:
        """When it must be stored at the latest, by what was told of it; NEVER if nothing was."""
        return self.acked if self.transaction is None else max(self.acked, self.transaction.shown)

    def acknowledge(self, operation: Operation) -> None:
        """Count an answer that says that it is stored."""
        if operation.answered < self.acked:
            self.acked, self.acked_by = operation.answered, operation

    @property
    def operations(self) -> list[Operation]:
        """The operations that wrote it, and those that committed it."""
        return self.writes if self.transaction is None else [*self.writes, *self.transaction.operations]


@dataclass(slots=True, eq=False)
class Segment:
    """One segment.

    Attributes:
        events, places: what it holds, in order, once all of it is placed.
        covered: the ranges that were read.
    """

    stream: str
    name: str
    after: list["Segment"] = field(default_factory=list)
    before: list["Segment"] = field(default_factory=list)
    at: dict[Place, Event] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    covered: list[tuple[Place, Place]] = field(default_factory=list)
    rank: int = 0

    def count(self, place: Place) -> int:
        """Return how many of its events are before a place."""
        return bisect_left(self.places, place)


@dataclass(slots=True)
class Stream:
    """One stream."""

    name: str
    segments: dict[str, Segment] = field(default_factory=dict)
    truncations: list[Operation] = field(default_factory=list)
    forgets_since: int = NEVER

    def segment(self, name: str) -> Segment:
        """Return a segment; one that no history names has nothing before it."""
        return self.segments.setdefault(name, Segment(self.name, name))

    def replaced_by(self, cut: Iterable[str], *, until: Container[str] = ()) -> list[Segment]:
        """Return all segments that those of a cut replaced, back to those named `until`, these included."""
        cut = set(cut)
        found: dict[str, Segment] = {}
        todo = [self.segment(name) for name in cut if name not in until]
        while todo:
            for each in todo.pop().after:
                if each.name not in cut and each.name not in found:
                    found[each.name] = each
                    if each.name not in until:
                        todo.append(each)
        return list(found.values())

    @property
    def has_gap(self) -> bool:
        """Whether there is anything before the end of what was read that nobody read."""
        for segment in self.segments.values():
            reached = BEGIN
            for start, end in sorted(segment.covered):
                if start > reached:
                    return True
                reached = max(reached, end)
            if reached < END and (not segment.covered or segment.before):
                return True
        return False


@dataclass(slots=True)
class Streams:
    """All streams of a history, and their events by name."""

    by_name: dict[str, Stream] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)

    def stream(self, name: str) -> Stream:
        """Return a stream."""
        return self.by_name.setdefault(name, Stream(name))


def place_all(operations: list[Operation], transactions: Transactions, findings: Findings) -> Streams:
    """Return what the streams hold."""
    streams = Streams()
    for operation in operations:
        if operation.call == "write":
            _write(streams, operation, transactions)
    for operation in operations:
        match operation.call:
            case "history" if operation.answer == "history":
                _link(streams.stream(operation.fields["stream"]), operation.result["after"])
            case "truncate":
                stream = streams.stream(operation.fields["stream"])
                if "cut" in operation.fields:
                    stream.truncations.append(operation)
                else:
                    stream.forgets_since = min(stream.forgets_since, operation.called)
    _recognise(streams, [each for each in operations if each.call == "open" and each.answer == "opened"])
    placer = _Placer(streams, findings)
    for operation in operations:
        if operation.call == "write" and operation.answer == "stored":
            stream = operation.fields["stream"]
            for event, (segment, offset, index) in zip(
                operation.fields["events"], operation.result.get("places", ()), strict=False
            ):
                placer.put(event, stream, segment, (offset, index), operation)
        elif operation.call == "read":
            streams.stream(operation.fields["stream"])
            for _, took in operation.took:
                for segment, place, event in took:
                    placer.put(event, operation.fields["stream"], segment, place, operation)
    for stream in streams.by_name.values():
        for segment in stream.segments.values():
            segment.places = sorted(segment.at)
            segment.events = [segment.at[place] for place in segment.places]
        _rank(stream)
    return streams


def _write(streams: Streams, operation: Operation, transactions: Transactions) -> None:
    fields = operation.fields
    names = fields["events"]
    keys = fields.get("keys") or [None] * len(names)
    sequences = fields.get("sequences") or [None] * len(names)
    transaction = transactions.numbered(fields["txn"]) if "txn" in fields else None
    stream = streams.stream(fields["stream"]).name
    for index, (name, key, sequence) in enumerate(zip(names, keys, sequences, strict=True)):
        sent = operation.called, index
        event = streams.events.get(name)
        if event is None:
            event = streams.events[name] = Event(
                name, stream, key, fields.get("writer"), sequence, transaction, fields.get("branch", ""), [],
                operation.called, sent, sent,
            )  # fmt: skip
            if transaction is not None:
                transaction.events.append(event)
        event.writes.append(operation)
        event.last = sent
        if operation.answer == "stored":
            event.acknowledge(operation)
        if operation.answer != "refused":
            event.is_refused = False


def _recognise(streams: Streams, operations: list[Operation]) -> None:
    """Count as acknowledged what writers were told to be stored when they were opened."""
    by_writer: defaultdict[tuple[str, str | None], list[Event]] = defaultdict(list)
    for event in streams.events.values():
        if event.sequence is not None:
            by_writer[event.stream, event.writer].append(event)
    for events in by_writer.values():
        events.sort(key=_sequence, reverse=True)
    for operation in operations:
        for name in operation.result.get("stored", ()):
            if name in streams.events:
                streams.events[name].acknowledge(operation)
        rest = by_writer[operation.fields["stream"], operation.fields["writer"]]
        while rest and _sequence(rest[-1]) <= operation.result["through"]:
            event = rest.pop()
            if event.called < operation.answered and not event.is_refused:
                event.acknowledge(operation)


def _sequence(event: Event) -> int:
    assert event.sequence is not None
    return event.sequence


def _link(stream: Stream, after: Mapping[str, list[str]]) -> None:
    for name, names in after.items():
        segment = stream.segment(name)
        for each in map(stream.segment, names):
            if each not in segment.after:
                segment.after.append(each)
                each.before.append(segment)


def _rank(stream: Stream) -> None:
    """Number the segments so that each has a higher rank than those that it replaced."""
    missing = {name: len(segment.after) for name, segment in stream.segments.items()}
    ready = [segment for segment in stream.segments.values() if not segment.after]
    for rank, segment in enumerate(ready):
        segment.rank = rank
        for each in segment.before:
            missing[each.name] -= 1
            if not missing[each.name]:
                ready.append(each)


@dataclass(slots=True)
class _Placer:
    streams: Streams
    findings: Findings

    def put(self, name: str, stream: str, segment_name: str, place: Place, operation: Operation) -> None:
        event = self.streams.events.get(name)
        where = f"{stream} {segment_name} {place}"
        if event is None or event.stream != stream:
            self.findings.add(Rule.UNWRITTEN, f"{name} at {where}", [operation])
            return
        event.is_read |= operation.call == "read"
        segment = self.streams.stream(stream).segment(segment_name)
        if event.segment is None:
            other = segment.at.setdefault(place, event)
            if other is not event:
                self.findings.add(
                    Rule.PLACE, f"{other.name} and {name} at {where}", [*other.writes, *event.writes, operation]
                )
                return
            event.segment, event.place = segment, place
            if event.is_refused:
                self.findings.add(Rule.REFUSED, f"{name} at {where}", [*event.writes, operation])
        elif (event.segment, event.place) != (segment, place):
            first = f"{event.segment.name} {event.place}"
            self.findings.add(Rule.TWICE, f"{name} at {where} and at {first}", [*event.writes, operation])
