"""A stream under random blocks, splits, merges, truncations, deletes and restarts: the row against a plain list."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.model.sequence_row import SequenceRow
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from tests.support.protocol import Peer, Stored
from tests.support.scenario import Scenario
from tests.support.servers import BUSY, QUIET

PLACES_COUNT = 16
WIDTH = KEY_SPACE // PLACES_COUNT


@dataclass
class Model:
    """What a row must say: for each place the highest sequence stored there."""

    through: int = -1
    marks: list[int] = field(default_factory=lambda: [-1] * PLACES_COUNT)
    next_sequence: int = 0

    def stored_at(self, place: int) -> int:
        return max(self.through, self.marks[place])


class Walk:
    """Random steps on the stream `walk/s`, through one writer."""

    def __init__(self, seed: int) -> None:
        self.choices = random.Random(seed)
        self.model = Model()

    async def begin(self, peer: Peer) -> None:
        """Begin another life of the writer, and compare what it is told."""
        self.stream = await peer.ask(m.GetStream("walk/s"), m.StreamInfo)
        ids = [segment.segment_id for segment in self.stream.segments]
        nonce = self.choices.randbytes(16)
        self.opened = await peer.ask(m.OpenWriter("w", ids, 0, self.stream.stream_id, nonce), m.WriterOpened)
        self.numbers = {state.segment_id: state.last_event_number for state in self.opened.states}
        self.compare(self.opened)

    def compare(self, told: m.WriterOpened) -> None:
        row = SequenceRow(told.stored_through, told.marks)
        assert row.through == self.model.through
        assert [row.stored_at(place * WIDTH + 1) for place in range(PLACES_COUNT)] == [
            self.model.stored_at(place) for place in range(PLACES_COUNT)
        ]

    def open_parts(self) -> list[m.StreamSegment]:
        return sorted((each for each in self.stream.segments if not each.sealed_epoch), key=lambda each: each.low)

    async def store(self, peer: Peer) -> None:
        """Send a block to one segment, as a client would that has all before it acknowledged, or not yet."""
        part = self.choices.choice(self.open_parts())
        places = range(part.low // WIDTH, part.last // WIDTH + 1)
        first = max([self.model.next_sequence, *(self.model.stored_at(place) + 1 for place in places)])
        last = first + self.choices.randrange(3)
        below = self.choices.randint(max(0, min(self.model.through + 1, first)), first)
        number = self.numbers.get(part.segment_id, 0) + 1
        self.numbers[part.segment_id] = number
        ids = await peer.append(
            part.segment_id, b"x", event_number=number, sequences=Sequences(first, last, below),
            writer_number=self.opened.writer_number, writer_epoch=self.opened.writer_epoch,
        )  # fmt: skip
        (outcome,) = await peer.settled(ids)
        assert isinstance(outcome, Stored), outcome
        for place in places:
            self.model.marks[place] = max(self.model.marks[place], last)
        self.model.through = max(self.model.through, below - 1)
        # Others may send lower sequences to other places.
        self.model.next_sequence = max(0, first - self.choices.randrange(4))

    async def tell(self, peer: Peer) -> None:
        below = self.choices.randint(0, max(self.model.stored_at(place) for place in range(PLACES_COUNT)) + 1)
        request = m.TellStored(self.opened.writer_number, self.opened.writer_epoch, self.stream.stream_id, below)
        await peer.ask(request, m.Done)
        self.model.through = max(self.model.through, below - 1)

    async def scale(self, peer: Peer) -> None:
        parts = self.open_parts()
        index = self.choices.randrange(len(parts))
        part, pair = parts[index], parts[index : index + 2]
        if len(pair) == 2 and self.choices.random() < 0.5:
            sealed, ranges = [each.segment_id for each in pair], [(part.low, pair[1].last)]
        elif part.last - part.low >= WIDTH:
            border = self.choices.randrange(part.low // WIDTH + 1, part.last // WIDTH + 1) * WIDTH
            sealed, ranges = [part.segment_id], [(part.low, border - 1), (border, part.last)]
        else:
            return
        request = m.ScaleStream("walk/s", sealed, [m.KeyRangeRecord(*each) for each in ranges])
        self.stream = await peer.ask(request, m.StreamInfo)

    async def truncate(self, peer: Peer) -> None:
        positions = [m.SavedPosition(each.segment_id, 0) for each in self.open_parts()]
        self.stream = await peer.ask(m.TruncateStream("walk/s", positions), m.StreamInfo)


@pytest.mark.parametrize("options", [QUIET, BUSY], ids=["in the log", "in the checkpoint"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.asyncio
async def test_the_row_is_what_was_stored(scenario: Scenario, options: Any, seed: int) -> None:
    """Behaviour 66: over splits, merges, truncation, new lives and restarts."""
    print(f"seed {seed}")
    walk = Walk(seed)
    for life in range(4):
        async with scenario.running(container=options) as run, run.peer() as peer:
            if not life:
                await peer.ask(m.CreateStream("walk/s", 2, ""), m.StreamInfo)
            await walk.begin(peer)
            for _ in range(25):
                await walk.choices.choice([walk.store] * 5 + [walk.tell, walk.scale, walk.truncate, walk.begin])(peer)
            told = await peer.ask(m.GetWriter("w", [], walk.stream.stream_id), m.WriterOpened)
            walk.compare(told)
            if options is BUSY:
                await run.published()
