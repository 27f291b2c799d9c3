"""Writers that remember every acknowledgement, and the account that is drawn up after each restart of their server.

What is acknowledged must be there: its bytes, at the offset that the ack named, once. What was sent and not
acknowledged may be there, once and in its place, or not. Nothing else may be there.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.model.key_range import key_place
from millrace.model.sequence_row import SequenceRow
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Peer, RefusedError, Stored, set_attribute

CUT = (OSError, EOFError, TimeoutError)
"""How the death of a server shows at its clients."""


class LostError(AssertionError):
    """Something acknowledged is not there, or something is there that nobody sent."""


async def refused(outcome: ErrorCode) -> None:
    """Wait a moment after an append that was certainly not stored and may be sent again.

    Raises:
        ConnectionResetError: it was refused for another reason.
    """
    if outcome not in (ErrorCode.NO_SPACE, ErrorCode.THROTTLED, ErrorCode.PIPELINE_BROKEN):
        raise ConnectionResetError(outcome)
    await asyncio.sleep(0.01)


def payload(name: str, number: int, *, seed: int) -> bytes:
    """Return the content of an event: it names itself, and ends in noise that only it has."""
    noise = random.Random(f"{seed}/{name}/{number}")
    return b"<%s:%d:%s>" % (name.encode(), number, noise.randbytes(noise.choice((0, 8, 100, 700))).hex().encode())


@dataclass(slots=True)
class Raw:
    """Appends to a segment of its own, without a writer id, a few under way at a time."""

    name: str
    seed: int
    segment_id: int = 0
    number: int = 0
    acked: dict[int, bytes] = field(default_factory=dict)
    # What was sent and not answered when the server died, in order.
    doubtful: list[bytes] = field(default_factory=list)
    # What must be there up to the doubtful ones.
    content: bytes = b""

    async def prepare(self, peer: Peer) -> None:
        self.segment_id = await peer.create_segment(f"raw/{self.name}")

    async def run(self, address: str) -> None:
        async with await Peer.connect(address) as peer:
            while True:
                batch = [payload(self.name, self.number + index, seed=self.seed) for index in range(5)]
                self.number += len(batch)
                self.doubtful = batch
                for outcome, item in zip(
                    await peer.settled(await peer.append(self.segment_id, *batch)), batch, strict=True
                ):
                    if not isinstance(outcome, Stored):
                        await refused(outcome)
                        # Neither this one nor those after it were stored, and none may turn up.
                        self.doubtful = []
                        break
                    if outcome.offset != len(self.content):
                        raise LostError(f"{self.name}: acked at {outcome.offset}, not {len(self.content)}")
                    self.content += item
                    self.doubtful = self.doubtful[1:]

    async def account(self, peer: Peer) -> None:
        content = await peer.read_all(self.segment_id)
        if not content.startswith(self.content):
            raise LostError(_difference(self.name, self.content, content))
        rest = content[len(self.content) :]
        for item in self.doubtful:
            if not rest:
                break
            if not rest.startswith(item):
                raise LostError(f"{self.name}: {rest[:60]!r} where {item[:60]!r} was sent, or nothing")
            rest = rest[len(item) :]
        if rest:
            raise LostError(f"{self.name}: nobody sent {rest[:60]!r}")
        self.content, self.doubtful = content, []


@dataclass(slots=True)
class Writer:
    """A writer with an id, on several segments that it shares with others; resends what it has no ack for."""

    name: str
    seed: int
    segments: Sequence[int] = ()
    sent: dict[int, int] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)

    async def run(self, address: str) -> None:
        async with await Peer.connect(address) as peer:
            opened = await peer.open_writer(self.name, *self.segments)
            for state in opened.states:
                last, acked = state.last_event_number, self.acked.get(state.segment_id, 0)
                if not acked <= last <= self.sent.get(state.segment_id, 0):
                    raise LostError(f"{self.name}: the server knows event {last}, event {acked} was acknowledged")
            fields = {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch}
            while True:
                for segment_id in self.segments:
                    # From the last ack on, which repeats what was stored without an ack.
                    first = self.acked.get(segment_id, 0) + 1
                    items = [payload(self.name, first + index, seed=self.seed) for index in range(4)]
                    self.sent[segment_id] = max(self.sent.get(segment_id, 0), first + 3)
                    ids = await peer.append(segment_id, *items, event_number=first, **fields)
                    for outcome in await peer.settled(ids):
                        if not isinstance(outcome, Stored):
                            await refused(outcome)
                            break
                        self.acked[segment_id] = self.acked.get(segment_id, 0) + 1


async def account_shared(peer: Peer, writers: Sequence[Writer], segment_id: int) -> None:
    """Check a segment that several writers share: all numbers of each, once, in order."""
    content = await peer.read_all(segment_id)
    by_name = {writer.name: writer for writer in writers}
    seen = dict.fromkeys(by_name, 0)
    position = 0
    while position < len(content):
        name, number = content[position + 1 : position + 40].split(b":")[:2]
        writer = by_name[name.decode()]
        seen[writer.name] += 1
        if int(number) != seen[writer.name]:
            raise LostError(f"{writer.name}: event {int(number)} where {seen[writer.name]} belongs")
        item = payload(writer.name, int(number), seed=writer.seed)
        if content[position : position + len(item)] != item:
            raise LostError(f"{writer.name}: event {int(number)} is not what was sent")
        position += len(item)
    for writer in writers:
        if not writer.acked.get(segment_id, 0) <= seen[writer.name] <= writer.sent.get(segment_id, 0):
            raise LostError(
                f"{writer.name}: {seen[writer.name]} events, {writer.acked.get(segment_id, 0)} acknowledged"
            )


@dataclass(slots=True)
class Decider:
    """Creates, fills, seals, truncates and deletes segments, and counts in an attribute."""

    name: str
    seed: int
    counter_id: int = 0
    count: int = 0
    count_doubtful: bool = False
    number: int = 0
    # What must be true of each segment: (start offset, content, sealed); None = deleted.
    known: dict[str, tuple[int, bytes, bool] | None] = field(default_factory=dict)
    # Of these, one decision more may or may not have been taken.
    doubtful: set[str] = field(default_factory=set)

    async def prepare(self, peer: Peer) -> None:
        self.counter_id = await peer.create_segment(f"{self.name}/counter")

    async def run(self, address: str) -> None:
        async with await Peer.connect(address) as peer:
            while True:
                await self._count(peer)
                await self._live(peer)

    async def _count(self, peer: Peer) -> None:
        self.count_doubtful = True
        expected = str(self.count).encode() if self.count else None
        value = str(self.count + 1).encode()
        await peer.ask(set_attribute(self.counter_id, "count", expected=expected, value=value), m.Attribute)
        self.count += 1
        self.count_doubtful = False

    async def _live(self, peer: Peer) -> None:
        """Let one segment live its life, or a part of it."""
        self.number += 1
        name = f"{self.name}/s{self.number}"
        steps = random.Random(f"{self.seed}/{name}").randint(1, 5)
        self.doubtful.add(name)
        segment_id = await peer.create_segment(name)
        content = payload(name, 1, seed=self.seed)
        if steps > 1:
            (outcome,) = await peer.settled(await peer.append(segment_id, content))
            if not isinstance(outcome, Stored):
                await refused(outcome)
                return
            self.known[name] = (0, content, False)
        if steps > 2:
            await peer.ask(m.TruncateSegment(segment_id, 5), m.SegmentInfo)
            self.known[name] = (5, content[5:], False)
        if steps > 3:
            await peer.ask(m.SealSegment(segment_id), m.SegmentInfo)
            self.known[name] = (5, content[5:], True)
        if steps > 4:
            await peer.ask(m.DeleteSegment(segment_id), m.Done)
            self.known[name] = None
        self.doubtful.discard(name)

    async def account(self, peer: Peer) -> None:
        value = await peer.ask(m.GetAttribute(self.counter_id, "count"), m.Attribute)
        count = int(value.value or b"0")
        if count != self.count and not (self.count_doubtful and count == self.count + 1):
            raise LostError(f"{self.name}: counted to {self.count}, the server says {count}")
        self.count, self.count_doubtful = count, False
        for name, expected in list(self.known.items()):
            if name in self.doubtful:
                del self.known[name]
                continue
            try:
                info = await peer.ask(m.GetSegment(0, name), m.SegmentInfo)
            except RefusedError as error:
                if error.code is not ErrorCode.SEGMENT_NOT_FOUND or expected is not None:
                    raise LostError(f"{name}: {error}") from error
                continue
            if expected is None:
                raise LostError(f"{name}: was deleted, and is there")
            start, content, sealed = expected
            found = await peer.read_all(info.segment_id, start=start)
            if (info.start_offset, found, bool(info.sealed)) != (start, content, sealed):
                raise LostError(f"{name}: {info} {found[:60]!r}, not {expected}")
        self.doubtful.clear()


@dataclass(slots=True)
class Sequenced:
    """Resumes by the sequences of its events, again and again, on a stream that is scaled between its lives.

    Events are known by their index, from 0; sequences have gaps. An event keeps its key, whatever life sends it.
    """

    name: str
    seed: int
    lives: int = 0
    # Events that were sent, stored or not, are those below.
    sent: int = 0
    acked: set[int] = field(default_factory=set)

    @property
    def stream(self) -> str:
        return f"sequenced/{self.name}"

    @staticmethod
    def sequence(index: int) -> int:
        return index + index // 5 * 3

    @staticmethod
    def place(index: int) -> int:
        return key_place(f"key {index % 17}")

    async def prepare(self, peer: Peer) -> None:
        await peer.ask(m.CreateStream(self.stream, 3, ""), m.StreamInfo)

    async def run(self, address: str) -> None:
        async with await Peer.connect(address) as peer:
            while True:
                self.lives += 1
                choices = random.Random(f"{self.seed}/{self.name}/{self.lives}")
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
        opened = await peer.ask(request, m.WriterOpened)
        row = SequenceRow(opened.stored_through, opened.marks)
        numbers = {state.segment_id: state.last_event_number for state in opened.states}
        fields = {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch}
        stored = {index for index in range(self.sent) if row.is_stored(self.sequence(index), place=self.place(index))}
        if lost := sorted(self.acked - stored):
            raise LostError(f"{self.name}: events {lost} were acknowledged, and are not stored by what the server says")
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
        fields: dict[str, int],
    ) -> bool:
        """Send events, all at once; return whether all are stored."""
        ids = []
        for index in todo:
            place, sequence = self.place(index), self.sequence(index)
            (segment_id,) = [each.segment_id for each in parts if each.low <= place <= each.last]
            numbers[segment_id] += 1
            self.sent = max(self.sent, index + 1)
            # All that was sent before is stored, and nothing of this round is known to be.
            sequences = Sequences(sequence, sequence, self.sequence(todo[0]))
            item = payload(self.name, index, seed=self.seed)
            ids += await peer.append(segment_id, item, event_number=numbers[segment_id], sequences=sequences, **fields)
        outcomes = await peer.settled(ids)
        for index, outcome in zip(todo, outcomes, strict=True):
            if isinstance(outcome, Stored):
                self.acked.add(index)
            elif outcome in (ErrorCode.SEQUENCES_REFUSED, ErrorCode.SEQUENCES_MIXED):
                raise LostError(f"{self.name}: event {index}: {outcome!r}")
            else:
                await refused(outcome)
        return all(isinstance(outcome, Stored) for outcome in outcomes)

    async def account(self, peer: Peer) -> None:
        """Check every event: there once if it was acknowledged, at most once otherwise, as the row says."""
        stream = await peer.ask(m.GetStream(self.stream), m.StreamInfo)
        found: list[int] = []
        for segment in stream.segments:
            content = await peer.read_all(segment.segment_id)
            indexes = [int(item.split(b":")[1]) for item in content.split(b">")[:-1]]
            if indexes != sorted(set(indexes)):
                raise LostError(f"{self.name}: segment {segment.segment_id} has events {indexes}")
            if content != b"".join(payload(self.name, index, seed=self.seed) for index in indexes):
                raise LostError(f"{self.name}: segment {segment.segment_id} holds what nobody sent")
            found += indexes
        if len(found) != len(set(found)) or not self.acked.issubset(found) or max(found, default=-1) >= self.sent:
            twice = sorted(index for index in set(found) if found.count(index) > 1)
            missing = sorted(self.acked.difference(found))
            raise LostError(f"{self.name}: events {twice} twice, {missing} missing, {self.sent} sent")
        told = await peer.ask(m.GetWriter(self.name, [], stream.stream_id), m.WriterOpened)
        row = SequenceRow(told.stored_through, told.marks)
        for index in range(self.sent):
            if row.is_stored(self.sequence(index), place=self.place(index)) != (index in found):
                raise LostError(f"{self.name}: the row is wrong about event {index}: {row}")
        self.acked.update(found)


@dataclass(slots=True)
class Account:
    """All that is known of a server from outside."""

    seed: int
    raws: list[Raw] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    deciders: list[Decider] = field(default_factory=list)
    sequenced: list[Sequenced] = field(default_factory=list)

    async def prepare(self, address: str) -> None:
        """Make what the writers need, before anything is killed."""
        async with await Peer.connect(address) as peer:
            self.shared = [await peer.create_segment(f"shared/s{number}") for number in range(2)]
            self.raws = [Raw(f"raw{number}", self.seed) for number in range(3)]
            self.writers = [Writer(f"writer{number}", self.seed, self.shared) for number in range(3)]
            self.deciders = [Decider("decider", self.seed)]
            self.sequenced = [Sequenced(f"sequenced{number}", self.seed) for number in range(2)]
            for raw in self.raws:
                await raw.prepare(peer)
            for each in self.sequenced:
                await each.prepare(peer)
            for decider in self.deciders:
                await decider.prepare(peer)

    async def write(self, address: str) -> None:
        """Write until the server dies. A LostError is raised whatever else happens."""

        async def until_cut(part: Raw | Writer | Decider | Sequenced) -> None:
            try:
                await part.run(address)
            except CUT:
                pass
            except RefusedError as error:
                if error.code not in (ErrorCode.SHUTTING_DOWN, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.NO_SPACE):
                    raise

        parts: list[Raw | Writer | Decider | Sequenced] = [
            *self.raws, *self.writers, *self.deciders, *self.sequenced
        ]  # fmt: skip
        await asyncio.gather(*map(until_cut, parts))

    async def check(self, address: str) -> int:
        """Check everything, and return how many bytes were accounted for.

        Raises:
            LostError: naming what is missing or too much.
        """
        async with await Peer.connect(address) as peer:
            for raw in self.raws:
                await raw.account(peer)
            for decider in self.deciders:
                await decider.account(peer)
            for each in self.sequenced:
                await each.account(peer)
            for segment_id in self.shared:
                await account_shared(peer, self.writers, segment_id)
            shared = [(await peer.info(segment_id)).length for segment_id in self.shared]
        return sum(len(raw.content) for raw in self.raws) + sum(shared)


def _difference(name: str, expected: bytes, found: bytes) -> str:
    place = next(
        (index for index, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    return (
        f"{name}: {len(expected)} bytes were acknowledged, {len(found)} are there; from {place} on "
        f"{found[place : place + 60]!r} where {expected[place : place + 60]!r} belongs"
    )
