"""Load that rises and falls, and a server that follows it within seconds."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import millrace

USUAL_S: Final = 240
"""So long a load is followed at its leisure by a server with its usual settings."""
PHASES: Final = ((0.1, 0.6), (0.45, 5.0), (1.0, 0.25))
"""(until this part of the time, load in targets of one segment)."""
KEYS_PER_WRITER: Final = 32
TICK_S: Final = 0.02

_USUAL_SETTINGS_S: Final = {
    "TICK_S": 2.0,
    "FAST_WINDOW_S": 10.0,
    "SLOW_WINDOW_S": 30.0,
    "SPLIT_AFTER_S": 10.0,
    "MERGE_AFTER_S": 20.0,
}


async def write_load(
    client: millrace.Client, stream: str, name: str, *, rate_per_s: float, duration_s: float, sent: Counter[str]
) -> None:
    """Write events that carry the number of the event within its key, more and fewer of them by the phases.

    Args:
        name: of the writer; its keys begin with it.
        rate_per_s: events of this writer at a load of 1.
        sent: of each key, how many were written; it is counted on.
    """
    chance = random.Random(name)
    keys = [f"{name}-{number}" for number in range(KEYS_PER_WRITER)]
    weights = [1 / (number + 4) for number in range(KEYS_PER_WRITER)]  # some keys get more than others
    started_s = time.monotonic()
    owed = 0.0
    async with client.writer(stream) as writer:
        while (passed := (time.monotonic() - started_s) / duration_s) < 1:
            owed += TICK_S * rate_per_s * next(load for until, load in PHASES if passed < until)
            for key in chance.choices(keys, weights, k=int(owed)):
                await writer.drain()
                sent[key] += 1
                _ = writer.write(b"%d" % sent[key], key=key)
            owed -= int(owed)
            await asyncio.sleep(TICK_S)


def eager_settings(duration_s: float) -> dict[str, str]:
    """Return the settings of a server that decides as fast as a load is short."""
    pace = min(1.0, duration_s / USUAL_S)
    return {f"MILLRACE_STREAMS_{name}": f"{value * pace:.3f}" for name, value in _USUAL_SETTINGS_S.items()}


@contextmanager
def eager_server(duration_s: float) -> Iterator[str]:
    """Run such a server; give its address."""
    with millrace.testing.server(settings=eager_settings(duration_s)) as server:
        yield server.address
