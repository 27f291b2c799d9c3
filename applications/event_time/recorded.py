"""What is measured, and in which order it arrives.

The measurements are recorded, and travel inside the PyPI package `vega_datasets`: the temperature of each hour of 2010
in two cities, and rain, wind and weather of each day from 2012 to 2015 in Seattle. When each of them arrives is drawn
by a seed, as over a bad radio:

    at once     within the hour, so that those of an hour come in any order
    held        one in ten waits for a better connection, up to a bound that the watermark allows for
    found       a few of the first quarter come in the last seventh: a memory card that was found in a drawer
"""

import json
from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import Final, NamedTuple

import millrace
from millrace import blocking
from millrace.examples.demo import data

TEMPERATURES: Final = "event-time/temperatures"
RAIN: Final = "event-time/rain"
WIND: Final = "event-time/wind"
WEATHER: Final = "event-time/weather"
HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
DELAYS_H: Final = {TEMPERATURES: 24, RAIN: 72, WIND: 72, WEATHER: 72}
"""How far the watermark of a stream stays below its newest event."""
HELD_H_MAX: Final = {TEMPERATURES: 20, RAIN: 60, WIND: 60, WEATHER: 60}
HELD: Final = 0.1
PLACE: Final = "seattle"
RAIN_AT_H: Final = 18
WIND_AT_H: Final = 12
"""The package tells the day. Of that day, the weather is taken from its first hour on."""
CARD_OF: Final = 10
CARD_EVERY_DAYS: Final = 3
AT_ONCE: Final = 200

Value = float | str | None


class Reading(NamedTuple):
    """What was measured or seen at a moment.

    Attributes:
        key: of what: a sensor, or a place.
        value: degrees Fahrenheit, millimetres, metres per second; of the weather its name, or None: nothing but sun.
    """

    key: str
    timestamp_us: int
    value: Value


def measured() -> dict[str, list[Reading]]:
    """Return the measurements of each stream in the order in which they were taken.

    Raises:
        ModuleNotFoundError: the package with the measurements is not installed.
    """
    days = list(data.rows_of("seattle-weather.csv"))
    began_us = [data.unix_us_of(day["date"]) for day in days]
    rain = [float(day["precipitation"]) for day in days]
    wind = [float(day["wind"]) for day in days]
    weather = [None if day["weather"] == "sun" else day["weather"] for day in days]
    return {
        TEMPERATURES: [Reading(*each) for each in data.readings()],
        RAIN: [Reading(PLACE, at + RAIN_AT_H * HOUR_US, value) for at, value in zip(began_us, rain, strict=True)],
        WIND: [Reading(PLACE, at + WIND_AT_H * HOUR_US, value) for at, value in zip(began_us, wind, strict=True)],
        # A table that changes: what is told is only that it is another one than on the day before.
        WEATHER: [
            Reading(PLACE, at, now)
            for at, now, before in zip(began_us, weather, [None, *weather[:-1]], strict=True)
            if now != before
        ],
    }


def arrivals(seed: int) -> dict[str, list[Reading]]:
    """Return the measurements of each stream in the order in which they arrive."""
    chance = Random(seed)
    arrived = {}
    for stream, readings in measured().items():
        cards = on_cards(readings, chance)
        arrived[stream] = arriving(readings, cards, held_us=HELD_H_MAX[stream] * HOUR_US, chance=chance)
    return arrived


def on_cards(readings: Sequence[Reading], chance: Random) -> set[Reading]:
    """Return some of the first quarter: of each key at most one of every third day, so that no window has two."""
    begin_us, end_us = readings[0].timestamp_us, readings[-1].timestamp_us
    chosen = {
        (reading.key, (reading.timestamp_us - begin_us) // (CARD_EVERY_DAYS * DAY_US)): reading
        for reading in chance.sample(readings, len(readings) // CARD_OF)
        if reading.timestamp_us < begin_us + (end_us - begin_us) // 4
        and (reading.timestamp_us - begin_us) // DAY_US % CARD_EVERY_DAYS == 0
    }
    return set(chosen.values())


def arriving(readings: Sequence[Reading], cards: Collection[Reading], *, held_us: int, chance: Random) -> list[Reading]:
    """Return measurements in the order in which they arrive; those on cards arrive in the last seventh of the time."""
    begin_us, end_us = readings[0].timestamp_us, readings[-1].timestamp_us
    moments: list[tuple[int, int, Reading]] = []
    for reading in readings:
        if reading in cards:
            at_us = chance.randrange(end_us - (end_us - begin_us) // 7, end_us)
        else:
            at_us = reading.timestamp_us + chance.randrange(held_us if chance.random() < HELD else HOUR_US)
        moments.append((at_us, len(moments), reading))
    return [reading for _, _, reading in sorted(moments)]


def create(client: blocking.Client, *streams: str) -> None:
    """Create streams that do not exist, of one segment each: so the order of arrival is one."""
    for stream in streams:
        client.create_stream(stream)


def write(client: blocking.Client, stream: str, readings: Sequence[Reading]) -> None:
    """Write measurements as they arrive, each with its own time; return when all are durable."""
    with client.writer(stream) as writer:
        for first in range(0, len(readings), AT_ONCE):
            some = readings[first : first + AT_ONCE]
            writer.write_many(
                [json.dumps({"value": reading.value}).encode() for reading in some],
                keys=[reading.key for reading in some],
                timestamps_us=[reading.timestamp_us for reading in some],
            )


def readings_of(events: Iterable[millrace.Event]) -> list[Reading]:
    """Return what events say."""
    return [Reading(event.key or "", event.timestamp_us or 0, json.loads(event.value)["value"]) for event in events]
