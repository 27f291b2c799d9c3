"""Watch sensors live: `python -m applications.sensors.live [ADDRESS]`.

A slice of a sensor begins before its first reading below the threshold, and ends before the first one that is not. Both
are told when they are seen: an event for the slice that is open, without an end, and one for the same slice with it.

What is told and the place up to which the readings are watched are one transaction. Kill this program at any moment,
start it again, and each slice is told once. What it has to know is in the stream that it writes.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import millrace

from .recorded import READINGS, SLICES, THRESHOLDS, create, value_of

CURSOR = "watcher"


async def slices(client: millrace.Client) -> AsyncIterator[millrace.Slice]:
    """Yield what was told by now, of each sensor in order."""
    async with client.reader(SLICES, end=millrace.TAIL) as reader:
        async for event in reader:
            yield millrace.Slice.parse(event.value.decode())


async def watch(address: str, *, end: millrace.CutChoice | None = None) -> None:
    """Watch from where the last process stopped, up to a place or as readings come."""
    async with millrace.connect(address) as client:
        await create(client)
        latest = {part.key: part async for part in slices(client)}
        opened = {sensor: part for sensor, part in latest.items() if part.end is None}
        watched = await client.cursors(READINGS).get(CURSOR)
        async with client.reader(READINGS, start=watched or millrace.HEAD, end=end) as reader:
            # A block: what came while the last transaction was on its way.
            while events := await reader.next_events():
                told = []
                for event in events:
                    threshold = THRESHOLDS.get(event.key or "")
                    if threshold is None:
                        continue
                    is_below = value_of(event.value) < threshold
                    if is_below == (event.key in opened):
                        continue
                    here = reader.position(before=event)
                    if is_below:
                        part = opened[event.key] = millrace.Slice(READINGS, start=here, end=None, key=event.key)
                    else:
                        part = replace(opened.pop(event.key), end=here)
                    told.append(part)
                place = reader.position()
                async with client.transaction(SLICES) as transaction:
                    for part in told:
                        _ = transaction.write(str(part).encode(), key=part.key)
                    # Another process that watches the same is refused here, with all that it tells.
                    transaction.advance(READINGS, CURSOR, place, expected=watched)
                watched = place


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240"))
