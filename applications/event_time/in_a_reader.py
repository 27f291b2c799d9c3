"""Join a stream with a changing table, without Spark: `python -m applications.event_time.in_a_reader ADDRESS`.

Nothing waits here. Each wind is told at once, with the weather that is known for its time. When a change comes later
than winds that it is about, these are told again. So the last that is told of a moment is right, however late a change
comes, and the results are themselves a table that changes. With a second argument, such as `tail`, it ends there.

What is told and the places in both streams up to which it follows are one transaction. Kill this program at any moment,
start it again, and nothing is told twice, and nothing is left out. What it has to know it reads again.
"""

import json
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

import millrace
from millrace import blocking

from .plain import Blow, number
from .recorded import WEATHER, WIND, Reading, create, readings_of

BLOWS = "event-time/wind-and-weather-at-once"
CURSOR = "as of"


class Table:
    """The weather as it was at each moment, and the winds that were told with it."""

    def __init__(self) -> None:
        # Sorted by their own times.
        self._winds: list[Reading] = []
        self._changes: list[Reading] = []
        self._told: dict[int, Blow] = {}

    def take(self, stream: str, readings: Sequence[Reading]) -> list[Blow]:
        """Add what came in a stream; return what is to be told: new winds, and those that have another weather now."""
        for reading in readings:
            insort(self._winds if stream == WIND else self._changes, reading, key=time_us)
        first = bisect_left(self._winds, min(map(time_us, readings)), key=time_us)
        told = []
        for wind in self._winds[first:]:
            latest = bisect_right(self._changes, wind.timestamp_us, key=time_us)
            weather = self._changes[latest - 1].value if latest else None
            blow = Blow(wind.key, wind.timestamp_us, number(wind), None if weather is None else str(weather))
            if self._told.get(wind.timestamp_us) != blow:
                self._told[wind.timestamp_us] = blow
                told.append(blow)
        return told


def time_us(reading: Reading) -> int:
    """Return when a measurement was taken, in Unix microseconds."""
    return reading.timestamp_us


def follow(address: str, *, end: str | None = None) -> None:
    """Join from where the last process stopped: up to a place, or as it comes."""
    streams = [WIND, WEATHER]
    table = Table()
    with blocking.connect(address) as client:
        create(client, *streams, BLOWS)
        joined = {stream: client.cursors(stream).get(CURSOR) for stream in streams}
        start = {stream: cut or client.stream_head(stream) for stream, cut in joined.items()}
        for stream, cut in start.items():
            with client.reader(stream, end=cut) as before:
                while events := before.next_events():
                    table.take(stream, readings_of(events))
        with client.reader(streams, start=start, end=end) as reader:
            while events := reader.next_events():
                told = table.take(reader.stream_of(events[0]), readings_of(events))
                places = reader.positions()
                with client.transaction(BLOWS) as transaction:
                    for blow in told:
                        value = json.dumps({"wind": blow.wind, "weather": blow.weather}).encode()
                        transaction.write(value, key=blow.place, timestamp_us=blow.timestamp_us)
                    for stream in streams:
                        transaction.advance(stream, CURSOR, places[stream], expected=joined[stream])
                joined = dict(places)


def blows_of(events: Iterable[millrace.Event]) -> list[Blow]:
    """Return what events of the results say."""
    found = []
    for event in events:
        told = json.loads(event.value)
        found.append(Blow(event.key or "", event.timestamp_us or 0, told["wind"], told.get("weather")))
    return found


if __name__ == "__main__":
    follow(sys.argv[1], end=sys.argv[2] if len(sys.argv) > 2 else None)
