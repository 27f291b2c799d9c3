"""Rounds of a torture: in each one something lives on a server of its own, drawn by a seed, and is judged.

python -m tests.crash.test_elastic --rounds 20 --seed 7
python -m tests.crash.test_elastic --seed 7 --only 13 --keep /tmp/folder
"""

import argparse
import asyncio
import faulthandler
import itertools
import math
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from millrace.client.testing import SETTINGS_SMALL, TestServer
from millrace.server.offline.findings import Verification
from millrace.server.offline.verification import verify_folder
from tests.support.servers import ENVIRONMENT_OF_BUSY

SECONDS: Final = 6.0

TINY_CACHES: Final = {
    "MILLRACE_CONTAINER_IDLE_BYTES_MAX": "0",
    "MILLRACE_CACHE_BUDGET_BYTES": str(64 << 10),
    "MILLRACE_CACHE_PAGE_SIZE_BYTES": str(4 << 10),
    "MILLRACE_CACHE_READ_AHEAD_BYTES": str(8 << 10),
}
"""Nothing idle is held in memory, and few events that were moved to tier 2."""

SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "quiet": SETTINGS_SMALL,
    "busy": ENVIRONMENT_OF_BUSY,
    "forgetful": {
        **ENVIRONMENT_OF_BUSY,
        **TINY_CACHES,
        "MILLRACE_CONTAINER_VERIFIED_AT_ONCE_COUNT_MAX": "0",
    },
    "forgetful and quiet": {
        **SETTINGS_SMALL,
        **TINY_CACHES,
    },
}
"""How a server is set. What is idle is nowhere but in the checkpoint of one that is forgetful."""


class Server(Protocol):
    """What a life is lived on, such as a `TestServer`. Its methods block."""

    @property
    def address(self) -> str:
        """As clients take it; the same after a restart."""
        ...

    def start(self) -> None:
        """Start it; clients come when it serves."""
        ...

    def kill(self) -> None:
        """End it without any warning."""
        ...

    def stop(self) -> int:
        """End it in good order; return its exit code, 0 if it was not running."""
        ...


class Life(Protocol):
    """What lives on a server, which it may kill and start again.

    Attributes:
        counted: what happened, and how often.
    """

    @property
    def server(self) -> Server:
        """Not started yet."""
        ...

    counted: Counter[str]

    async def run(self) -> None:
        """Live it. Whoever sees what must not be raises AssertionError."""
        ...


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where a life is to be lived, and how long.

    Attributes:
        dice: of this round alone.
        seconds: so long it lives, about.
        server: a folder that is not there yet, for the server.
        histories: the same, for what the processes record.
    """

    dice: random.Random
    seconds: float
    server: Path
    histories: Path


Begin = Callable[[Circumstances], tuple[str, Life]]
"""Makes a life, whose server is not started yet, and says in some words what it is like."""

Verify = Callable[[Path], Sequence[object]]
"""Says what is damaged in the folder of a server that has ended. Blocks."""


def damage_in_folder(folder: Path) -> Sequence[object]:
    """Return what is damaged in a data folder."""
    return Verification.of(verify_folder(folder)).findings


async def torture(
    begin: Begin,
    *,
    rounds: int | None,
    seed: int,
    seconds: float = SECONDS,
    first: int = 0,
    minutes: float = math.inf,
    folder: Path | None = None,
    verify: Verify = damage_in_folder,
) -> Counter[str]:
    """Run rounds, print a line for each one, and return the sum of what they counted.

    Args:
        rounds: how many; None for as many as begin within `minutes`.
        first: number of the first round.
        minutes: no round begins after so many.
        folder: for the server and the history, left there if a round fails.
    """
    total: Counter[str] = Counter()
    end_s = time.monotonic() + minutes * 60
    for number in itertools.count(first) if rounds is None else range(first, first + rounds):
        if time.monotonic() >= end_s:
            print(f"seed {seed}: out of time after {number - first} rounds", flush=True)
            break
        dice = random.Random(f"{seed}/{number}")
        place = folder or Path(tempfile.mkdtemp(prefix="millrace-"))
        data = place / "server"
        described, life = begin(Circumstances(dice, seconds, data, place / "histories"))
        name = f"seed {seed} round {number}: {described}"
        try:
            life.server.start()
            await life.run()
            if dice.random() < 0.5:
                life.server.kill()
            else:
                assert life.server.stop() == 0
            damage = await asyncio.to_thread(verify, data)
            assert not damage, damage
        except BaseException:
            print(f"{name}; FAILED after {dict(life.counted)}", flush=True)
            raise
        finally:
            life.server.stop()
            if folder is None:
                shutil.rmtree(place, ignore_errors=True)
        if folder is not None:
            shutil.rmtree(place)
        print(f"{name}; {shown(life.counted)}", flush=True)
        total += life.counted
    return total


def server_in(folder: Path, settings: Mapping[str, str]) -> TestServer:
    """Return a server to be killed, on an address that no other process uses."""
    return TestServer(folder, settings=settings, listen=listen_of_this_process())


def listen_of_this_process() -> str:
    """Return where a server is to listen that is killed.

    While it is dead its port is free. On the address that all tests use a server of another one could get it, and would
    answer the clients of this one.
    """
    high, middle, low = os.getpid().to_bytes(3)
    return f"127.{128 + high}.{middle}.{low}:0"


def shown(counted: Counter[str]) -> str:
    """Return what happened, and how often."""
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counted.items()))


def random_seed() -> int:
    """Return a seed that is short to write; every round names it."""
    return random.SystemRandom().randint(0, 10**6)


def run_from_command_line(
    begin: Begin, description: str | None, *, seconds: float = SECONDS, verify: Verify = damage_in_folder
) -> int:
    """Run the rounds that the command line asks for; return the exit code.

    Args:
        seconds: that a round lives, if the command line does not say it.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="how many (default: 10, or as many as begin within --minutes)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no round begins after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=seconds, help="that a round lives, about")
    parser.add_argument("--only", type=int, help="this round alone")
    parser.add_argument("--keep", type=Path, help="folder of the server and the history, left there if a round fails")
    chosen = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # where it hangs, if it does
    rounds = chosen.rounds or (10 if chosen.minutes == math.inf else None)
    rounds, first = (rounds, 0) if chosen.only is None else (1, chosen.only)
    running = torture(
        begin,
        rounds=rounds,
        seed=chosen.seed,
        seconds=chosen.seconds,
        first=first,
        minutes=chosen.minutes,
        folder=chosen.keep,
        verify=verify,
    )
    total = asyncio.run(running)
    print(f"in all: {shown(total)}")
    return 0
