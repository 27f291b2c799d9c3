"""What is watched: temperatures that were measured, and what a version says of each."""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import millrace
from millrace import blocking
from millrace.examples.demo.data import Reading

READINGS: Final = "weather/readings"
SEGMENTS: Final = 2


class Result(NamedTuple):
    """What a version says of a reading."""

    version: int
    sensor: str
    place: millrace.EventPosition
    unusual: bool


def create(client: blocking.Client, *streams: str) -> None:
    """Create streams that do not exist."""
    for stream in streams:
        client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(SEGMENTS)))


def write(client: blocking.Client, readings: Sequence[Reading]) -> None:
    """Write readings, keyed by the sensor that took them."""
    with client.writer(READINGS) as writer:
        for reading in readings:
            writer.write(reading.value(), key=reading.sensor, timestamp_us=reading.timestamp_us)


def places(
    client: blocking.Client, start: millrace.CutChoice | str, end: millrace.CutChoice | str
) -> list[millrace.EventPosition]:
    """Return where the readings of a slice are."""
    with client.reader(READINGS, start=start, end=end) as reader:
        return [millrace.EventPosition(event.segment, event.offset, event.index) for event in reader]


def result_of(event: bytes) -> Result:
    """Return what an event of a stream of results says."""
    told = json.loads(event)
    place = millrace.EventPosition(told["segment"], told["offset"], told["index"])
    return Result(told["version"], told["sensor"], place, told["unusual"])
