"""A producer in a process of its own: it writes the sequences 0, 1, 2, ... and continues after what is stored.

python -m tests.crash.producing ADDRESS STREAM NAME KEYS COUNT SEED HISTORY
"""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path

import millrace
from millrace.client.client import Client
from tests.crash.patience import PATIENT
from tests.crash.recorded_writes import record_outcome
from tests.support.history import Recorder


def event_of(name: str, sequence: int) -> str:
    """Return the value of an event, which is its name in the history, too."""
    return f"{name}:{sequence}"


def key_of(name: str, sequence: int, *, keys: int) -> str | None:
    """Return the key of an event, always the same one; None for a producer without keys."""
    return f"{name}/{sequence * 7919 % keys}" if keys else None


async def produce(
    client: Client,
    stream: str,
    name: str,
    *,
    keys: int,
    count: int,
    dice: random.Random,
    recorder: Recorder,
    on_open: Callable[[int], object] = lambda sequence: None,
) -> None:
    """Write all sequences below `count` that are not stored; then close the client.

    Args:
        on_open: called with the first sequence that is not stored.
    """
    options = millrace.WriterOptions(block_size_bytes=dice.choice([1024, 1 << 20]))
    try:
        opening = recorder.call(name, "open", stream=stream, writer=name)
        async with client.writer(stream, writer_id=name, options=options) as writer:
            recorder.answer(opening, "opened", through=writer.stored_through)
            sequence = writer.stored_through + 1
            on_open(sequence)
            while sequence < count:
                size = min(dice.choice([1, 1, 1, 1, 5, 40]), count - sequence)
                several = range(sequence, sequence + size)
                events = [event_of(name, each) for each in several]
                of_all = [key_of(name, each, keys=keys) for each in several]
                operation = recorder.call(
                    name, "write", stream=stream, writer=name, events=events, keys=of_all, sequences=list(several)
                )
                if size == 1:
                    future = writer.write(events[0].encode(), key=of_all[0], sequence=sequence)
                else:
                    values = [event.encode() for event in events]
                    future = writer.write_many(
                        values, keys=[key for key in of_all if key is not None] or None, first_sequence=sequence
                    )
                record_outcome(recorder, operation, future)
                if dice.random() < 0.01:
                    future.cancel()
                sequence += size
                if dice.random() < 0.1:
                    await writer.drain()
                    await asyncio.sleep(dice.random() * 0.01)
                if dice.random() < 0.01:
                    await writer.flush()
                    assert writer.stored_through == sequence - 1
        # What is closed is stored, also what had been cancelled.
        closed = recorder.call(name, "open", stream=stream, writer=name)
        recorder.answer(closed, "opened", through=count - 1)
    finally:
        await client.close()


def main() -> None:
    """Run from the command line."""
    address, stream, name, keys, count, seed, path = sys.argv[1:]
    recorder = Recorder(Path(path).stem, Path(path))
    dice = random.Random(seed)

    async def run() -> None:
        # Not entered: it connects when it must, again and again while nothing is there.
        client = millrace.connect(address, options=PATIENT)
        await produce(
            client, stream, name,
            keys=int(keys), count=int(count), dice=dice, recorder=recorder,
            on_open=lambda sequence: print(sequence, flush=True),
        )  # fmt: skip

    asyncio.run(run())


if __name__ == "__main__":
    main()
