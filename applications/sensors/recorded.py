"""What is watched: measurements of six sensors that were recorded by others, and the streams that they are in.

Two thermometers, in Seattle and San Francisco, have a value for each hour of 2010. The weather station of Seattle has
its highest and lowest temperature, its rain and its wind of each day from 2012 to 2015. All of it travels inside the
PyPI package `vega_datasets`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import millrace
from millrace.examples.demo import data

READINGS: Final = "sensors/readings"
SLICES: Final = "sensors/slices"
COMPARED: Final = "sensors/compared"
SEGMENTS: Final = 2
DAY_US: Final = 86_400_000_000
AT_ONCE: Final = 200
DAILY: Final = {
    "seattle-high": "temp_max", "seattle-low": "temp_min", "seattle-rain": "precipitation", "seattle-wind": "wind",
}  # fmt: skip
"""The instruments of one station, with the names of their columns: degrees Celsius, millimetres, metres per second."""
THRESHOLDS: Final[Mapping[str, float]] = {
    "KSEA": 38.0, "KSFO": 46.0, "seattle-high": 5.0, "seattle-low": 0.0, "seattle-wind": 1.0,
}  # fmt: skip
"""Below which a sensor is watched closely; one without a threshold is not. The first two are degrees Fahrenheit."""


class Reading(NamedTuple):
    """One measurement of one sensor."""

    sensor: str
    timestamp_us: int
    value: float


@dataclass(slots=True)
class Run:
    """What a sensor has measured one after another below its threshold.

    Attributes:
        is_over: a measurement that is not below has come.
    """

    readings: list[Reading] = field(default_factory=list)
    is_over: bool = False


def recorded() -> list[Reading]:
    """Return all measurements in the order in which they were taken.

    Raises:
        ModuleNotFoundError: the package with the measurements is not installed.
    """
    found = [Reading(*each) for each in data.readings()]
    for row in data.rows_of("seattle-weather.csv"):
        at_us = data.unix_us_of(row["date"])
        found += [Reading(sensor, at_us, float(row[column])) for sensor, column in DAILY.items()]
    return sorted(found, key=lambda reading: (reading.timestamp_us, reading.sensor))


def runs_below(readings: Iterable[Reading]) -> dict[str, list[Run]]:
    """Return the runs of each watched sensor, oldest first: what the slices must hold."""
    runs: dict[str, list[Run]] = {sensor: [] for sensor in THRESHOLDS}
    for reading in readings:
        if reading.sensor not in THRESHOLDS:
            continue
        of_sensor = runs[reading.sensor]
        is_in_run = bool(of_sensor) and not of_sensor[-1].is_over
        if reading.value < THRESHOLDS[reading.sensor]:
            if not is_in_run:
                of_sensor.append(Run())
            of_sensor[-1].readings.append(reading)
        elif is_in_run:
            of_sensor[-1].is_over = True
    return runs


def value_of(event: bytes) -> float:
    """Return the measurement of an event."""
    value: float = json.loads(event)["value"]
    return value


def reading_of(event: millrace.Event) -> Reading:
    """Return what an event says."""
    return Reading(event.key or "", event.timestamp_us or 0, value_of(event.value))


async def create(client: millrace.Client) -> bool:
    """Create the streams; those that exist stay as they are. False if there were measurements before."""
    is_new = await client.create_stream(READINGS, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(SEGMENTS)))
    for name in (SLICES, COMPARED):
        await client.create_stream(name)
    return is_new


async def write(client: millrace.Client, readings: list[Reading]) -> None:
    """Write measurements, keyed by their sensors, some at a time; return when all are durable."""
    async with client.writer(READINGS) as writer:
        for first in range(0, len(readings), AT_ONCE):
            some = readings[first : first + AT_ONCE]
            await writer.drain()
            _ = writer.write_many(
                [json.dumps({"value": reading.value}).encode() for reading in some],
                keys=[reading.sensor for reading in some],
                timestamps_us=[reading.timestamp_us for reading in some],
            )
