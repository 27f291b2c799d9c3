"""Right histories of any length, of clients that are killed and lose their connections, and wrong ones on demand.

The clients are generators. Each step that they yield is one instant of the store, which comes later; the answer comes
later still. A client that is killed in between hears nothing more, and what it asked for may happen or not.
"""

import json
import random
from collections.abc import Callable, Generator, Iterator
from typing import Any

from .bugs import Bug
from .owners import ALONE
from .reference import NEVER, SIZE, Cut, Reference
from .transactions import Claim

Client = Generator[Callable[[], Any], Any, None]

KEYS = [f"k{number}" for number in range(12)]
SCALED = ("a", "b")
PARTS_MAX = 6
KILLED = 0.01
SCALED_EACH_TIME = 0.3
FOLLOWED = "a follower"
AFTERMATH = 1000
"""Operations after something was done wrong, which show it."""


class History:
    """The making of one history: of so many operations, or of some more than it took to do something wrong."""

    def __init__(self, *, seed: int, operations: int, bug: Bug | None = None) -> None:
        self.dice = random.Random(seed)
        self.store = Reference(self.dice, bug)
        self.lines: list[str] = []
        self._operations = operations
        self._count = 0
        self._events = 0
        self._lives = 0
        self._places: dict[str, Cut] = {}
        self._sent: dict[str, int] = {}
        for name in (*SCALED, "ledger", "log", "account"):
            self.store.create(name)
        self._roles: list[Callable[[str], Client]] = [
            *[self._plain] * 3, *[self._conditional] * 3, *[self._logging] * 2, self._sequenced, self._sequenced,
            *[self._transactional] * 3, self._rival, self._looking, self._looking,
            self._following, self._from_the_head, self._scaling, self._truncating, *[self._moving] * 2,
            *[self._booking] * 2, self._visiting, *[self._querying] * 3, self._querying_alone,
        ]  # fmt: skip

    def make(self) -> list[str]:
        """Return the lines of the history."""
        names = [f"{role.__name__.strip('_')}{number}" for number, role in enumerate(self._roles)]
        clients = [role(name) for role, name in zip(self._roles, names, strict=True)]
        waiting: list[Callable[[], Any] | None] = [next(client) for client in clients]
        answers: list[Any] = [None] * len(clients)
        end = self._operations
        while self._count < end:
            chosen = self.dice.randrange(len(clients))
            step = waiting[chosen]
            chance = self.dice.random()
            if chance < KILLED and not self.store.wronged:  # what is done wrong must be told
                if chance < KILLED / 2 and step is not None:
                    step()  # it happens, and nobody hears of it
                clients[chosen].close()
                clients[chosen] = self._roles[chosen](names[chosen])
                waiting[chosen] = next(clients[chosen])
            elif step is not None:
                answers[chosen], waiting[chosen] = step(), None
            else:
                waiting[chosen] = clients[chosen].send(answers[chosen])
            if self.store.wronged:
                end = min(end, self._count + AFTERMATH)
        self._end()
        return self.lines

    # --- lines ---

    def _line(self, **fields: Any) -> None:
        self.lines.append(json.dumps({"at": len(self.lines), **fields}))

    def _call(self, client: str, call: str, **fields: Any) -> str:
        self._count += 1
        self._line(id=f"h.{self._count}", client=client, call=call, **fields)
        return f"h.{self._count}"

    def _answer(self, operation: str, answer: str, **fields: Any) -> None:
        self._line(id=operation, answer=answer, **fields)

    def _new(self, count: int) -> list[str]:
        self._events += count
        return [f"e{self._events - each}" for each in reversed(range(count))]

    def _life(self, name: str) -> str:
        self._lives += 1
        return f"{name}/{self._lives}"

    # --- those who write ---

    def _plain(self, name: str) -> Client:
        """Write events of keys, one call after the other."""
        writer = self._life(name)
        while True:
            stream, key, events = self.dice.choice(SCALED), self.dice.choice(KEYS), self._new(self.dice.randint(1, 3))
            keys = [key] * len(events)
            call = self._call(name, "write", stream=stream, writer=writer, events=events, keys=keys)
            places = yield lambda: self.store.append(call, stream, events, key)  # noqa: B023
            told = {"places": places} if len(places) == len(events) and self.dice.random() < 0.7 else {}
            self._answer(call, "stored", **told)
            if not told:
                self.store.acked.update(dict.fromkeys(events, self._count))

    def _conditional(self, name: str) -> Client:
        """Append to the ledger at the offset that it knows."""
        length = 0
        while True:
            (event,) = self._new(1)
            call = self._call(name, "write", stream="ledger", events=[event], segment="0", expected=length)
            outcome = yield lambda: self.store.append_at(call, "ledger", event, length)  # noqa: B023
            if isinstance(outcome, int):
                self._answer(call, "refused", segment="0", length=outcome)
                length = outcome
            else:
                self._answer(call, "stored", places=outcome)
                length += SIZE

    def _logging(self, name: str) -> Client:
        """Write without keys, several calls at a time on one connection."""
        writer = self._life(name)
        while True:
            several = [self._new(self.dice.randint(1, 3)) for _ in range(3)]
            calls = [self._call(name, "write", stream="log", writer=writer, events=events) for events in several]
            answers = []
            for call, events in zip(calls, several, strict=True):
                if call == calls[0] and self.store.does(Bug.SKIP_ONE_OF_A_WRITER, call):
                    for other, more in zip(calls[1:], several[1:], strict=True):
                        yield lambda: self.store.append(other, "log", more, None)  # noqa: B023
                    writer = self._life(name)
                    break
                answers.append((yield lambda: self.store.append(call, "log", events, None)))  # noqa: B023
            for call, places in zip(calls, answers, strict=False):
                self._answer(call, "stored", places=places)

    def _sequenced(self, name: str) -> Client:
        """Open a writer, and continue after what is stored."""
        opening = self._call(name, "open", stream="a", writer=name)
        sent = range(self._sent.get(name, 0))
        stored = yield lambda: {each for each in sent if f"{name}:{each}" in self.store.stored}
        if stored and self.store.does(Bug.FORGET_A_SEQUENCE, opening):
            stored.remove(min(stored))
        through = next((each for each in sent if each not in stored), len(sent)) - 1
        self._answer(opening, "opened", through=through, stored=[f"{name}:{each}" for each in stored][-5:],
                     missing=[f"{name}:{each}" for each in sent if each not in stored])  # fmt: skip
        sequence = max(through, 0)
        while True:
            if sequence not in stored or self.store.does(Bug.STORE_A_RETRY_AGAIN):
                event, key = f"{name}:{sequence}", KEYS[sequence % len(KEYS)]
                self._sent[name] = max(sequence + 1, len(sent))
                call = self._call(name, "write", stream="a", writer=name, events=[event], keys=[key],
                                  sequences=[sequence])  # fmt: skip
                if event in self.store.stored:
                    self.store.wronged = self.store.wronged or (call,)
                places = yield lambda: self.store.append(call, "a", [event], key)  # noqa: B023
                self._answer(call, "stored", places=places)
            sequence += 1

    def _booking(self, name: str) -> Client:
        """Have a stream to itself, often on condition of its end, write some events, and mostly give it back."""
        line = self.store.lines["account"]
        while True:
            writer = self._life(name)
            condition: dict[str, Any] = {}
            if self.dice.random() < 0.8:
                condition["expected"] = yield line.tail
            opening = self._call(name, "open", stream="account", writer=writer, exclusive=True, **condition)
            if not (yield lambda: self.store.own(opening, "account", writer, condition.get("expected"))):  # noqa: B023
                self._answer(opening, "refused")
                continue
            self._answer(opening, "opened", through=-1)
            if line.owner == writer:
                line.owned_since = self._count
            try:
                is_owner = True
                while is_owner and (line.is_locked or self.dice.random() < 0.7):
                    is_owner = yield from self._write_alone(name, writer)
            finally:
                if line.owner == writer:
                    line.owned_since = NEVER
            if is_owner and self.dice.random() < 0.8:
                call = self._call(name, "release", stream="account", writer=writer)
                yield lambda: self.store.release("account", writer)  # noqa: B023
                self._answer(call, "done")

    def _visiting(self, name: str) -> Client:
        """Write to a stream that others have to themselves now and then."""
        while True:
            writer = self._life(name)
            while (yield from self._write_alone(name, writer)):
                pass

    def _write_alone(self, name: str, writer: str) -> Generator[Callable[[], Any], Any, bool]:
        (event,) = self._new(1)
        call = self._call(name, "write", stream="account", writer=writer, events=[event])
        places = yield lambda: self.store.append_alone(call, "account", writer, event)
        if places is None:
            self._answer(call, "refused")
            return False
        self._answer(call, "stored", places=places)
        self.store.acked[event] = self._count
        return True

    # --- transactions ---

    def _transactional(self, name: str) -> Client:
        """Begin, write to two streams, move a cursor, and commit or not."""
        for turn in self._turns(name):
            begin = self._call(name, "begin", name=turn)
            number = yield lambda: self.store.begin(turn)  # noqa: B023
            self._answer(begin, "begun", txn=number)
            for _ in range(self.dice.randint(1, 4)):
                yield from self._write_in(name, number)
            has_cursor = self.dice.random() < 0.4
            if has_cursor:
                register, value = f"cursor {self.dice.randrange(3)}", turn
                expected = yield from self._look(name, register)
                call = self._call(name, "advance", txn=number, register=register, value=value, expected=expected)
                is_taken = yield lambda: self.store.advance(number, (register, value, expected))  # noqa: B023
                self._answer(call, "done" if is_taken else "refused")
            elif self.dice.random() < 0.6:
                call = self._call(name, "prepare", txn=number, branches=["x", ""])
                answer = yield lambda: self.store.prepare(number)  # noqa: B023
                self._answer(call, answer, txn=number)
            if self.dice.random() < 0.2:
                yield from self._abort(name, number)
            else:
                yield from self._commit(name, number)

    def _turns(self, name: str) -> Iterator[str]:
        while True:
            yield self._life(name)

    def _write_in(self, name: str, number: int) -> Client:
        stream, key = self.dice.choice(SCALED), self.dice.choice(KEYS)
        branch = self.dice.choice(["", "x", "dropped"])
        (event,) = self._new(1)
        call = self._call(name, "write", stream=stream, events=[event], keys=[key], txn=number, branch=branch)
        is_stored = yield lambda: self.store.write_in(number, (stream, event, key, branch), call)
        self._answer(call, "stored" if is_stored else "refused")

    def _commit(self, name: str, number: int) -> Generator[Callable[[], Any], Any, str | None]:
        call = self._call(name, "commit", txn=number, branches=["", "x"])
        answer: str | None = yield lambda: self.store.decide(number, ["", "x"], call)
        if answer is not None:
            self._answer(call, answer, txn=number)
        return answer

    def _abort(self, name: str, number: int) -> Client:
        call = self._call(name, "abort", txn=number)
        answer = yield lambda: self.store.abort(number, call)
        self._answer(call, answer, txn=number)

    def _rival(self, name: str) -> Client:
        """Commit, abort, and ask for transactions of others."""
        while True:
            recent = list(self.store.transactions)[-5:]
            number = self.dice.choice(recent) if recent else self.store.begin("nobody's")
            chance = self.dice.random()
            if chance < 0.2:
                yield from self._commit(name, number)
            elif chance < 0.25:
                yield from self._abort(name, number)
            else:
                call = self._call(name, "outcome", txn=number)
                state = yield lambda: self.store.outcome(number, call)  # noqa: B023
                self._answer(call, state, txn=number)

    # --- producers ---

    def _querying(self, name: str, writer: str = "query") -> Client:
        """Commit batches as a producer that others are, too: as its holder, or as another one who takes it away."""
        while True:
            call = self._call(name, "producer", writer=writer)
            told, known = yield lambda: self.store.owners.look(writer, call)  # noqa: B023
            self._answer(call, told, **known)
            run = self._life(name)
            holder = known.get("holder", "first")
            last = known.get("last")
            sequence = 0 if last is None else max(0, last + 1 - self.dice.choice([0, 0, 1, 2]))
            takes_away = writer != ALONE and self.dice.random() < 0.1
            if takes_away:
                holder, sequence = run, 0
            claim = Claim(writer, holder, run, sequence)
            is_over = False
            while not is_over:
                answer = yield from self._batch(name, claim)
                is_over = answer is None or self.dice.random() < (0.05 if answer == "committed" else 0.3)
                if answer in ("committed", "repeated"):
                    claim = claim._replace(sequence=claim.sequence + 1)
                elif answer == "held" and takes_away:
                    takes_away = is_over = False
                    call = self._call(name, "reset", writer=writer, holder=holder)
                    told = yield lambda: self.store.owners.reset(writer, holder)  # noqa: B023
                    self._answer(call, told)
                elif writer == ALONE and answer is not None:
                    is_over = False  # who is refused wrongly tries again

    def _querying_alone(self, name: str) -> Client:
        return self._querying(name, ALONE)

    def _batch(self, name: str, claim: Claim) -> Generator[Callable[[], Any], Any, str | None]:
        """Commit a batch, now and then by two transactions, as if the outcome of the first one had been lost."""
        numbers: list[int] = []
        for _ in range(self.dice.choice([1, 1, 1, 2])):
            call = self._call(name, "begin", producer=claim)
            begun = yield lambda: self.store.begin_as(claim, call)  # noqa: B023
            if isinstance(begun, str):
                self._answer(call, begun)
                return begun
            self._answer(call, "begun", txn=begun)
            self.store.owners.note_told(claim.writer, claim.run, self._count)
            for _ in range(self.dice.randint(1, 3)):
                yield from self._write_in(name, begun)
            numbers.append(begun)
        answer: str | None = None
        for number in numbers:
            answer = yield from self._commit(name, number)
            if answer is None or (answer == "committed" and self.dice.random() < 0.7):
                break
        return answer

    # --- those who look ---

    def _looking(self, name: str) -> Client:
        """Take cuts over two streams, two at the same time."""
        a, b = SCALED
        told: list[dict[str, Cut]] = []
        while True:
            first, second = (self._call(name, "cut", streams=list(SCALED)) for _ in range(2))
            one, commits = yield self._tails
            two, more = yield self._tails
            if one[a] != two[a] and one[b] != two[b]:
                if self.store.does(Bug.CUT_ACROSS, first, second):
                    one, two = {a: one[a], b: two[b]}, {a: two[a], b: one[b]}
                elif commits < more and self.store.does(Bug.CUT_THROUGH_A_TRANSACTION, first):
                    one = {a: one[a], b: two[b]}
            if len(told) > 1 and told[-2][a] != told[-1][a] and self.store.does(Bug.TELL_AN_OLD_END, first):
                one = told[-2]
            self._answer(first, "cut", cuts=one)
            self._answer(second, "cut", cuts=two)
            told.append(two)

    def _tails(self) -> tuple[dict[str, Cut], int]:
        return {stream: self.store.lines[stream].tail() for stream in SCALED}, self.store.commits_over_streams

    def _following(self, name: str) -> Client:
        """Read each stream in turn, from where reading stopped, to some place or to the end."""
        while True:
            for stream in SCALED:
                start = self._places.get(f"{stream} follower")
                most = self.dice.choice([1, 10, NEVER])
                call = self._call(name, "read", stream=stream, **({"from": start} if start else {}))
                tail, (events, end) = yield lambda: (
                    self.store.lines[stream].tail(),  # noqa: B023
                    self.store.between(call, stream, start, most=most),  # noqa: B023
                )
                events = self._misread(events, stream, call)
                half = self.dice.randint(0, len(events))
                for part in filter(None, (events[:half], events[half:])):
                    self._line(id=call, took=part)
                self._answer(call, "read", to=end, tail=tail)
                self._places[f"{stream} follower"] = end

    def _misread(
        self, events: list[tuple[str, int, int, str]], stream: str, call: str
    ) -> list[tuple[str, int, int, str]]:
        same = [
            each for each, other in zip(range(len(events)), events[1:], strict=False) if events[each][0] == other[0]
        ]
        if same and self.store.does(Bug.READ_OUT_OF_ORDER, call):
            at = same[-1]
            return [*events[:at], events[at + 1], events[at], *events[at + 2 :]]
        parts = self.store.lines[stream].parts
        first, last = (events[0][0], events[-1][0]) if events else ("0", "0")
        if first in parts[last].after and self.store.does(Bug.READ_SUCCESSORS_FIRST, call):
            return [each for each in events if each[0] == last] + [each for each in events if each[0] != last]
        return events

    def _from_the_head(self, name: str) -> Client:
        """Read the beginning of a stream, and the cursors."""
        while True:
            for _ in range(self.dice.randint(1, 10)):
                yield from self._look(name, f"cursor {self.dice.randrange(3)}")
            stream = self.dice.choice(SCALED)
            call = self._call(name, "read", stream=stream)
            events, end = yield lambda: self.store.between(call, stream, None, most=20)  # noqa: B023
            if events:
                self._line(id=call, took=events)
            self._answer(call, "read", to=end)

    def _look(self, name: str, register: str) -> Generator[Callable[[], Any], Any, Any]:
        call = self._call(name, "look", register=register)
        value = yield lambda: self.store.registers.get(register)
        self._answer(call, "value", value=value)
        return value

    # --- those who disturb ---

    def _moving(self, name: str) -> Client:
        """Set a register on condition of the value that was seen last."""
        known = None
        while True:
            if self.dice.random() < 0.3:
                known = yield from self._look(name, "cell")
            value, expected = self._life(name), known
            call = self._call(name, "move", register="cell", value=value, expected=expected)
            is_moved = yield lambda: self.store.move("cell", value, expected, call)  # noqa: B023
            if is_moved:
                self._answer(call, "moved")
                known = value
            else:
                self._answer(call, "refused")

    def _scaling(self, name: str) -> Client:
        """Split and merge, now and then."""
        while True:
            yield from self._look(name, "cell")
            if self.dice.random() < SCALED_EACH_TIME:
                yield self._scale

    def _scale(self) -> None:
        stream = self.dice.choice(SCALED)
        line = self.store.lines[stream]
        first = self.dice.randrange(len(line.opened))
        sealed = line.opened[first : first + self.dice.choice([1, 1, 2, 3])]
        low, high = line.parts[sealed[0]].low, line.parts[sealed[-1]].high
        count = 0 if len(line.opened) >= PARTS_MAX else self.dice.choice([0, 1, 2])
        borders = sorted({self.dice.randrange(low, high) for _ in range(count)} - {low})
        self.store.scale(stream, sealed, borders)

    def _truncating(self, name: str) -> Client:
        """Truncate one stream to where its reader has been."""
        while True:
            for _ in range(8):
                yield from self._look(name, "cell")
            cut = self._places.get(FOLLOWED)
            if cut is None:
                continue
            call = self._call(name, "truncate", stream="a", cut=cut)
            yield lambda: self.store.truncate("a", cut, call)  # noqa: B023
            self._answer(call, "done")
            for part in self.store.lines["a"].parts.values():
                if part.start:
                    part.truncated_since = min(part.truncated_since, self._count)

    def _end(self) -> None:
        """Read all that nobody read, and tell what the streams are."""
        for stream in (*SCALED, "ledger", "log", "account"):
            line = self.store.lines[stream]
            start = self._places.get(f"{stream} follower")
            call = self._call("end", "read", stream=stream, **({"from": start} if start else {}))
            events, end = self.store.between(call, stream, start, most=NEVER)
            self._line(id=call, took=events)
            self._answer(call, "read", to=end, tail=line.tail())
            call = self._call("end", "history", stream=stream)
            self._answer(call, "history", after={part.name: part.after for part in line.parts.values()})
