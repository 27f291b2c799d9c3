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

KEYS_OF_PRODUCERS = {"keyed": 17, "few": 3, "keyless": 0}
COUNT = 4000
KILLS_MAX = 4
PATIENCE_S = 300.0

PRODUCER = """
import asyncio, random, sys
import millrace

async def produce(address, stream, name, keys, count, seed):
    dice = random.Random(seed)
    client = millrace.connect(address)  # not entered: it connects when it must, again and again while nothing is there
    options = millrace.WriterOptions(block_size_bytes=dice.choice([1024, 1 << 20]))
    key_of = lambda sequence: f"{name}/{sequence * 7919 % keys}"
    try:
        async with client.writer(stream, writer_id=name, options=options) as writer:
            sequence = writer.stored_through + 1
            print(sequence, flush=True)
            while sequence < count:
                size = min(dice.choice([1, 1, 1, 1, 5, 40]), count - sequence)
                several = range(sequence, sequence + size)
                values = [b"%d" % each for each in several]
                if size == 1:
                    key = key_of(sequence) if keys else None
                    future = writer.write(name.encode() + b":" + values[0], key=key, sequence=sequence)
                else:
                    values = [name.encode() + b":" + value for value in values]
                    of_all = [key_of(each) for each in several] if keys else None
                    future = writer.write_many(values, keys=of_all, first_sequence=sequence)
                if dice.random() < 0.01:
                    future.cancel()
                sequence += size
                if dice.random() < 0.1:
                    await writer.drain()
                    await asyncio.sleep(dice.random() * 0.01)
                if dice.random() < 0.01:
                    await writer.flush()
                    assert writer.stored_through == sequence - 1
    finally:
        await client.close()

address, stream, name, keys, count, seed = sys.argv[1:]
asyncio.run(produce(address, stream, name, int(keys), int(count), seed))
"""


@dataclass
class Round:
    """Some producers of one stream, from its creation to its end."""

    server: TestServer
    stream: str
    dice: random.Random
    is_over: bool = False
    counted: Counter[str] = field(default_factory=Counter)
    # By producer, in the order read; and by key the last one.
    read: dict[str, Counter[int]] = field(default_factory=dict)
    last_of_key: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Produce, disturb and check."""
        self.read = {name: Counter() for name in KEYS_OF_PRODUCERS}
        async with asyncio.timeout(PATIENCE_S), millrace.connect(self.server.address) as client:
            await client.create_stream(self.stream)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._consume(client), name="consume")
                tasks.create_task(self._disturb(client), name="disturb")
                async with asyncio.TaskGroup() as producers:
                    for name, keys in KEYS_OF_PRODUCERS.items():
                        producers.create_task(self._produce(name, keys), name=name)
                self.is_over = True
                await client.seal_stream(self.stream)
            await client.delete_stream(self.stream)
        for name, sequences in self.read.items():
            wrong = {each: count for each in range(COUNT) if (count := sequences[each]) != 1}
            assert not wrong, f"{name}: how often each was read that was not read once: {wrong}"

    async def _produce(self, name: str, keys: int) -> None:
        """Start a producer until it has ended by itself, killing it some times before."""
        kills = 0
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PRODUCER,
                self.server.address, self.stream, name, str(keys), str(COUNT), str(self.dice.random()),
                stdout=asyncio.subprocess.PIPE, env=os.environ,
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
                    process.kill()
                await process.communicate()
                if process.returncode == 0:
                    return
                assert process.returncode == -9, f"{name} failed by itself"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

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
        async with client.reader(self.stream) as reader:
            async for event in reader:
                name, sequence = event.value.decode().split(":")
                self.read[name][int(sequence)] += 1
                if event.key is not None:
                    before = self.last_of_key.get(event.key, -1)
                    assert before < int(sequence), f"{event.key}: {sequence} after {before}"
                    self.last_of_key[event.key] = int(sequence)
                if self.dice.random() < 0.001:
                    with contextlib.suppress(millrace.CutInvalidError):  # inside of an append
                        await client.truncate_stream(self.stream, reader.position())
                        self.counted["truncations"] += 1


async def torture(*, seed: int, minutes: float = 0.0) -> None:
    """Run a round, or as many as fit into the time; say what each was like."""
    end_s = time.monotonic() + 60 * minutes
    folder = Path(tempfile.mkdtemp(prefix="millrace-"))
    server = TestServer(folder)
    server.start()
    number = 0
    try:
        while number == 0 or time.monotonic() < end_s:
            one = Round(server, f"crash/producers-{number}", random.Random(f"{seed}/{number}"))
            try:
                await one.run()
            except BaseException:
                print(f"seed {seed} round {number} FAILED: {dict(one.counted)}, folder {folder}", flush=True)
                raise
            print(f"seed {seed} round {number}: {dict(one.counted)}", flush=True)
            number += 1
        assert server.stop() == 0
        verification = await asyncio.to_thread(verify_folder, folder)
        assert not verification.findings, verification.findings
        shutil.rmtree(folder)
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
