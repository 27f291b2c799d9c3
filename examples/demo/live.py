"""The load of the demo: recorded readings, written faster and slower, and read live as they come."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import millrace
from millrace.model.figures import duration_text, time_text

from .data import Reading
from .pulse import Pulse
from .queries import TEMPERATURES

PHASES: Final = ((0.12, 0.6), (0.7, 5.0), (1.0, 0.25))
"""(until this part of the time, load in targets of one segment)."""
MEAN_LOAD: Final = sum(
    (until - since) * load for (until, load), since in zip(PHASES, (0.0, *(each[0] for each in PHASES)), strict=False)
)
TICK_S: Final = 0.05
NEWEST: Final = 4


def share_due(part: float) -> float:
    """Return which share of the readings is written by a part of the time, from 0 to 1."""
    due = since = 0.0
    for until, load in PHASES:
        due += max(0.0, min(part, until) - since) * load
        since = until
    return min(1.0, due / MEAN_LOAD)


def target_per_s(count: int, *, duration_s: float) -> int:
    """Return what a segment is meant to take, so that so many readings are the load of these phases."""
    return max(1, int(count / duration_s / MEAN_LOAD))


class Load:
    """Writes readings, each with its own timestamp, and reads them live.

    Args:
        duration_s: how long that takes, if nothing is held back at the end of it.

    Attributes:
        allowed: so many may be written by now.
        sent: tells of those that were given to the writer.
        acked: the readings that the server has acknowledged, in the order of that.
        acks: tells of them.
        tailed: tells of those that the live tail has read.
        delays_s: from write to read, of each of those.
        newest: the last ones, as they are shown.
    """

    def __init__(self, readings: Sequence[Reading], *, duration_s: float) -> None:
        self.readings = readings
        self.duration_s = duration_s
        self.allowed = len(readings)
        self.sent = Pulse()
        self.acked: list[Reading] = []
        self.acks = Pulse()
        self.tailed = Pulse()
        self.delays_s: list[float] = []
        self.newest: deque[tuple[str, str, str, str]] = deque(maxlen=NEWEST)
        self._sent_s: dict[tuple[str, int], float] = {}

    async def write(self, client: millrace.Client) -> None:
        """Write all readings; return when they are acknowledged.

        Raises:
            MillraceError: one of them was refused.
        """
        started_s = time.monotonic()
        async with client.writer(TEMPERATURES) as writer:
            while self.sent.count < len(self.readings):
                share = share_due((time.monotonic() - started_s) / self.duration_s)
                due = min(round(share * len(self.readings)), self.allowed)
                for reading in self.readings[self.sent.count : due]:
                    await writer.drain()
                    self._send(writer, reading)
                await asyncio.sleep(TICK_S)

    def _send(self, writer: millrace.Writer, reading: Reading) -> None:
        def answered(future: "asyncio.Future[millrace.WriteResult]") -> None:
            if not future.cancelled() and future.exception() is None:
                self.acked.append(reading)
                self.acks.beat()

        self._sent_s[reading.key, reading.timestamp_us] = time.monotonic()
        future = writer.write(reading.value(), key=reading.key, timestamp_us=reading.timestamp_us)
        future.add_done_callback(answered)
        self.sent.beat()

    async def tail(self, reader: millrace.Reader) -> None:
        """Read what comes, for as long as the task lives."""
        while events := await reader.next_events():
            now_s = time.monotonic()
            for event in events:
                key, at_us = event.key or "", event.timestamp_us or 0
                delay_s = now_s - self._sent_s.pop((key, at_us), now_s)
                self.delays_s.append(delay_s)
                temp_f = json.loads(event.value)["temp_f"]
                self.newest.append((time_text(at_us)[:16], key, f"{temp_f:.1f}", duration_text(delay_s)))
            self.tailed.beat(len(events))
