"""A stream under random openings, releases, appends, scalings and restarts: who may write, against a small model."""

import random
from dataclasses import dataclass, field

import pytest

from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Outcome, Peer, RefusedError, Stored
from tests.support.scenario import Scenario

STREAM = "walk/s"
NO_WRITER = 0


@dataclass
class Model:
    """Who may write: lives are numbered in the order of their openings."""

    holder: int | None = None
    fenced: set[int] = field(default_factory=set)
    ids: dict[int, str] = field(default_factory=dict)

    def may_write(self, life: int) -> ErrorCode | None:
        if life in self.fenced:
            return ErrorCode.WRITER_FENCED
        return ErrorCode.WRITER_EXCLUDED if self.holder not in (None, life) else None

    def opened(self, writer_id: str, *, exclusive: bool) -> int:
        life = len(self.ids) + 1
        self.fenced |= {each for each, known in self.ids.items() if writer_id and known == writer_id}
        self.ids[life] = writer_id
        if exclusive:
            self.lose()
            self.holder = life
        return life

    def lose(self) -> None:
        if self.holder is not None:
            self.fenced.add(self.holder)
        self.holder = None


class Walk:
    """Random steps on one stream; after each, the answer is the one of the model."""

    def __init__(self, seed: int) -> None:
        self.choices = random.Random(seed)
        self.model = Model()
        self.opened: dict[int, m.WriterOpened] = {}
        # By writer and segment, the last event number.
        self.numbers: dict[tuple[int, int], int] = {}
        # Cuts at which the stream ends, in other words, until something is written.
        self.tails: list[list[m.SavedPosition]] = []

    async def look(self, peer: Peer) -> None:
        self.stream = await peer.ask(m.GetStream(STREAM), m.StreamInfo)
        tail = [
            m.SavedPosition(each.segment_id, each.length, 0) for each in self.stream.segments if not each.sealed_epoch
        ]
        if tail not in self.tails:
            self.tails.append(tail)
        holder = self.model.holder
        told = None if holder is None else (self.opened[holder].writer_number, self.opened[holder].writer_epoch)
        assert (self.stream.exclusive_number, self.stream.exclusive_epoch) == (told or (0, 0))

    def parts(self) -> list[m.StreamSegment]:
        return sorted((each for each in self.stream.segments if not each.sealed_epoch), key=lambda each: each.low)

    async def _open(self, peer: Peer, *, exclusive: bool, expected: list[m.SavedPosition]) -> ErrorCode | None:
        writer_id = self.choices.choice(["a", "b", "c", ""])
        ids = [each.segment_id for each in self.stream.segments]
        nonce = self.choices.randbytes(16)
        request = m.OpenWriter(writer_id, ids, 0, self.stream.stream_id, nonce, int(exclusive), expected)
        try:
            opened = await peer.ask(request, m.WriterOpened)
        except RefusedError as error:
            return error.code
        self.opened[self.model.opened(writer_id, exclusive=exclusive)] = opened
        for state in opened.states:
            known = self.numbers.setdefault((opened.writer_number, state.segment_id), 0)
            assert state.last_event_number == known
        return None

    async def open_plain(self, peer: Peer) -> None:
        refusal = ErrorCode.WRITER_EXCLUDED if self.model.holder is not None else None
        assert await self._open(peer, exclusive=False, expected=[]) is refusal

    async def open_exclusive(self, peer: Peer) -> None:
        expected = self.choices.choice([[], *self.tails])
        assert await self._open(peer, exclusive=True, expected=expected) is None

    async def open_elsewhere(self, peer: Peer) -> None:
        """The holder stays, though it is fenced."""
        writer_id = self.choices.choice(["a", "b", "c"])
        holder = self.model.holder
        opened = await peer.open_writer(writer_id)
        self.opened[self.model.opened(writer_id, exclusive=False)] = opened
        assert self.model.holder == holder

    async def expect_wrongly(self, peer: Peer) -> None:
        segment_id, offset, index = self.choices.choice(self.choices.choice(self.tails))
        wrong = [m.SavedPosition(segment_id, offset + 1, index)]
        assert await self._open(peer, exclusive=True, expected=wrong) is ErrorCode.TAIL_CHANGED

    async def append(self, peer: Peer) -> None:
        life = self.choices.choice([NO_WRITER, *self.opened, *([self.model.holder] * 3 if self.model.holder else [])])
        segment_id = self.choices.choice(self.parts()).segment_id
        fields: dict[str, int] = {}
        if life:
            writer = self.opened[life].writer_number
            number = self.numbers.get((writer, segment_id), 0) + 1
            fields = {
                "writer_number": writer, "writer_epoch": self.opened[life].writer_epoch, "event_number": number,
            }  # fmt: skip
        outcome: Outcome
        (outcome,) = await peer.settled(await peer.append(segment_id, b"x", **fields))
        refusal = self.model.may_write(life)
        if refusal is not None:
            assert outcome is refusal
            return
        assert isinstance(outcome, Stored), outcome
        if life:
            self.numbers[writer, segment_id] = number
        self.tails.clear()

    async def _release(self, peer: Peer, **fields: int) -> bool:
        return bool((await peer.ask(m.ReleaseStream(stream_id=self.stream.stream_id, **fields), m.Done)).changed)

    async def release(self, peer: Peer) -> None:
        if not self.opened:
            return
        life = self.choices.choice([*self.opened, *([self.model.holder] if self.model.holder else [])])
        opened = self.opened[life]
        changed = await self._release(peer, writer_number=opened.writer_number, writer_epoch=opened.writer_epoch)
        assert changed == (self.model.holder == life)
        if changed:
            self.model.holder = None

    async def release_by_force(self, peer: Peer) -> None:
        assert await self._release(peer) == (self.model.holder is not None)
        self.model.lose()

    async def scale(self, peer: Peer) -> None:
        parts = self.parts()
        index = self.choices.randrange(len(parts))
        part, pair = parts[index], parts[index : index + 2]
        if len(pair) == 2 and self.choices.random() < 0.6:
            sealed, ranges = [each.segment_id for each in pair], [(part.low, pair[1].last)]
        else:
            border = part.low + (part.last - part.low) // 2 + 1
            sealed, ranges = [part.segment_id], [(part.low, border - 1), (border, part.last)]
        request = m.ScaleStream(STREAM, sealed, [m.KeyRangeRecord(*each) for each in ranges])
        await peer.ask(request, m.StreamInfo)


@pytest.mark.parametrize("is_published", [False, True], ids=["in the log", "in the checkpoint"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.asyncio
async def test_only_who_has_the_stream_writes(scenario: Scenario, seed: int, *, is_published: bool) -> None:
    print(f"seed {seed}")
    walk = Walk(seed)
    steps = [walk.append] * 6 + [walk.open_exclusive] * 3 + [walk.open_plain] * 2
    steps += [walk.open_elsewhere, walk.expect_wrongly, walk.release, walk.release_by_force, walk.scale]
    for life in range(4):
        async with scenario.running() as run, run.peer() as peer:
            if not life:
                await peer.ask(m.CreateStream(STREAM, 2, ""), m.StreamInfo)
            for number in range(30):
                await walk.look(peer)
                await walk.choices.choice(steps)(peer)
                if is_published and number % 10 == 9:
                    await run.published()
