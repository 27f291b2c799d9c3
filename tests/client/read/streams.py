"""Streams with events in them, and all that a reader finds there."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import random

import millrace
from millrace.client.client import Client
from millrace.model.cut import HEAD
from millrace.model.policy import ScalingPolicy, StreamConfig


async def filled(client: Client, name: str, *, segments: int = 2, count: int = 200, size: int = 0) -> list[bytes]:
    """A stream with that many events in blocks of many sizes; return their values in the order of each key."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(segments)))
    values = [b"%06d" % number + b"." * size for number in range(count)]
    dice = random.Random(name)
    async with client.writer(name) as writer:
        place = 0
        while place < count:
            width = dice.randint(1, 20)
            writer.write_many(values[place : place + width], key=f"key-{place % 5}")
            place += width
    return values


async def read(
    client: Client, name: str, *, start: millrace.Cut = HEAD, end: millrace.Cut | None = None
) -> list[bytes]:
    async with client.reader(name, start=start, end=end) as reader:
        return [event.value async for event in reader]
