"""A named writer with sequences through everything that can happen to it, drawn by a seed, without sockets.

A caller writes numbered events of some keys, and of none, by `write` and `write_many`; it is killed, or replaced while
it goes on, and whoever continues writes again what is after `stored_through`, as the caller's contract says. The
stream splits and merges, replaced segments are deleted, connections and acks are lost, and the server restarts. In the
end every sequence is stored once, those of a key and those in a segment in their order, and after each step the row of
the server (`SequenceRow`) says exactly what is stored.

The writer and the row are those of the product; what is between them is `tests.support.model_server`. A walk is the
same for the same seed, so a failure can be repeated.
"""

# Nobody needs to look at the future of a write.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from millrace.client.errors import ClientClosedError, NotOpenError, WriterFencedError
from millrace.client.transport.channel import Channel
from millrace.client.write.events import WriteResult
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer import Writer
from millrace.model.key_range import key_place
from millrace.model.sequence_row import SEQUENCES_PER_PLACE, sequence_place
from millrace.wire.errors import ErrorCode
from tests.support.model_server import STREAM, ModelServer, turns

FINISH_STEPS_MAX = 600
KEYS = [None, None, "a", "b", "c", "d", "e", "f"]


class WalkError(AssertionError):
    """The writer, or the row, did what it must not do."""


@dataclass(frozen=True, slots=True)
class Call:
    """What the caller does once: events of consecutive sequences, with one key, a key each, or none."""

    first: int
    keys: tuple[str | None, ...]

    @property
    def last(self) -> int:
        return self.first + len(self.keys) - 1


@dataclass(eq=False)
class Life:
    """One writer of the id."""

    channel: Channel
    writer: Writer
    opening: "asyncio.Task[None]"
    # The next call of the plan.
    place: int = 0
    futures: list["asyncio.Future[WriteResult]"] = field(default_factory=list)


class Walk:
    """One walk."""

    def __init__(self, seed: int, *, steps: int = 120) -> None:
        self.dice = random.Random(seed)
        self.steps = steps
        self.server = ModelServer(segment_count=self.dice.randint(1, 3))
        self.server.appends_in_flight_max = self.dice.choice([1, 2, 5, 20])
        self.plan = self._plan()
        # By sequence.
        self.keys = {call.first + index: key for call in self.plan for index, key in enumerate(call.keys)}
        self.lives: list[Life] = []
        # How much of the history was checked, what was in it, and the last sequence of each segment and key.
        self.checked = 0
        self.stored: set[int] = set()
        self.last: dict[int | str, int] = {}
        self.counted: Counter[str] = Counter()
        self.rates = {
            "scale": self.dice.choice([0.0, 0.05, 0.15]),
            "delete": self.dice.choice([0.0, 0.05, 0.2]),
            "kill": self.dice.choice([0.0, 0.02, 0.06]),
            "restart": self.dice.choice([0.0, 0.02, 0.06]),
            "lose": self.dice.choice([0.0, 0.05]),
            "refuse": self.dice.choice([0.0, 0.05]),
        }

    def _plan(self) -> list[Call]:
        dice, plan, following = self.dice, [], 0
        for _ in range(dice.choice([6, 15, 30])):
            # Now and then just before another place of events without a key.
            to_border = (SEQUENCES_PER_PLACE - 3 - following) % SEQUENCES_PER_PLACE
            first = following + dice.choice([0, 0, 0, 0, 1, 4, to_border])
            count = dice.choice([1, 1, 1, 2, 4, 8])
            kind = dice.choice(["none", "one", "each"])
            if kind == "each":
                keys = tuple(dice.choice(KEYS[2:]) for _ in range(count))
            else:
                keys = (dice.choice(KEYS[2:]) if kind == "one" else None,) * count
            plan.append(Call(first, keys))
            following = first + count
        return plan

    # --- the caller ---

    @property
    def life(self) -> Life:
        """The one that is not replaced."""
        return self.lives[-1]

    def begin(self) -> None:
        """Let another writer take the id."""
        channel = self.server.channel()
        options = WriterOptions(block_size_bytes=1024, in_flight_bytes_max=self.dice.choice([1, 600, 1 << 20]))
        writer = Writer(channel, STREAM, writer_id="w", options=options)
        self.lives.append(Life(channel, writer, asyncio.create_task(writer.open())))

    async def write(self, life: Life) -> None:
        """Write the next call of a life, again in other pieces now and then."""
        if not life.opening.done() or life.place == len(self.plan):
            return
        life.opening.result()
        writer, call = life.writer, self.plan[life.place]
        if not life.futures and self.dice.random() < 0.7:  # else it writes again all that there ever was
            while life.place < len(self.plan) and self.plan[life.place].last <= writer.stored_through:
                life.place += 1
            if life.place == len(self.plan):
                return
            call = self.plan[life.place]
        life.place += 1
        try:
            for piece in self._pieces(call):
                self._write_piece(life, piece)
        except WriterFencedError:
            if life is self.life:
                raise WalkError("the writer that has the id was fenced") from None

    def _pieces(self, call: Call) -> list[Call]:
        if len(call.keys) == 1 or self.dice.random() < 0.8:
            return [call]
        border = self.dice.randint(1, len(call.keys) - 1)
        return [Call(call.first, call.keys[:border]), Call(call.first + border, call.keys[border:])]

    @staticmethod
    def _write_piece(life: Life, call: Call) -> None:
        values = [b"%d" % sequence for sequence in range(call.first, call.last + 1)]
        first_key = call.keys[0]
        if len(values) == 1:
            future = life.writer.write(values[0], key=first_key, sequence=call.first)
        elif first_key is None or len(set(call.keys)) == 1:
            future = life.writer.write_many(values, key=first_key, first_sequence=call.first)
        else:
            keys = [key for key in call.keys if key is not None]
            future = life.writer.write_many(values, keys=keys, first_sequence=call.first)
        life.futures.append(future)

    def kill(self) -> None:
        """Let another writer take the id, from one that is dead or from one that goes on without knowing it."""
        self.counted["kills"] += 1
        # One that is not open yet would fence the next.
        if self.dice.random() < 0.6 or not self.life.opening.done():
            self._abandon(self.lives.pop())
        self.begin()

    def _abandon(self, life: Life) -> None:
        """End a process: nothing comes from it any more, but for some of what is on its way."""
        life.opening.cancel()
        if self.dice.random() < 0.3:  # its writer is left without waiting, a moment before
            life.writer._delivery.stop(ClientClosedError("given up"))
        transport = self.server.transports.get(life.channel.session_id)
        if transport is not None:
            self.server.forget(transport, kept=self.dice.randint(0, 3))
            transport.mute()
        life.writer._delivery.stop(ClientClosedError("killed"))

    # --- the world ---

    async def step(self) -> None:
        """Let one thing happen."""
        dice, server, rates = self.dice, self.server, self.rates
        for name, act in (
            ("scale", self._scale),
            ("delete", self._delete),
            ("kill", self.kill),
            ("restart", self._restart),
            ("lose", self._lose),
            ("refuse", self._refuse),
        ):
            if dice.random() < rates[name]:
                act()
                return
        chance = dice.random()
        if chance < 0.4:
            await self.write(dice.choice(self.lives) if dice.random() < 0.2 else self.life)
        elif chance < 0.6:
            await turns(dice.randint(1, 12))
        elif chance < 0.9:
            server.answer(dice.randint(1, 4))
        else:
            await server.clock.advance(dice.choice([0.06, 0.2, 1.0]))

    def _scale(self) -> None:
        opened = self.server.open_ids()
        first = self.dice.randrange(len(opened))
        merged = opened[first : first + self.dice.randint(1, 3)]
        self.server.replace(merged, self.dice.choice([1, 1, 2, 3]) if len(opened) < 6 else 1)
        self.counted["scalings"] += 1

    def _delete(self) -> None:
        sealed = [number for number, segment in self.server.segments.items() if segment.sealed]
        if sealed:
            del self.server.segments[self.dice.choice(sealed)]
            self.counted["deletions"] += 1

    def _restart(self) -> None:
        """Kill the server: some of what arrived is stored, and nobody hears of it."""
        self.server.answer(self.dice.randint(0, len(self.server.arrived)), heard=False)
        self.server.lose()
        self.counted["restarts"] += 1

    def _lose(self) -> None:
        """Lose a connection; some of what was sent on it arrives all the same, perhaps late."""
        transport = self.server.transports.get(self.dice.choice(self.lives).channel.session_id)
        if transport is not None:
            self.server.forget(transport, kept=self.dice.randint(0, 3))
            transport.lose()

    def _refuse(self) -> None:
        if self.server.arrived:
            code = self.dice.choice([ErrorCode.THROTTLED, ErrorCode.OUTCOME_UNKNOWN])
            stored = code is ErrorCode.OUTCOME_UNKNOWN and self.dice.random() < 0.5
            self.server.refuse(code, retriable=code is ErrorCode.THROTTLED, stored=stored)

    # --- the end ---

    async def run(self) -> None:
        """Walk, then let the last writer finish undisturbed.

        Raises:
            WalkError: what went wrong; with the seed the walk can be repeated.
        """
        try:
            self.begin()
            for _ in range(self.steps):
                await self.step()
                self.check()
            await self._finish()
            # Once more: everything is recognised, also what the last writer could not tell any more.
            self._abandon(self.lives.pop())
            self.begin()
            await self._finish()
            self._check_complete()
        finally:
            for life in self.lives:
                self._abandon(life)
            await turns(3)

    async def _finish(self) -> None:
        life = self.life
        closing: asyncio.Task[None] | None = None
        for _ in range(FINISH_STEPS_MAX):
            await turns(3)
            self.server.answer()
            await self.write(life)
            self.check()
            if life.place == len(self.plan) and closing is None:
                closing = asyncio.create_task(life.writer.close())
            if closing is not None and closing.done():
                break
            self.server.clock.move(0.3)
        else:
            raise WalkError(f"no end: {life.place} of {len(self.plan)} calls, {life.writer.statistics()}")
        assert closing is not None
        if error := closing.exception():
            raise WalkError(f"the last writer failed: {error!r}") from error
        await turns()
        for future in life.futures:
            if not future.done() or future.exception() is not None:
                raise WalkError(f"a future of the last writer: {future}")

    def check(self) -> None:
        """Check what was stored since the last time, that the row says what is stored, and that the writer lives."""
        history = self.server.history
        for segment_id, key, value in history[self.checked :]:
            sequence = int(value)
            if key != self.keys[sequence]:
                raise WalkError(f"sequence {sequence} has key {key}, not {self.keys[sequence]}")
            if sequence in self.stored:
                raise WalkError(f"sequence {sequence} is stored twice")
            self.stored.add(sequence)
            for name in (segment_id, key):
                if name is not None and self.last.get(name, -1) >= sequence:
                    raise WalkError(f"sequence {sequence} follows {self.last[name]} in {name}")
                if name is not None:
                    self.last[name] = sequence
        self.checked = len(history)
        for sequence, key in self.keys.items():
            place = sequence_place(sequence) if key is None else key_place(key)
            said = self.server.row.is_stored(sequence, place=place)
            if said and sequence not in self.stored:
                raise WalkError(f"sequence {sequence} is not stored, and the row says it is: it would be lost")
            if not said and sequence in self.stored:
                raise WalkError(f"sequence {sequence} is stored, and the row says it is not: it would be doubled")
        refusal = self.life.writer._delivery.refusal
        if refusal is not None and not isinstance(refusal, ClientClosedError | NotOpenError):
            raise WalkError(f"the writer that has the id failed: {refusal!r}")

    def _check_complete(self) -> None:
        missing = sorted(set(self.keys) - self.stored)
        if missing:
            raise WalkError(f"sequences {missing} are lost")
        row = self.server.row
        if row.through != max(self.keys) or row.pieces():
            raise WalkError(f"everything is stored through {max(self.keys)}, and the server knows {row}")
