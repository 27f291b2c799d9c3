"""The order of events by writer, key and sequence."""

from collections import defaultdict
from collections.abc import Hashable

from .operations import NEVER, Operation
from .rules import Findings, Rule
from .streams import Event, Stream, Streams


def check_orders(streams: Streams, findings: Findings) -> None:
    """Report events of one writer, and key if they have one, that are not in the order of their writes."""
    groups: defaultdict[tuple[Hashable, ...], list[Event]] = defaultdict(list)
    has_gap = {name: stream.has_gap for name, stream in streams.by_name.items()}
    for event in streams.events.values():
        if event.writer is not None:
            part = _part(event, streams.by_name[event.stream])
            groups[event.stream, event.writer, event.transaction, event.branch, event.key, part].append(event)
    for events in groups.values():
        _check_order(events, findings)
        if events[0].transaction is None and not has_gap[events[0].stream]:
            _check_gaps(events, findings)


def _part(event: Event, stream: Stream) -> str:
    """Return in what, beside its key, an event has an order: without a key its segment."""
    if event.key is not None:
        return ""
    if event.segment is None and len(stream.segments) == 1:
        return next(iter(stream.segments))
    return event.segment.name if event.segment is not None else "nowhere"


def _check_order(events: list[Event], findings: Findings) -> None:
    placed = [(each.segment.rank, each.place, each) for each in events if each.segment is not None]
    placed.sort(key=lambda each: each[:2])
    latest: Event | None = None
    highest: Event | None = None
    for _, _, event in placed:
        if latest is not None and event.last < latest.first:
            rule = Rule.WRITER_ORDER if event.key is None else Rule.KEY_ORDER
            text = f"{latest.name} lies before {event.name}, which was written before it"
            findings.add(rule, f"{event.stream}: {text}", [*event.writes, *latest.writes])
        if latest is None or event.first > latest.first:
            latest = event
        if event.sequence is not None:
            if highest is not None and highest.sequence is not None and event.sequence <= highest.sequence:
                text = f"{highest.name} with sequence {highest.sequence} before {event.name} with {event.sequence}"
                findings.add(Rule.KEY_ORDER, f"{event.stream}: {text}", [*event.writes, *highest.writes])
            else:
                highest = event


def _check_gaps(events: list[Event], findings: Findings) -> None:
    """Report what is not stored, and something that its writer wrote after it is."""
    later: Event | None = None
    for event in sorted(events, key=lambda each: each.first, reverse=True):
        if event.segment is not None:
            later = event
        elif later is not None and not event.is_refused and event.acked == NEVER and event.last < later.first:
            text = f"{event.name} is not stored, {later.name} is"
            findings.add(Rule.GAP, f"{event.stream}: {text}", [*event.writes, *later.writes])


def check_sequences(streams: Streams, operations: list[Operation], findings: Findings) -> None:
    """Report sequences that are two events, and what writers were told of them when they were opened."""
    by_sequence: dict[tuple[str, str | None, int], Event] = {}
    for event in streams.events.values():
        if event.sequence is None:
            continue
        other = by_sequence.setdefault((event.stream, event.writer, event.sequence), event)
        if other is not event:
            text = f"{event.name} and {other.name} have sequence {event.sequence}"
            findings.add(Rule.SEQUENCE, text, [*event.writes, *other.writes])
    for operation in operations:
        for name in operation.result.get("missing", ()) if operation.call == "open" else ():
            if name not in streams.events:  # neither written, as far as its writer has come to say, nor read
                continue
            event = streams.events[name]
            if event.acked < operation.called:
                findings.add(Rule.SEQUENCE, f"{name} is acknowledged, and said to be missing",
                             [event.acked_by, operation])  # fmt: skip
            elif event.segment is not None and event.last[0] < operation.called:
                findings.add(Rule.SEQUENCE, f"{name} is said to be missing, and there", [*event.writes, operation])


def check_conditions(streams: Streams, operations: list[Operation], findings: Findings) -> None:
    """Report appends on condition of an offset that were stored elsewhere, or refused at the offset they named."""
    for operation in operations:
        expected = operation.fields.get("expected")
        if operation.call != "write" or expected is None:
            continue
        event = streams.events[operation.fields["events"][0]]
        if event.segment is not None and event.place[0] != expected and len(event.writes) == 1:
            findings.add(
                Rule.CONDITION, f"{event.name} is at {event.place}, expected at {expected}", [operation]
            )  # fmt: skip
        if operation.answer == "refused" and operation.result.get("length") == expected:
            findings.add(Rule.CONDITION, f"{event.name} is refused at the offset that it named", [operation])
