"""A server that is killed again and again, and every acknowledged byte accounted for after each restart.

The suite does a few rounds. For many, with a seed that is printed and can be given again::

    python -m tests.crash.test_kill --rounds 200 --seed 7
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.crash.clients import Clients
from tests.crash.processes import ServerProcess
from tests.support.protocol import Peer


async def rounds(folder: Path, *, count: int, seed: int, longest_s: float = 0.6, talks: bool = False) -> int:
    """Kill a server `count` times, or until it had time to store something; return the bytes accounted for."""
    choices = random.Random(seed)
    clients = Clients(seed)
    size = 0
    server = await ServerProcess.start(folder)
    try:
        await clients.prepare(server.address)
        number = 0
        while number < count or not size:
            number += 1
            writing = asyncio.create_task(clients.write(server.address))
            delay_s = choices.uniform(0.02, longest_s)
            await asyncio.wait([writing], timeout=delay_s)
            await server.kill()
            await writing
            started_s = time.monotonic()
            server = await ServerProcess.start(folder)
            restart_s = time.monotonic() - started_s
            size = await clients.check(server.address)
            if talks:
                print(
                    f"round {number}: killed after {delay_s:.3f} s, back in {restart_s:.2f} s, {size} bytes", flush=True
                )
    finally:
        await server.kill()
    return size


@pytest.mark.slow
@pytest.mark.asyncio
async def test_whatever_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    """Behaviours 3, 5 and 39: every acked append is there, once, in order, after every kill."""
    seed = 11
    print(f"seed {seed}")
    assert await rounds(tmp_path / "data", count=6, seed=seed) > 0


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_server_that_is_killed_while_it_recovers_recovers_the_next_time(tmp_path: Path) -> None:
    """Behaviour 39: also when the kill comes during the restart, at any moment of it."""
    folder = tmp_path / "data"
    choices = random.Random(5)
    clients = Clients(5)
    server = await ServerProcess.start(folder)
    await clients.prepare(server.address)
    writing = asyncio.create_task(clients.write(server.address))
    await asyncio.wait([writing], timeout=0.5)
    await server.kill()
    await writing
    for _ in range(4):
        starting = asyncio.create_task(ServerProcess.start(folder))
        await asyncio.wait([starting], timeout=choices.uniform(0.2, 0.6))
        if starting.done():
            await (await starting).kill()
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    server = await ServerProcess.start(folder)
    await clients.check(server.address)
    await server.kill()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_sigterm_under_load_ends_in_time_and_the_restart_replays_nothing(tmp_path: Path) -> None:
    """Behaviour 48: finishes or fails what is in flight, exits inside its deadline; the restart needs no recovery."""
    folder = tmp_path / "data"
    clients = Clients(3)
    server = await ServerProcess.start(folder)
    await clients.prepare(server.address)
    writing = asyncio.create_task(clients.write(server.address))
    await asyncio.wait([writing], timeout=0.5)
    started_s = time.monotonic()
    assert await server.end(signal.SIGTERM) == 0
    assert time.monotonic() - started_s < 10
    await writing
    server = await ServerProcess.start(folder, log_level="INFO")
    started = next(line for line in server.said.splitlines() if "container started" in line)
    assert "tail_bytes=0" in started
    assert "torn_bytes=0" in started
    await clients.check(server.address)
    async with await Peer.connect(server.address):
        assert await server.end(signal.SIGTERM) == 0


def main() -> int:
    """Run many rounds; return 1 when something was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.test_kill", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--longest", type=float, default=2.0, help="seconds before a kill, at most")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    # So that a time limit from outside ends the server, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        size = asyncio.run(
            rounds(path, count=arguments.rounds, seed=arguments.seed, longest_s=arguments.longest, talks=True)
        )
    print(f"{size} bytes accounted for")
    return 0


if __name__ == "__main__":
    sys.exit(main())
