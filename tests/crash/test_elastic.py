"""Writers, readers, scaling and SIGKILL together: every key's sequence is +1 at the readers.

In each round a stream lives through some seconds of this: writers with and without an id write numbered events of many
keys, one by one and in blocks; the stream is scaled 1 -> 3 -> 1 -> ... at borders of chance; the server is killed at
moments of chance and started again; one reader reads events, one record batches, and one stops all the time and goes
on from the text of its place. Then the stream is sealed, and each reader must have every number of each key, once, in
order.

    python -m tests.crash.test_elastic --rounds 20 --seed 7
"""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import argparse
import asyncio
import random
import sys
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field

import pytest

import millrace
from millrace.client.blocks import Position
from millrace.client.client import Client
from millrace.client.streams import StreamConfig
from millrace.client.testing import TestServer
from millrace.client.writer import WriterOptions

STREAM = "torture/elastic"
WRITERS = 4
KEYS_PER_WRITER = 6
SECONDS = 6.0
PLACES_REMEMBERED = 12


@dataclass
class Seen:
    """What one reader was given: how far each key has come, and where its last events stood."""

    name: str
    next_number: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    last_places: defaultdict[str, deque[tuple[int, Position]]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=PLACES_REMEMBERED))
    )

    def take(self, key: str | None, value: bytes, place: Position) -> None:
        assert key is not None
        expected = self.next_number[key]
        # Twice at one place would be the reader's fault, at two places the writer's or the server's.
        assert int(value) == expected, (
            f"{self.name}: key {key} has {int(value)} at {place} where {expected} must come; "
            f"before it: {list(self.last_places[key])}"
        )
        self.next_number[key] = expected + 1
        self.last_places[key].append((expected, place))


class Round:
    """One life of the stream."""

    def __init__(self, server: TestServer, dice: random.Random, *, seconds: float) -> None:
        self._server = server
        self._dice = dice
        self._ends_s = time.monotonic() + seconds
        self.written: dict[str, int] = {}
        self.scalings = self.kills = self.reroutes = self.stops = 0

    async def run(self) -> list[Seen]:
        """Return what each reader saw; writers and readers raise what is wrong."""
        async with millrace.connect(self._server.address) as client:
            await client.create_stream(STREAM, StreamConfig())
            seen = [Seen("events"), Seen("batches"), Seen("again and again")]
            async with asyncio.TaskGroup() as reading:
                reading.create_task(self._read_events(client, seen[0]))
                reading.create_task(self._read_batches(client, seen[1]))
                reading.create_task(self._read_in_parts(client, seen[2]))
                async with asyncio.TaskGroup() as writing:
                    for number in range(WRITERS):
                        writing.create_task(self._write(client, number))
                    writing.create_task(self._scale(client))
                    writing.create_task(self._kill())
                await client.seal_stream(STREAM)
            await client.delete_stream(STREAM)
            return seen

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_s

    async def _write(self, client: Client, number: int) -> None:
        dice = random.Random(self._dice.random())
        keys = [f"{number}.{key}" for key in range(KEYS_PER_WRITER)]
        nexts = dict.fromkeys(keys, 0)
        options = WriterOptions(block_size_bytes=dice.choice([1024, 4096, 1 << 20]), drain_high_bytes=200_000,
                                drain_low_bytes=100_000)  # fmt: skip
        writer_id = f"torture-{number}" if number % 2 else None
        async with client.writer(STREAM, writer_id=writer_id, options=options) as writer:
            while not self._is_over:
                for _ in range(dice.randint(1, 30)):
                    key = dice.choice(keys)
                    if dice.random() < 0.1:
                        count = dice.randint(1, 8)
                        writer.write_many([b"%d" % (nexts[key] + each) for each in range(count)], key=key)
                        nexts[key] += count
                    elif dice.random() < 0.1:
                        writer.write_many([b"%d" % nexts[each] for each in keys], keys=keys)
                        for each in keys:
                            nexts[each] += 1
                    else:
                        writer.write(b"%d" % nexts[key], key=key)
                        nexts[key] += 1
                await asyncio.sleep(dice.random() * 0.01)
                await writer.drain()
            await writer.flush()
            assert writer.pending_bytes == 0
            self.reroutes += writer.statistics().reroutes
            assert sum(writer.last_event_numbers.values()) == sum(nexts.values())
        self.written |= nexts

    async def _scale(self, client: Client) -> None:
        dice = random.Random(self._dice.random())
        while not self._is_over:
            opened = (await client.stream_info(STREAM)).open_segments
            sealed = [segment.segment_id for segment in opened]
            low, high = sorted((dice.uniform(0.1, 0.5), dice.uniform(0.5, 0.9)))
            ranges = [(0.0, low), (low, high), (high, 1.0)] if len(sealed) == 1 else [(0.0, 1.0)]
            if len(sealed) == 3 and dice.random() < 0.5:  # only two of them, so that one is kept
                kept = dice.choice([opened[0], opened[2]])
                others = [segment for segment in opened if segment is not kept]
                sealed = [segment.segment_id for segment in others]
                ranges = [(others[0].low, others[1].high)]
            elif len(sealed) == 2:
                middle = dice.uniform(0.2, 0.8)
                ranges = [(0.0, middle), (middle, 1.0)] if dice.random() < 0.5 else [(0.0, 1.0)]
            await client.scale_stream(STREAM, seal=sealed, ranges=ranges)
            self.scalings += 1
            await asyncio.sleep(dice.random() * 0.1)

    async def _kill(self) -> None:
        dice = random.Random(self._dice.random())
        while not self._is_over:
            await asyncio.sleep(dice.uniform(0.1, 1.5))
            await asyncio.to_thread(self._server.kill)
            await asyncio.to_thread(self._server.start)
            self.kills += 1

    async def _read_events(self, client: Client, seen: Seen) -> None:
        async with client.reader(STREAM) as reader:
            async for event in reader:
                seen.take(event.key, event.value, event.position)

    async def _read_batches(self, client: Client, seen: Seen) -> None:
        async with client.reader(STREAM) as reader:
            async for batch in reader.arrow_batches():
                for row in batch.to_pylist():
                    seen.take(row["key"], row["value"], Position(row["segment"], row["offset"], row["index"]))

    async def _read_in_parts(self, client: Client, seen: Seen) -> None:
        dice = random.Random(self._dice.random())
        cut: millrace.Cut = millrace.HEAD
        while True:
            left = dice.randint(1, 400)
            async with client.reader(STREAM, start=cut) as reader:
                async for event in reader:
                    seen.take(event.key, event.value, event.position)
                    left -= 1
                    if not left:
                        break
                cut = millrace.parse_cut(str(reader.position()))
            self.stops += 1
            if left:
                return


async def torture(*, rounds: int, seed: int, seconds: float) -> None:
    """Run so many rounds, and say what each was like."""
    with millrace.testing.server() as server:
        for number in range(rounds):
            dice = random.Random(f"{seed}/{number}")
            life = Round(server, dice, seconds=seconds)
            seen = await life.run()
            for reader in seen:
                assert dict(reader.next_number) == {key: count for key, count in life.written.items() if count}
            print(
                f"seed {seed} round {number}: {sum(life.written.values())} events, {life.scalings} scalings, "
                f"{life.kills} kills, {life.reroutes} times re-routed, {life.stops} readers one behind the other"
            )
            assert life.scalings > 1
            assert life.reroutes > 1


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_every_key_is_complete_and_in_order_whatever_happens() -> None:
    """Behaviours 2, 3, 5, 22, 26 and 27."""
    await torture(rounds=2, seed=random.SystemRandom().randint(0, 10**6), seconds=SECONDS)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each round")
    chosen = parser.parse_args()
    asyncio.run(torture(rounds=chosen.rounds, seed=chosen.seed, seconds=chosen.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
