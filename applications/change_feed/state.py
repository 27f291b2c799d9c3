"""The derived state: of each sensor its last measurement, and the lowest and the highest one so far.

Each measurement changes the state of its sensor. A change is an event of the stream `STATE`, with the sensor as its
key; so the state is what the last event of each key says. Changes and the place up to which measurements are derived
are one transaction: whatever is killed, each measurement changes the state once.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

import millrace
from applications.sensors.recorded import READINGS, SEGMENTS, Reading, reading_of

STATE: Final = "sensors/state"
CURSOR: Final = "state"


@dataclass(frozen=True, slots=True)
class Sensor:
    """What is known of a sensor.

    Attributes:
        count: how many measurements there were.
    """

    count: int
    value: float
    low: float
    high: float


State = dict[str, Sensor]


def changed(state: State, reading: Reading) -> Sensor:
    """Return what is known of a sensor after a measurement."""
    value, known = reading.value, state.get(reading.sensor)
    if known is None:
        return Sensor(1, value, value, value)
    return Sensor(known.count + 1, value, min(known.low, value), max(known.high, value))


def truth(readings: Iterable[Reading]) -> State:
    """Return the state after some measurements, derived at once."""
    state: State = {}
    for reading in readings:
        state[reading.sensor] = changed(state, reading)
    return state


def encoded(sensor: Sensor) -> bytes:
    """Return the event of a change."""
    return json.dumps(asdict(sensor)).encode()


def sensor_of(event: bytes | str) -> Sensor:
    """Return what the event of a change says."""
    fields: dict[str, Any] = json.loads(event)
    return Sensor(**fields)


async def create(client: millrace.Client) -> None:
    """Create the streams that do not exist."""
    for stream in (READINGS, STATE):
        await client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(SEGMENTS)))


async def latest(client: millrace.Client) -> State:
    """Return the state that the stream of changes says."""
    state: State = {}
    async with client.reader(STATE, end=millrace.TAIL) as reader:
        async for event in reader:
            state[event.key or ""] = sensor_of(event.value)
    return state


async def derive(client: millrace.Client) -> None:
    """Derive the state from where it stands, as measurements come, until their stream is sealed; then seal it, too."""
    state = await latest(client)
    derived = await client.cursors(READINGS).get(CURSOR)
    async with client.reader(READINGS, start=derived or millrace.HEAD) as reader:
        while events := await reader.next_events():
            place = reader.position()
            async with client.transaction(STATE) as transaction:
                for event in events:
                    reading = reading_of(event)
                    state[reading.sensor] = changed(state, reading)
                    _ = transaction.write(encoded(state[reading.sensor]), key=reading.sensor)
                # Another process that derives the same is refused here, with all that it wrote.
                transaction.advance(READINGS, CURSOR, place, expected=derived)
            derived = place
    await client.seal_stream(STATE)
