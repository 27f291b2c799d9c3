"""Producers in processes of their own, killed and started again, while the stream is scaled and the server killed.

Each writes the numbers 0, 1, 2, ... under its own key and a writer id of its own. When it starts it asks how many
events its writer has stored, and continues after them. At the end every number is there, once, in order.
"""

# mypy: disable-error-code="unused-awaitable"

import asyncio
import os
import random
import sys
from collections import defaultdict

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.testing import TestServer

STREAM = "crash/producers"
PRODUCERS = 2
COUNT = 3000

PRODUCER = """
import asyncio, sys
import millrace

async def produce(address, stream, name, count):
    client = millrace.connect(address)  # not entered: it connects when it must, again and again while nothing is there
    try:
        async with client.writer(stream, writer_id=name) as writer:
            # Asked once the writer is open: the holder of the id before stores nothing more.
            stored = sum(writer.last_event_numbers.values())
            print(stored, flush=True)
            for number in range(stored, count):
                writer.write(b"%d" % number, key=name)
                if number % 20 == 0:
                    await writer.drain()
                    await asyncio.sleep(0.001)
    finally:
        await client.close()

asyncio.run(produce(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
"""


async def produce(address: str, name: str, dice: random.Random) -> int:
    """Start a producer until it has ended by itself; return how often it was killed."""
    kills = 0
    while True:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PRODUCER, address, STREAM, name, str(COUNT),
            stdout=asyncio.subprocess.PIPE, env=os.environ,
        )  # fmt: skip
        assert process.stdout is not None
        await process.stdout.readline()
        if kills < 3:
            try:
                await asyncio.wait_for(process.wait(), dice.uniform(0.01, 0.1))
            except TimeoutError:
                process.kill()
                kills += 1
        await process.communicate()
        if process.returncode == 0:
            return kills
        assert process.returncode == -9, "the producer failed by itself"


async def disturb(client: Client, server: TestServer, dice: random.Random, over: asyncio.Event) -> None:
    """Scale the stream all the time, and kill the server now and then."""
    number = 0
    while not over.is_set():
        opened = (await client.stream_info(STREAM)).open_segments
        ranges = [(0.0, 0.4), (0.4, 1.0)] if len(opened) == 1 else [(0.0, 1.0)]
        await client.scale_stream(STREAM, seal=[segment.segment_id for segment in opened], ranges=ranges)
        await asyncio.sleep(dice.uniform(0.0, 0.1))
        number += 1
        if number % 15 == 0:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_a_producer_that_is_killed_and_started_again_leaves_no_gap_and_no_duplicate(
    millrace_server: TestServer,
) -> None:
    """Behaviours 1, 3 and 22, in real processes."""
    dice = random.Random(11)
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(STREAM)
        over = asyncio.Event()
        names = [f"producer-{number}" for number in range(PRODUCERS)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(disturb(client, millrace_server, dice, over))
            kills = await asyncio.gather(*(produce(millrace_server.address, name, dice) for name in names))
            over.set()
        seen = defaultdict(list)
        async with client.reader(STREAM, end=millrace.TAIL) as reader:
            async for event in reader:
                seen[event.key].append(int(event.value))
        assert seen == {name: list(range(COUNT)) for name in names}
        for name in names:
            state = await client.writer_state(STREAM, name)
            assert state is not None
            assert sum(state.values()) == COUNT
        assert sum(kills) > 0
