"""A small store that keeps all promises at once, and breaks the one that it is told to break.

It is the specification in a few lines, for tests of the checker. Each method is one instant: all of it happens at once.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from .bugs import Bug
from .owners import Owners, number_of
from .transactions import Claim

NEVER: Final = 1 << 62
SIZE: Final = 10
"""Bytes of an event."""
PLACES: Final = 1 << 10
EVENTS_BEFORE_LATE: Final = 20
"""Stored in a stream before the part of a transaction that is late."""

Cut = dict[str, list[int]]


@dataclass(slots=True)
class Part:
    """A segment: its range of places of keys, and its events by offset.

    Attributes:
        truncated_since: how many operations had been called when a truncation of its beginning was first answered.
    """

    name: str
    low: int
    high: int
    after: list[str]
    events: list[tuple[int, str]] = field(default_factory=list)
    length: int = 0
    start: int = 0
    truncated_since: int = NEVER
    read: int = 0
    is_gone: bool = False

    def append(self, event: str) -> int:
        offset = self.length
        self.events.append((offset, event))
        self.length += SIZE
        return offset


@dataclass(slots=True)
class Line:
    """A stream.

    Attributes:
        owner: the writer that has it to itself.
        fenced: the writers that lost it to another one.
        owned_since: how many operations had been called when it was told so, until it asks to give it back.
        is_locked: whether no other writer gets it any more.
    """

    name: str
    parts: dict[str, Part] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    owner: str | None = None
    fenced: set[str] = field(default_factory=set)
    owned_since: int = NEVER
    is_locked: bool = False

    def open_part(self, key: str | None) -> Part:
        place = 0 if key is None else random.Random(key).randrange(PLACES)
        return next(part for part in map(self.parts.__getitem__, self.opened) if part.low <= place < part.high)

    def tail(self) -> Cut:
        return {name: [self.parts[name].length, 0] for name in self.opened}


@dataclass(slots=True)
class Open:
    """A transaction that is not decided, or was.

    Attributes:
        claim: its producer.
    """

    number: int
    name: str
    claim: Claim | None = None
    state: str = "open"
    writes: list[tuple[str, str, str | None, str]] = field(default_factory=list)
    advances: list[tuple[str, Any, Any]] = field(default_factory=list)


@dataclass
class Reference:
    """The store.

    Attributes:
        bug: what it does wrong, once, after `bug_after` chances to.
        wronged: the operations of which one must be named, once it was done; "" if none can be.
        acked: how many operations had been called when an event was acknowledged, without its place.
        late: events of a committed transaction that are not stored yet, with stream and key.
        late_for: how many events were stored since the commit of these.
    """

    dice: random.Random
    bug: Bug | None = None
    bug_after: int = 2
    wronged: tuple[str, ...] = ()
    lines: dict[str, Line] = field(default_factory=dict)
    transactions: dict[int, Open] = field(default_factory=dict)
    registers: dict[str, Any] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    acked: dict[str, int] = field(default_factory=dict)
    commits_over_streams: int = 0
    late: list[tuple[str, str, str | None]] = field(default_factory=list)
    late_for: int = 0

    def __post_init__(self) -> None:
        self.owners = Owners(self.does)

    def does(self, bug: Bug, *operations: str) -> bool:
        """Return whether to do this wrong now."""
        if self.bug is not bug or self.wronged:
            return False
        self.bug_after -= 1
        if self.bug_after > 0:
            return False
        self.wronged = operations
        return True

    def create(self, name: str) -> None:
        self.lines[name] = Line(name, {"0": Part("0", 0, PLACES, [])}, ["0"])

    def append(self, operation: str, stream: str, events: list[str], key: str | None) -> list[list[Any]]:
        """Store events of one key, and return their places."""
        self._store_late()
        part = self.lines[stream].open_part(key)
        stored_order = events
        if len(events) > 1 and self.does(Bug.REVERSE_A_KEY if key else Bug.REVERSE_A_WRITER, operation):
            stored_order = [events[-1], *events[:-1]]
        if self.does(Bug.ACKNOWLEDGE_WITHOUT_STORING, operation):
            return []
        if key is not None and self.does(Bug.INVENT, ""):
            part.append(f"invented in {stream} {part.name}")
        if part.events and self._is_past(part, operation) and self.does(Bug.STORE_IN_THE_PAST, operation):
            part.length, before = part.events.pop()
            for event in [*events, before]:
                part.append(event)
            return []
        self.stored.update(events)
        offsets = {event: part.append(event) for event in stored_order}
        return [[part.name, offsets[event], 0] for event in events]

    def _store_late(self) -> None:
        """Store what is late, once enough was stored before it."""
        self.late_for += 1
        if self.late and self.late_for > EVENTS_BEFORE_LATE:
            for stream, event, key in self.late:
                self.lines[stream].open_part(key).append(event)
            self.late.clear()

    def _is_past(self, part: Part, operation: str) -> bool:
        """Return whether the last event was acknowledged before the call, and nobody was told where it is."""
        offset, event = part.events[-1]
        return part.read <= offset and self.acked.get(event, NEVER) < number_of(operation)

    def append_at(self, operation: str, stream: str, event: str, expected: int) -> int | list[list[Any]]:
        """Store an event if the length is the one expected; return its place, or the length."""
        part = self.lines[stream].parts["0"]
        if part.length == expected:
            if self.does(Bug.REFUSE_AT_THE_RIGHT_OFFSET, operation):
                return part.length
            return [["0", part.append(event), 0]]
        if part.length == expected + SIZE and self.does(Bug.LET_TWO_WIN_AN_OFFSET, operation):
            return [["0", expected, 0]]
        if self.does(Bug.IGNORE_THE_CONDITION, operation):
            return [["0", part.append(event), 0]]
        if self.does(Bug.STORE_WHAT_IS_REFUSED, operation):
            part.append(event)
        return part.length

    def own(self, operation: str, stream: str, writer: str, expected: Cut | None) -> bool:
        """Give a stream to a writer alone, if it ends where the writer expects it to; return whether it does."""
        line = self.lines[stream]
        if line.is_locked:
            return False
        if expected is not None and expected != line.tail():
            part = line.parts["0"]
            _, event = part.events[_index(part, expected["0"][0])]
            if self.acked.get(event, NEVER) >= number_of(operation) or not self.does(
                Bug.OPEN_AT_AN_OTHER_END, operation
            ):
                return False
        if line.owner is not None:
            line.fenced.add(line.owner)
        line.owner, line.owned_since = writer, NEVER
        return True

    def release(self, stream: str, writer: str) -> None:
        """Give a stream back."""
        line = self.lines[stream]
        if line.owner == writer:
            line.owner = None

    def append_alone(self, operation: str, stream: str, writer: str, event: str) -> list[list[Any]] | None:
        """Store an event, and return its place; None if the stream is another's."""
        line = self.lines[stream]
        if writer in line.fenced:
            return None
        if line.owner not in (None, writer):
            if line.owned_since >= number_of(operation) or not self.does(Bug.LET_AN_OTHER_WRITE, operation):
                return None
            line.is_locked = True
        return [["0", line.parts["0"].append(event), 0]]

    def scale(self, stream: str, sealed: list[str], borders: list[int]) -> None:
        """Replace neighbours by parts with these borders."""
        line = self.lines[stream]
        place = line.opened.index(sealed[0])
        low, high = line.parts[sealed[0]].low, line.parts[sealed[-1]].high
        edges = [low, *borders, high]
        made = []
        for start, end in pairwise(edges):
            part = Part(str(len(line.parts)), start, end, list(sealed))
            line.parts[part.name] = part
            made.append(part.name)
        line.opened[place : place + len(sealed)] = made

    def between(
        self, operation: str, stream: str, start: Cut | None, *, most: int
    ) -> tuple[list[tuple[str, int, int, str]], Cut]:
        """Return events after a cut, some or all, with the cut after them; predecessors first."""
        line = self.lines[stream]
        found: list[tuple[str, int, int, str]] = []
        place = {name: offsets[0] for name, offsets in start.items()} if start is not None else {}
        if start is None:
            place = {part.name: part.start for part in line.parts.values() if not part.after}
        ready = list(place)
        done: set[str] = set()
        followers: defaultdict[str, list[Part]] = defaultdict(list)
        for part in line.parts.values():
            for name in part.after:
                followers[name].append(part)
        while ready:
            name = ready.pop(0)
            part = line.parts[name]
            first = max(place[name], part.start)
            is_truncated = start is None and part.truncated_since < number_of(operation)
            if is_truncated and part.events and len(found) < most and self.does(Bug.SHOW_WHAT_IS_TRUNCATED, operation):
                first = 0
            for offset, event in part.events[_index(part, first) :]:
                if len(found) >= most:
                    break
                found.append((name, offset, 0, event))
                first = offset + SIZE
            place[name] = first
            part.read = max(part.read, first)
            if not followers[name] or first < part.length:
                continue
            done.add(name)
            for each in followers[name]:
                if each.name not in place and done >= set(each.after):
                    place[each.name] = 0
                    ready.append(each.name)
        followed = {each for name in place for each in line.parts[name].after}
        kept = {name: [offset, 0] for name, offset in place.items() if name not in followed}
        return found, kept

    def truncate(self, stream: str, cut: Cut, operation: str) -> None:
        line = self.lines[stream]
        todo = [before for name in cut for before in line.parts[name].after]
        while todo:
            part = line.parts[todo.pop()]
            if part.name not in cut and not part.is_gone:
                part.start, part.is_gone = part.length, True
                todo += part.after
        for name, (offset, _) in cut.items():
            part = line.parts[name]
            part.start = max(part.start, offset)
            if part.length > part.start + SIZE and self.does(Bug.TRUNCATE_TOO_MUCH, operation):
                part.start = part.length

    # --- transactions ---

    def begin(self, name: str) -> int:
        """Begin a transaction, and return its number."""
        number = len(self.transactions) + 1
        self.transactions[number] = Open(number, name)
        return number

    def prepare(self, number: int) -> str:
        """Prepare a transaction, and return its state."""
        transaction = self.transactions[number]
        if transaction.state == "open":
            transaction.state = "prepared"
        return transaction.state if transaction.state != "shown" else "refused"

    def write_in(self, number: int, write: tuple[str, str, str | None, str], operation: str) -> bool:
        """Take an event into a transaction; return whether that was still possible."""
        transaction = self.transactions[number]
        if transaction.state != "open":
            return False
        stream, event, key, branch = write
        transaction.writes.append(write)
        if branch != "dropped" and self.does(Bug.SHOW_UNCOMMITTED, operation):
            self.lines[stream].open_part(key).append(event)
            transaction.state = "shown"
        return True

    def advance(self, number: int, move: tuple[str, Any, Any]) -> bool:
        """Take the move of a register into a transaction; return whether that was still possible."""
        transaction = self.transactions[number]
        if transaction.state == "open":
            transaction.advances.append(move)
        return transaction.state == "open"

    def decide(self, number: int, branches: list[str] | None, operation: str) -> str | None:
        """Commit, and return the answer; None if it is lost."""
        transaction = self.transactions[number]
        if transaction.state == "shown":
            return "refused"
        if transaction.state in ("committed", "aborted"):
            if transaction.state == "committed" and self.does(Bug.TELL_TWO_OUTCOMES, operation):
                return "aborted"
            return "already" if transaction.state == "committed" else "aborted"
        for register, _, expected in transaction.advances:
            if self.registers.get(register) != expected:
                return "refused"
        if transaction.claim is not None:
            refusal = self.owners.commit(transaction.claim, operation)
            if refusal is not None:
                transaction.state = "aborted"
                return refusal
            if transaction.writes and self.does(Bug.TAKE_A_COMMIT_BACK, operation):
                transaction.state = "committed"
                return None
        transaction.state = "committed"
        writes = [write for write in transaction.writes if branches is None or write[3] in branches]
        is_over_streams = len({write[0] for write in writes}) > 1
        self.commits_over_streams += is_over_streams
        for register, value, _ in transaction.advances:
            self.registers[register] = value
        half = is_over_streams and self.does(Bug.COMMIT_HALF, operation)
        late = is_over_streams and self.does(Bug.COMMIT_A_PART_LATE, operation)
        self.late_for = 0 if late else self.late_for
        for stream, event, key, branch in transaction.writes:
            if branches is not None and branch not in branches and not self.does(Bug.COMMIT_AN_OTHER_BRANCH, operation):
                continue
            if late and stream == writes[0][0]:
                self.late.append((stream, event, key))
            elif event not in self.stored and not (half and stream == writes[0][0]):
                self.lines[stream].open_part(key).append(event)
        return "committed"

    def abort(self, number: int, operation: str) -> str:
        """Abort, and return the answer."""
        transaction = self.transactions[number]
        if transaction.state == "committed":
            return "committed"
        if transaction.state == "shown":
            return "refused"
        if transaction.state != "aborted":
            transaction.state = "aborted"
            if transaction.writes and self.does(Bug.STORE_WHAT_IS_ABORTED, operation):
                for stream, event, key, _ in transaction.writes:
                    self.lines[stream].open_part(key).append(event)
            if transaction.advances and self.does(Bug.MOVE_WITHOUT_COMMIT, operation):
                for register, value, _ in transaction.advances:
                    self.registers[register] = value
        return "aborted"

    def outcome(self, number: int, operation: str) -> str:
        """Return the state of a transaction."""
        transaction = self.transactions[number]
        if transaction.state == "prepared" and self.does(Bug.EXPIRE_A_PREPARED_ONE, operation):
            transaction.state = "aborted"
        return transaction.state if transaction.state != "shown" else "open"

    # --- producers ---

    def begin_as(self, claim: Claim, operation: str) -> int | str:
        """Begin a transaction of a producer, and return its number, or how it is refused."""
        refusal = self.owners.begin(claim, operation)
        if refusal is not None:
            return refusal
        number = self.begin("")
        self.transactions[number].claim = claim
        return number

    def move(self, register: str, value: Any, expected: Any, operation: str) -> bool:
        """Set a register if its value is the one expected; return whether it was."""
        if self.registers.get(register) != expected and not self.does(Bug.MOVE_WITHOUT_CONDITION, operation):
            return False
        if not self.does(Bug.FORGET_A_MOVE, operation):
            self.registers[register] = value
        return True


def _index(part: Part, offset: int) -> int:
    low, high = 0, len(part.events)
    while low < high:
        middle = (low + high) // 2
        if part.events[middle][0] < offset:
            low = middle + 1
        else:
            high = middle
    return low
