"""Clients of a server that is killed again and again: they record what they ask and are told, and look what is left.

What is acknowledged must be there: its bytes, at the offset that the ack named, once. What was sent and not
acknowledged may be there, once and in its place, or not. Nothing else may be there. The rules are those of the history.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.model.key_range import key_place
from millrace.model.sequence_row import SequenceRow
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from millrace.wire.errors import ErrorCode
from tests.support.history import demand
from tests.support.protocol import Peer, RefusedError, Stored, set_attribute

from .recorded_appends import NOT_STORED, ONLY, Look, RecordedAppends, payload
from .transacting import Transacting

CUT = (OSError, EOFError, TimeoutError)
"""How the death of a server shows at its clients."""


async def refused(outcome: ErrorCode) -> None:
    """Wait a moment after an append that was certainly not stored and may be sent again.

    Raises:
        ConnectionResetError: it was refused for another reason.
    """
    if outcome not in NOT_STORED:
        raise ConnectionResetError(outcome)
    await asyncio.sleep(0.01)


@dataclass(slots=True)
class Raw:
    """Appends to a segment of its own, without a writer id, a few under way at a time."""

    name: str
    appends: RecordedAppends
    segment_id: int = 0
    number: int = 0
    lives: int = 0

    @property
    def stream(self) -> str:
        return f"raw/{self.name}"

    async def prepare(self, peer: Peer) -> None:
        self.segment_id = await peer.create_segment(self.stream)

    async def run(self, address: str) -> None:
        async with await Peer.connect(address) as peer:
            while True:
                # In one life all is in order without gaps; after a refusal it is another one.
                self.lives += 1
                told = {"writer": f"{self.name}/{self.lives}"}
                sent = []
                for _ in range(5):
                    self.number += 1
                    event = f"{self.name}:{self.number}"
                    sent.append(
                        await self.appends.send(
                            peer, self.segment_id, event, client=self.name, stream=self.stream, told=told
                        )
                    )
                for outcome in await self.appends.settled(peer, sent):
                    if not isinstance(outcome, Stored):
                        await refused(outcome)
                        break

    async def look(self, peer: Peer, look: Look) -> None:
        await look.read_segment(peer, self.stream, self.segment_id)


@dataclass(slots=True)
class Writer:
    """A writer with an id, on several segments that it shares with others; resends what it has no ack for."""

    name: str
    appends: RecordedAppends
    segments: Sequence[int] = ()
    sent: dict[int, int] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)

    def event(self, segment_id: int, number: int) -> str:
        return f"{self.name}.{segment_id}:{number}"

    async def run(self, address: str) -> None:
        async with await Peer.connect(address) as peer:
            opened = await self._open(peer)
            fields: dict[str, Any] = {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch}
            while True:
                for segment_id in self.segments:
                    # From the last ack on, which repeats what was stored without an ack.
                    first = self.acked.get(segment_id, 0) + 1
                    self.sent[segment_id] = max(self.sent.get(segment_id, 0), first + 3)
                    sent = [
                        await self.appends.send(
                            peer, segment_id, self.event(segment_id, number), client=self.name,
                            stream=shared(segment_id), told={"writer": self.name, "sequences": [number]},
                            event_number=number, **fields,
                        )
                        for number in range(first, first + 4)
                    ]  # fmt: skip
                    for outcome in await self.appends.settled(peer, sent):
                        if not isinstance(outcome, Stored):
                            await refused(outcome)
                            break
                        self.acked[segment_id] = self.acked.get(segment_id, 0) + 1

    async def _open(self, peer: Peer) -> m.WriterOpened:
        recorder = self.appends.recorder
        calls = {
            segment_id: recorder.call(self.name, "open", stream=shared(segment_id), writer=self.name)
            for segment_id in self.segments
        }
        opened = await peer.open_writer(self.name, *self.segments)
        for state in opened.states:
            last = state.last_event_number
            sent = self.sent.get(state.segment_id, 0)
            missing = [self.event(state.segment_id, number) for number in range(last + 1, sent + 1)]
            recorder.answer(calls[state.segment_id], "opened", through=last, missing=missing)
        return opened


def shared(segment_id: int) -> str:
    """Return the stream by which a segment that several writers share is recorded."""
    return f"shared/{segment_id}"


@dataclass(slots=True)
class Decider:
    """Creates, fills, truncates, seals and deletes segments, and counts in an attribute.

    The life of a segment is a register: null, `created`, `sealed`, `deleted`.
    """

    name: str
    appends: RecordedAppends
    counter_id: int = 0
    count: int = 0
    number: int = 0
    # Those whose deletion was asked for.
    doomed: set[str] = field(default_factory=set)

    @property
    def counter(self) -> str:
        return f"{self.name}/counter"

    async def prepare(self, peer: Peer) -> None:
        self.counter_id = await peer.create_segment(self.counter)

    async def run(self, address: str) -> None:
        async with await Peer.connect(address) as peer:
            attribute = await peer.ask(m.GetAttribute(self.counter_id, "count"), m.Attribute)
            self.count = int(attribute.value or b"0")
            while True:
                await self._count(peer)
                await self._live(peer)

    async def _count(self, peer: Peer) -> None:
        expected = str(self.count).encode() if self.count else None
        value = str(self.count + 1).encode()
        call = self._move(self.counter, self.count + 1, expected=self.count or None)
        await peer.ask(set_attribute(self.counter_id, "count", expected=expected, value=value), m.Attribute)
        self.appends.recorder.answer(call, "moved")
        self.count += 1

    def _move(self, register: str, value: str | int, *, expected: str | int | None) -> str:
        return self.appends.recorder.call(self.name, "move", register=register, value=value, expected=expected)

    async def _live(self, peer: Peer) -> None:
        """Let one segment live its life, or a part of it."""
        self.number += 1
        name = f"{self.name}/s{self.number}"
        steps = random.Random(f"{self.appends.seed}/{name}").randint(1, 5)
        recorder = self.appends.recorder
        call = self._move(name, "created", expected=None)
        segment_id = await peer.create_segment(name)
        recorder.answer(call, "moved")
        events = [f"{name}:{number}" for number in range(2)]
        if steps > 1:
            sent = [
                await self.appends.send(peer, segment_id, event, client=self.name, stream=name, told={"writer": name})
                for event in events
            ]
            for outcome in await self.appends.settled(peer, sent):
                if not isinstance(outcome, Stored):
                    await refused(outcome)
                    return
        if steps > 2:
            offset = len(payload(events[0], seed=self.appends.seed))
            call = recorder.call(self.name, "truncate", stream=name, cut={ONLY: [offset, 0]})
            await peer.ask(m.TruncateSegment(segment_id, offset), m.SegmentInfo)
            recorder.answer(call, "done")
        if steps > 3:
            call = self._move(name, "sealed", expected="created")
            await peer.ask(m.SealSegment(segment_id), m.SegmentInfo)
            recorder.answer(call, "moved")
        if steps > 4:
            call = self._move(name, "deleted", expected="sealed")
            self.doomed.add(name)
            await peer.ask(m.DeleteSegment(segment_id), m.Done)
            recorder.answer(call, "moved")

    async def look(self, peer: Peer, look: Look) -> None:
        call = look.recorder.call("look", "look", register=self.counter)
        attribute = await peer.ask(m.GetAttribute(self.counter_id, "count"), m.Attribute)
        look.recorder.answer(call, "value", value=int(attribute.value) if attribute.present else None)
        for number in range(1, self.number + 1):
            name = f"{self.name}/s{number}"
            call = look.recorder.call("look", "look", register=name)
            try:
                info = await peer.ask(m.GetSegment(0, name), m.SegmentInfo)
            except RefusedError as error:
                if error.code is not ErrorCode.SEGMENT_NOT_FOUND:
                    raise
                look.recorder.answer(call, "value", value="deleted" if name in self.doomed else None)
                continue
            look.recorder.answer(call, "value", value="sealed" if info.sealed else "created")
            await look.read_segment(peer, name, info.segment_id)


@dataclass(slots=True)
class Sequenced:
    """Resumes by the sequences of its events, again and again, on a stream that is scaled between its lives.

    Events are known by their index, from 0; sequences have gaps. An event keeps its key, whatever life sends it.
    """

    name: str
    appends: RecordedAppends
    lives: int = 0
    # Events that were sent, stored or not, are those below.
    sent: int = 0

    @property
    def stream(self) -> str:
        return f"sequenced/{self.name}"

    @staticmethod
    def sequence(index: int) -> int:
        return index + index // 5 * 3

    @staticmethod
    def key(index: int) -> str:
        return f"key {index % 17}"

    def event(self, index: int) -> str:
        return f"{self.name}:{index}"

    def _row(self, opened: m.WriterOpened) -> tuple[list[int], list[int]]:
        """Return the events that are stored and those that are not, by what the server says."""
        row = SequenceRow(opened.stored_through, opened.marks)
        told: tuple[list[int], list[int]] = ([], [])
        for index in range(self.sent):
            told[not row.is_stored(self.sequence(index), place=key_place(self.key(index)))].append(index)
        return told

    def _told(self, opened: m.WriterOpened) -> dict[str, int | list[str]]:
        """Return what is recorded of an opening."""
        stored, missing = ([self.event(index) for index in indexes] for indexes in self._row(opened))
        return {"through": opened.stored_through, "stored": stored, "missing": missing}

    async def prepare(self, peer: Peer) -> None:
        await peer.ask(m.CreateStream(self.stream, 3, ""), m.StreamInfo)

    async def run(self, address: str) -> None:
        async with await Peer.connect(address) as peer:
            while True:
                self.lives += 1
                choices = random.Random(f"{self.appends.seed}/{self.name}/{self.lives}")
                await self._scale(peer, choices)
                await self._live(peer, choices)

    async def _scale(self, peer: Peer, choices: random.Random) -> None:
        """Split a segment in two, or merge two neighbours."""
        stream = await peer.ask(m.GetStream(self.stream), m.StreamInfo)
        parts = sorted((each.low, each.last, each.segment_id) for each in stream.segments if not each.sealed_epoch)
        index = choices.randrange(len(parts))
        (low, last, first_id), pair = parts[index], parts[index : index + 2]
        if len(pair) == 2 and (len(parts) > 4 or choices.random() < 0.5):
            sealed, ranges = [each[2] for each in pair], [(low, pair[1][1])]
        else:
            middle = (low + last) // 2
            sealed, ranges = [first_id], [(low, middle), (middle + 1, last)]
        request = m.ScaleStream(self.stream, sealed, [m.KeyRangeRecord(*each) for each in ranges])
        await peer.ask(request, m.StreamInfo)

    async def _live(self, peer: Peer, choices: random.Random) -> None:
        """Open the writer, send what is not stored, and continue, until something is refused or for a while."""
        stream = await peer.ask(m.GetStream(self.stream), m.StreamInfo)
        parts = [each for each in stream.segments if not each.sealed_epoch]
        request = m.OpenWriter(
            self.name, [each.segment_id for each in parts], 0, stream.stream_id, choices.randbytes(16)
        )
        call = self.appends.recorder.call(self.name, "open", stream=self.stream, writer=self.name)
        opened = await peer.ask(request, m.WriterOpened)
        self.appends.recorder.answer(call, "opened", **self._told(opened))
        numbers = {state.segment_id: state.last_event_number for state in opened.states}
        fields = {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch}
        stored = set(self._row(opened)[0])
        start = next((index for index in range(self.sent) if index not in stored), self.sent)
        for _ in range(choices.randrange(1, 20)):
            todo = [index for index in range(start, start + 8) if index not in stored]
            start += 8
            if not await self._send(peer, parts, todo, numbers, fields):
                return

    async def _send(
        self,
        peer: Peer,
        parts: Sequence[m.StreamSegment],
        todo: Sequence[int],
        numbers: dict[int, int],
        fields: dict[str, Any],
    ) -> bool:
        """Send events, all at once; return whether all are stored."""
        sent = []
        for index in todo:
            key, sequence = self.key(index), self.sequence(index)
            place = key_place(key)
            (segment_id,) = [each.segment_id for each in parts if each.low <= place <= each.last]
            numbers[segment_id] += 1
            self.sent = max(self.sent, index + 1)
            # All that was sent before is stored, and nothing of this round is known to be.
            sequences = Sequences(sequence, sequence, self.sequence(todo[0]))
            sent.append(
                await self.appends.send(
                    peer, segment_id, self.event(index), client=self.name, stream=self.stream,
                    segment=str(segment_id), told={"writer": self.name, "keys": [key], "sequences": [sequence]},
                    event_number=numbers[segment_id], sequences=sequences, **fields,
                )
            )  # fmt: skip
        outcomes = await self.appends.settled(peer, sent)
        for index, outcome in zip(todo, outcomes, strict=True):
            assert outcome not in (ErrorCode.SEQUENCES_REFUSED, ErrorCode.SEQUENCES_MIXED), f"{self.name}: {index}"
            if not isinstance(outcome, Stored):
                await refused(outcome)
        return all(isinstance(outcome, Stored) for outcome in outcomes)

    async def look(self, peer: Peer, look: Look) -> None:
        await look.read_stream(peer, self.stream)
        call = look.recorder.call("look", "open", stream=self.stream, writer=self.name)
        stream = await peer.ask(m.GetStream(self.stream), m.StreamInfo)
        told = await peer.ask(m.GetWriter(self.name, [], stream.stream_id), m.WriterOpened)
        look.recorder.answer(call, "opened", **self._told(told))


@dataclass(slots=True)
class Clients:
    """All clients of a server."""

    seed: int
    appends: RecordedAppends = field(init=False)
    raws: list[Raw] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    deciders: list[Decider] = field(default_factory=list)
    sequenced: list[Sequenced] = field(default_factory=list)
    transacting: list[Transacting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.appends = RecordedAppends(self.seed)

    @property
    def _on_their_own(self) -> list[Raw | Decider | Sequenced | Transacting]:
        """Those that nobody shares a stream with."""
        return [*self.raws, *self.deciders, *self.sequenced, *self.transacting]

    async def prepare(self, address: str) -> None:
        """Make what the clients need, before anything is killed."""
        appends = self.appends
        async with await Peer.connect(address) as peer:
            self.shared = [await peer.create_segment(f"shared/s{number}") for number in range(2)]
            self.raws = [Raw(f"raw{number}", appends) for number in range(3)]
            self.writers = [Writer(f"writer{number}", appends, self.shared) for number in range(3)]
            self.deciders = [Decider("decider", appends)]
            self.sequenced = [Sequenced(f"sequenced{number}", appends) for number in range(2)]
            self.transacting = [Transacting(f"transacting{number}", appends) for number in range(2)]
            for each in self._on_their_own:
                await each.prepare(peer)

    async def write(self, address: str) -> None:
        """Write until the server dies. What is wrong at once is raised whatever else happens."""

        async def until_cut(part: Raw | Writer | Decider | Sequenced | Transacting) -> None:
            try:
                await part.run(address)
            except CUT:
                pass
            except RefusedError as error:
                if error.code not in (ErrorCode.SHUTTING_DOWN, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.NO_SPACE):
                    raise

        await asyncio.gather(*map(until_cut, [*self._on_their_own, *self.writers]))

    async def check(self, address: str) -> int:
        """Look at everything while nobody writes, and return how many bytes there are.

        Raises:
            WrongHistoryError: naming what is missing or too much.
        """
        look = Look(self.appends.recorder.copy(), self.seed)
        async with await Peer.connect(address) as peer:
            for each in self._on_their_own:
                await each.look(peer, look)
            for segment_id in self.shared:
                await look.read_segment(peer, shared(segment_id), segment_id)
        demand(look.recorder.lines)
        self.appends.learn(look.places)
        return look.size
