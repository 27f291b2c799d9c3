"""The process of a producer: writes numbers under two keys, with a writer id and without, until it is told to end.

    python -m tests.crash.elastic.program ADDRESS STREAM NAME KEY_OF_UNNAMED SEED HISTORY

It says `open` and how many events its id has stored, and is told the number to continue with, and at last to end.
"""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import os
import random
import sys
import threading
import traceback
from pathlib import Path
from typing import Final

import millrace
from tests.crash.patience import PATIENT
from tests.crash.recorded_writes import record_outcome
from tests.support.history import Recorder

FENCED: Final = 3
UNKNOWN: Final = 4
"""What it sent last went to a segment that is truncated away by now, and nothing says whether it had been stored."""


def lines_of_input() -> asyncio.Queue[str]:
    """Return a queue that a thread fills which nobody waits for at the end."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)

    threading.Thread(target=listen, daemon=True).start()
    return lines


async def produce(address: str, stream: str, name: str, key_of_unnamed: str, seed: str, path: str) -> None:
    """Write until there is a second line of input."""
    dice = random.Random(seed)
    recorder = Recorder(Path(path).stem, Path(path))

    def write(writer: millrace.Writer, key: str, number: int) -> None:
        call = recorder.call(key, "write", stream=stream, writer=key, events=[f"{key}:{number}"], keys=[key])
        record_outcome(recorder, call, writer.write(b"%d" % number, key=key))

    # Not entered: it connects when it must, again and again while nothing is there.
    client = millrace.connect(address, options=PATIENT)
    try:
        async with client.writer(stream, writer_id=name) as named, client.writer(stream) as unnamed:
            # Whoever had the id before stores nothing more from here on.
            print("open", sum(named.last_event_numbers.values()), flush=True)
            lines = lines_of_input()
            number = int(await lines.get())
            of_unnamed = 0
            while lines.empty():
                for _ in range(dice.randint(1, 40)):
                    write(named, name, number)
                    write(unnamed, key_of_unnamed, of_unnamed)
                    number, of_unnamed = number + 1, of_unnamed + 1
                if dice.random() < 0.3:
                    await named.flush()
                    await unnamed.flush()
                await asyncio.sleep(dice.random() * 0.02)
                await named.drain()
                await unnamed.drain()
            await named.flush()
            await unnamed.flush()
    finally:
        await client.close()


def main() -> None:
    """Run from the command line; the exit code says why it ended."""
    try:
        asyncio.run(produce(*sys.argv[1:]))
    except millrace.WriterFencedError:
        os._exit(FENCED)
    except millrace.OutcomeUnknownError as error:
        print(error, file=sys.stderr)
        os._exit(UNKNOWN)
    except BaseException:  # noqa: BLE001  # whatever it was: the thread that listens must not hold up the end
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
