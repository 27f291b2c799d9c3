"""Whether a stream took events from its exclusive writer alone, and the writer was opened where it expected the end.

An event was stored after it was sent, and after all that lies before it in its segment was sent; and before it was
known to be there. If all of this is between the answer to the opening of an exclusive writer and the call of what may
have ended that, the event must be this writer's.

A writer that lost the stream to another one is fenced for good. So what was stored after its opening, and lies before
an event of its own, was stored while it had the stream: no matter who may have opened another one meanwhile.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from .operations import NEVER, Operation
from .reads import places_of
from .rules import Findings, Rule
from .streams import Event, Segment, Streams

REFUSED: Final = "refused"


@dataclass(frozen=True, slots=True)
class _Holding:
    """A stream in the hands of one writer.

    Attributes:
        since: when the opening was answered.
        released: when the writer or an operator may have given it back.
        until: when another writer may have had it, or it was given back.
        is_only: whether the writer was opened no other time, when it may have got the stream back from another one.
    """

    opening: Operation
    writer: str
    since: int
    released: int
    until: int
    is_only: bool


def check_exclusion(streams: Streams, operations: list[Operation], findings: Findings) -> None:
    """Report events of others in a stream that one writer had, and openings where the stream did not end."""
    by_stream: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if (operation.call == "release" or operation.fields.get("exclusive")) and operation.answer != REFUSED:
            by_stream[operation.fields["stream"]].append(operation)
    for name, several in by_stream.items():
        segments = streams.stream(name).segments
        holdings = _holdings(several)
        for segment in segments.values():
            stored_after = list(accumulate((event.called for event in segment.events), max))
            _check_events(segment, stored_after, holdings, findings)
            for holding in holdings:
                _check_end(segment, stored_after, holding.opening, findings)


def _holdings(operations: Sequence[Operation]) -> list[_Holding]:
    """Return what is known of who had the stream, by the time of the openings' answers."""
    releases: defaultdict[str | None, list[Operation]] = defaultdict(list)
    for each in operations:
        if each.call == "release":
            releases[each.fields.get("writer")].append(each)
    found: list[_Holding] = []
    openings = [each for each in operations if each.call == "open"]
    times = Counter(each.fields["writer"] for each in openings)
    others_answered = 0
    for number, opening in enumerate(openings):
        writer = opening.fields["writer"]
        if opening.answer == "opened":
            released = min(
                (each.called for each in [*releases[writer], *releases[None]] if each.answered > opening.called),
                default=NEVER,
            )
            taken = openings[number + 1].called if number + 1 < len(openings) else NEVER
            # One that overlaps with an older opening may be the first of the two.
            until = min(released, taken) if others_answered < opening.called else 0
            found.append(_Holding(opening, writer, opening.answered, released, until, times[writer] == 1))
        others_answered = max(others_answered, opening.answered)
    return sorted(found, key=lambda each: each.since)


def _check_events(
    segment: Segment, stored_after: Sequence[int], holdings: Sequence[_Holding], findings: Findings
) -> None:
    by_writer = {each.writer: each for each in holdings if each.is_only}
    since = [each.since for each in holdings]
    later: tuple[_Holding, Event, int] | None = None
    for index in range(len(segment.events) - 1, -1, -1):
        event, after = segment.events[index], stored_after[index]
        latest = bisect_left(since, after) - 1
        text = f"{segment.stream} {segment.name} {event.place}: {event.name} of {event.writer}"
        if later is not None and event.writer != later[0].writer and (after > later[0].since or index >= later[2]):
            holding, other, _ = later
            text = f"{text}, before {other.name} of {holding.writer}"
            findings.add(Rule.EXCLUSIVE, text, [holding.opening, *event.writes, *other.writes])
        elif latest >= 0 and event.writer != holdings[latest].writer and event.known < holdings[latest].until:
            holding = holdings[latest]
            text = f"{text}, {holding.writer} had the stream"
            findings.add(Rule.EXCLUSIVE, text, [holding.opening, *event.writes, event.known_by])
        own = by_writer.get(event.writer or "")
        if own is not None and own.since < event.called and event.known < own.released:
            later = own, event, _expected(segment, own.opening)


def _check_end(segment: Segment, stored_after: Sequence[int], opening: Operation, findings: Findings) -> None:
    end = _expected(segment, opening)
    if end < len(segment.events) and segment.events[end].known < opening.called:
        event = segment.events[end]
    elif 0 < end <= len(segment.events) and stored_after[end - 1] > opening.answered:
        event = segment.events[end - 1]
    else:
        return
    text = f"{event.name} at {event.place} was there before, or is there since, {opening.fields['expected']}"
    findings.add(Rule.CONDITION, f"{segment.stream} {segment.name}: {text}", [opening, *event.writes, event.known_by])


def _expected(segment: Segment, opening: Operation) -> int:
    """Return how many events the segment had when the writer was opened; more than it has if nothing is said of it."""
    place = places_of(opening.fields.get("expected", {})).get(segment.name)
    return len(segment.events) + 1 if place is None else segment.count(place)
