"""Producers in processes of their own, killed and started again, while the stream is scaled and the server killed.

Each writes the sequences 0, 1, 2, ... under a writer id of its own: to many keys, or without keys, one by one and in
calls of many. When it starts it continues after `stored_through`. Meanwhile the stream splits and merges, the server
is killed, and what a consumer has read is truncated. In the end the consumer has every sequence once, those of a key in
their order.

    python -m tests.crash.test_producers --rounds 20 --seed 7
    python -m tests.crash.test_producers --seed 7 --only 13 --keep /tmp/folder
"""

# mypy: disable-error-code="unused-awaitable"

import asyncio
import contextlib
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.testing import SETTINGS_SMALL, TestServer
from millrace.model.cut import StreamCut
from tests.crash import producing
from tests.crash.patience import PATIENT
from tests.crash.processes import kill
from tests.crash.recorded_reads import RecordedRead, record_lineage, recorded_cut
from tests.crash.torture import Circumstances, random_seed, run_from_command_line, server_in, torture
from tests.support.history import Recorder, demand, read_lines

KEYS_OF_PRODUCERS = {"keyed": 17, "few": 3, "keyless": 0}
STREAM = "crash/producers"
SEQUENCES_PER_S = 600
KILLS_MAX = 4
PATIENCE_S = 300.0

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Round:
    """Some producers of one stream, from its creation to its end; each process records its part of the history.

    Attributes:
        count: of the sequences that each producer writes.
        counted: what happened, and how often.
    """

    server: TestServer
    histories: Path
    dice: random.Random
    count: int
    is_over: bool = False
    counted: Counter[str] = field(default_factory=Counter)
    lives: int = 0

    def __post_init__(self) -> None:
        self.histories.mkdir(parents=True)
        self._recorder = Recorder("consumer", self.histories / "consumer.jsonl")

    async def run(self) -> None:
        """Produce, disturb and check."""
        async with asyncio.timeout(PATIENCE_S), millrace.connect(self.server.address, options=PATIENT) as client:
            await client.create_stream(STREAM)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._consume(client), name="consume")
                tasks.create_task(self._disturb(client), name="disturb")
                async with asyncio.TaskGroup() as producers:
                    for name, keys in KEYS_OF_PRODUCERS.items():
                        producers.create_task(self._produce(name, keys), name=name)
                self.is_over = True
                await client.seal_stream(STREAM)
            record_lineage(self._recorder, STREAM, await client.stream_history(STREAM))
            await client.delete_stream(STREAM)
        self._recorder.close()
        verdict = await asyncio.to_thread(demand, read_lines(self.histories))
        count = self.count * len(KEYS_OF_PRODUCERS)
        wanted = {"events": count, "acknowledged": count, "unread": 0}
        assert {what: verdict.counts[what] for what in wanted} == wanted
        self.counted["events"] = count

    async def _produce(self, name: str, keys: int) -> None:
        """Start a producer until it has ended by itself, killing it some times before."""
        kills = 0
        while True:
            self.lives += 1
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", producing.__name__,
                self.server.address, STREAM, name, str(keys), str(self.count), str(self.dice.random()),
                str(self.histories / f"{name}-{self.lives}.jsonl"),
                stdout=asyncio.subprocess.PIPE, env=os.environ, cwd=ROOT,
            )  # fmt: skip
            assert process.stdout is not None
            try:
                started = await process.stdout.readline()
                if kills < KILLS_MAX and started:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), self.dice.uniform(0.02, 0.6))
                        await process.communicate()
                        assert process.returncode == 0, f"{name} failed by itself"
                        return
                    kills += 1
                    self.counted["producers killed"] += 1
                    kill(process.pid)
                await process.communicate()
                if process.returncode == 0:
                    return
                assert process.returncode == -9, f"{name} failed by itself"
            finally:
                if process.returncode is None:
                    kill(process.pid)

    async def _disturb(self, client: Client) -> None:
        """Scale the stream all the time, and kill the server now and then."""
        dice = self.dice
        while not self.is_over:
            opened = list((await client.stream_info(STREAM)).open_segments)
            if len(opened) > 1 and dice.random() < 0.5:
                first = dice.randrange(len(opened) - 1)
                sealed, ranges = opened[first : first + 2], [(opened[first].low, opened[first + 1].high)]
            else:
                segment = dice.choice(opened)
                middle = segment.low + (segment.high - segment.low) * dice.uniform(0.2, 0.8)
                sealed, ranges = [segment], [(segment.low, middle), (middle, segment.high)]
            with contextlib.suppress(millrace.StreamSealedError):
                await client.scale_stream(STREAM, seal=[each.segment_id for each in sealed], ranges=ranges)
            self.counted["scalings"] += 1
            await asyncio.sleep(dice.uniform(0.0, 0.2))
            if dice.random() < 0.05:
                await asyncio.to_thread(self.server.kill)
                await asyncio.to_thread(self.server.start)
                self.counted["servers killed"] += 1

    async def _consume(self, client: Client) -> None:
        """Read everything, and truncate what was read now and then."""
        read = RecordedRead(self._recorder, "consumer", STREAM)
        async with client.reader(STREAM) as reader:
            async for event in reader:
                read.take(event.value.decode(), segment=event.segment, offset=event.offset, index=event.index)
                if self.dice.random() < 0.001:
                    await self._truncate(client, reader.position())
            read.end(reader.position(), is_tail=True)

    async def _truncate(self, client: Client, cut: StreamCut) -> None:
        call = self._recorder.call("consumer", "truncate", stream=STREAM, cut=recorded_cut(cut))
        try:
            await client.truncate_stream(STREAM, cut)
        except millrace.CutInvalidError:  # inside of an append
            self._recorder.answer(call, "refused")
        else:
            self._recorder.answer(call, "done")
            self.counted["truncations"] += 1


def begin(given: Circumstances) -> tuple[str, Round]:
    """Make the life of a round."""
    count = round(SEQUENCES_PER_S * given.seconds)
    return f"{count} sequences", Round(server_in(given.server, SETTINGS_SMALL), given.histories, given.dice, count)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_producers_that_are_killed_store_every_sequence_once() -> None:
    """Behaviours 3, 22 and 66, in real processes."""
    await torture(begin, rounds=1, seed=random_seed())


if __name__ == "__main__":
    sys.exit(run_from_command_line(begin, __doc__))
