"""A process that writes in transactions, decides over those of others, or moves events on, until it is told to end.

    python -m tests.crash.transactions.program ROLE ADDRESS NAME LIFE SEED HISTORY [LANE=NUMBER ...] [WRITER_ID ...]

It records what it asks and is told, and says to its parent, in lines of words, what that has to know.
"""

import asyncio
import os
import random
import sys
import traceback
from pathlib import Path
from typing import Final

import millrace
from tests.crash.elastic.program import lines_of_input
from tests.crash.patience import PATIENT
from tests.crash.transactions.chain import Chain
from tests.crash.transactions.deciding import Decider
from tests.crash.transactions.lanes import Lane
from tests.crash.transactions.queries import Query
from tests.support.history import Recorder

END: Final = "end"


def say(*words: object) -> None:
    """Tell the parent."""
    print(*words, flush=True)


async def run(role: str, address: str, name: str, life: str, seed: str, path: str, *parts: str) -> None:
    """Play a role until there is a line `end`."""
    recorder = Recorder(Path(path).stem, Path(path))
    lines = lines_of_input()
    say("ready")

    def is_over() -> bool:
        return not lines.empty()

    # Not entered: it connects when it must, again and again while nothing is there.
    client = millrace.connect(address, options=PATIENT)
    try:
        if role == "decider":
            await Decider(client, recorder, name, say).run(lines)
        elif role == "chain":
            await Chain(client, recorder, name, int(life), random.Random(seed), say).run(is_over)
        elif role == "query":
            async with asyncio.TaskGroup() as tasks:
                for place, writer in enumerate(parts):
                    dice = random.Random(f"{seed}/{place}")
                    is_last = name.endswith("-0") and not place
                    query = Query(client, recorder, f"{name}.{place}", int(life), writer, dice, say, is_last)
                    tasks.create_task(query.run(is_over), name=query.name)
        else:
            async with asyncio.TaskGroup() as tasks:
                for lane in parts:
                    of_lane, _, number = lane.partition("=")
                    dice = random.Random(f"{seed}/{of_lane}")
                    running = Lane(client, recorder, of_lane, int(life), int(number), dice, say).run(is_over)
                    tasks.create_task(running, name=of_lane)
    finally:
        await client.close()


def main() -> None:
    """Run from the command line."""
    try:
        asyncio.run(run(*sys.argv[1:]))
    except BaseException:  # noqa: BLE001  # whatever it was: the thread that listens must not hold up the end
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
