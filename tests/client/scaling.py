"""A stream that was scaled while it was written, for tests of what spans epochs."""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import random
from collections import defaultdict

from millrace.client.client import Client
from millrace.model.event import Event

THIRDS = [(0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0)]


async def scale(client: Client, name: str) -> list[int]:
    """Split the one open segment into three, or merge all into one; return the ids of the new ones."""
    opened = (await client.stream_info(name)).open_segments
    ranges = THIRDS if len(opened) == 1 else [(0.0, 1.0)]
    info = await client.scale_stream(name, seal=[segment.segment_id for segment in opened], ranges=ranges)
    return [segment.segment_id for segment in info.open_segments]


async def filled(client: Client, name: str, *, scalings: int = 3, per_epoch: int = 60, keys: int = 7) -> list[bytes]:
    """Create a stream and write events in blocks of chance, scaling it 1 -> 3 -> 1 -> ...; return their values.

    The value says number and key; the timestamp is the number. Everything of an epoch is durable before the next.
    """
    await client.create_stream(name)
    dice = random.Random(name)
    values = []
    for epoch in range(scalings + 1):
        # One that is opened now knows the segments: what is rerouted is in order for each key only.
        async with client.writer(name) as writer:
            for number in range(epoch * per_epoch, (epoch + 1) * per_epoch):
                key = f"key-{dice.randrange(keys)}"
                values.append(b"%06d %s" % (number, key.encode()))
                writer.write(values[-1], key=key, timestamp_us=number)
                if dice.random() < 0.3:
                    await writer.flush()
        if epoch < scalings:
            await scale(client, name)
    return values


def check_order(events: list[Event]) -> None:
    """Assert that the events of each key come in the order of their numbers."""
    last: defaultdict[str | None, int] = defaultdict(lambda: -1)
    for event in events:
        number = int(event.value[:6])
        assert number > last[event.key]
        last[event.key] = number
