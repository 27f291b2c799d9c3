"""Producers in processes of their own, killed and started again, while the stream is scaled and the server killed.

Each writes the sequences 0, 1, 2, ... under a writer id of its own: to many keys, or without keys, one by one and in
calls of many. When it starts it continues after `stored_through`. Meanwhile the stream splits and merges, the server
is killed, and what a consumer has read is truncated. In the end the consumer has every sequence once, those of a key in
their order.

    python -m tests.crash.test_producers --minutes 60 --seed 7
"""

# mypy: disable-error-code="unused-awaitable"

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import millrace
from millrace.cli.verification import verify_folder
from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.model.cut import StreamCut
from tests.crash import producing
from tests.crash.patience import PATIENT
from tests.crash.processes import kill
from tests.crash.recorded_reads import RecordedRead, record_lineage, recorded_cut
from tests.support.history import Recorder, demand, read_lines

KEYS_OF_PRODUCERS = {"keyed": 17, "few": 3, "keyless": 0}
COUNT = 4000
KILLS_MAX = 4
PATIENCE_S = 300.0

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Round:
    """Some producers of one stream, from its creation to its end; each process records its part of the history."""

    server: TestServer
    stream: str
    histories: Path
    dice: random.Random
    is_over: bool = False
    counted: Counter[str] = field(default_factory=Counter)
    lives: int = 0

    def __post_init__(self) -> None:
        self.histories.mkdir()
        self._recorder = Recorder("consumer", self.histories / "consumer.jsonl")

    async def run(self) -> None:
        """Produce, disturb and check."""
        async with asyncio.timeout(PATIENCE_S), millrace.connect(self.server.address, options=PATIENT) as client:
            await client.create_stream(self.stream)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._consume(client), name="consume")
                tasks.create_task(self._disturb(client), name="disturb")
                async with asyncio.TaskGroup() as producers:
                    for name, keys in KEYS_OF_PRODUCERS.items():
                        producers.create_task(self._produce(name, keys), name=name)
                self.is_over = True
                await client.seal_stream(self.stream)
            record_lineage(self._recorder, self.stream, await client.stream_history(self.stream))
            await client.delete_stream(self.stream)
        self._recorder.close()
        verdict = await asyncio.to_thread(demand, read_lines(self.histories))
        wanted = {"events": COUNT * len(KEYS_OF_PRODUCERS), "acknowledged": COUNT * len(KEYS_OF_PRODUCERS), "unread": 0}
        assert {what: verdict.counts[what] for what in wanted} == wanted

    async def _produce(self, name: str, keys: int) -> None:
        """Start a producer until it has ended by itself, killing it some times before."""
        kills = 0
        while True:
            self.lives += 1
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", producing.__name__,
                self.server.address, self.stream, name, str(keys), str(COUNT), str(self.dice.random()),
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
            opened = list((await client.stream_info(self.stream)).open_segments)
            if len(opened) > 1 and dice.random() < 0.5:
                first = dice.randrange(len(opened) - 1)
                sealed, ranges = opened[first : first + 2], [(opened[first].low, opened[first + 1].high)]
            else:
                segment = dice.choice(opened)
                middle = segment.low + (segment.high - segment.low) * dice.uniform(0.2, 0.8)
                sealed, ranges = [segment], [(segment.low, middle), (middle, segment.high)]
            with contextlib.suppress(millrace.StreamSealedError):
                await client.scale_stream(self.stream, seal=[each.segment_id for each in sealed], ranges=ranges)
            self.counted["scalings"] += 1
            await asyncio.sleep(dice.uniform(0.0, 0.2))
            if dice.random() < 0.05:
                await asyncio.to_thread(self.server.kill)
                await asyncio.to_thread(self.server.start)
                self.counted["servers killed"] += 1

    async def _consume(self, client: Client) -> None:
        """Read everything, and truncate what was read now and then."""
        read = RecordedRead(self._recorder, "consumer", self.stream)
        async with client.reader(self.stream) as reader:
            async for event in reader:
                read.take(event.value.decode(), segment=event.segment, offset=event.offset, index=event.index)
                if self.dice.random() < 0.001:
                    await self._truncate(client, reader.position())
            read.end(reader.position(), is_tail=True)

    async def _truncate(self, client: Client, cut: StreamCut) -> None:
        call = self._recorder.call("consumer", "truncate", stream=self.stream, cut=recorded_cut(cut))
        try:
            await client.truncate_stream(self.stream, cut)
        except millrace.CutInvalidError:  # inside of an append
            self._recorder.answer(call, "refused")
        else:
            self._recorder.answer(call, "done")
            self.counted["truncations"] += 1


async def torture(*, seed: int, minutes: float = 0.0) -> None:
    """Run a round, or as many as fit into the time; say what each was like."""
    end_s = time.monotonic() + 60 * minutes
    place = Path(tempfile.mkdtemp(prefix="millrace-"))
    folder, histories = place / "server", place / "histories"
    histories.mkdir()
    server = TestServer(folder)
    server.start()
    number = 0
    try:
        while number == 0 or time.monotonic() < end_s:
            dice = random.Random(f"{seed}/{number}")
            one = Round(server, f"crash/producers-{number}", histories / str(number), dice)
            try:
                await one.run()
            except BaseException:
                print(f"seed {seed} round {number} FAILED: {dict(one.counted)}, all is in {place}", flush=True)
                raise
            print(f"seed {seed} round {number}: {dict(one.counted)}", flush=True)
            number += 1
        assert server.stop() == 0
        verification = await asyncio.to_thread(verify_folder, folder)
        assert not verification.findings, verification.findings
        shutil.rmtree(place)
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_producers_that_are_killed_store_every_sequence_once() -> None:
    """Behaviours 3, 22 and 66, in real processes."""
    await torture(seed=random.SystemRandom().randint(0, 10**6))


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    asyncio.run(torture(seed=chosen.seed, minutes=chosen.minutes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
