"""The same results in plain Python: from all measurements at once, sorted by their own times. No streams, no Spark."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple, TypeVar

from .recorded import DAY_US, DELAYS_H, HOUR_US, RAIN, TEMPERATURES, WEATHER, WIND, Reading

T = TypeVar("T")

BATCHES: Final = 5
"""In so many Spark takes what has arrived."""
COLD_F: Final = {"KSEA": 42.0, "KSFO": 50.0}
"""It is cold in a city below that."""
GAP_MIN: Final = 150
"""A cold spell is over when it was not cold for so long."""
STEP_H: Final = 6
RAIN_MIN_MM: Final = 10.0
WIND_MIN: Final = 6.0
NEAR_H: Final = 24
SURE_US: Final = 7 * DAY_US
"""Longer than any window: what is so much older than the watermark is in no window that is open."""


class Judged(NamedTuple):
    """What arrived in a stream, by how late it was.

    Attributes:
        in_order: nothing newer had arrived before.
        late: something newer had, but no more than the delay of the watermark newer.
        too_late: everything else.
        watermark_us: where the watermark is at the end.
    """

    in_order: list[Reading]
    late: list[Reading]
    too_late: list[Reading]
    watermark_us: int

    def counted(self) -> list[Reading]:
        """Return what the watermark lets pass, oldest first."""
        return sorted(self.in_order + self.late, key=lambda reading: reading.timestamp_us)


class Window(NamedTuple):
    """The measurements of a sensor in a window or in a session.

    Attributes:
        length: how many measurements.
    """

    sensor: str
    begin_us: int
    end_us: int
    length: int
    low: float
    high: float
    mean: float


class Storm(NamedTuple):
    """Much rain, and strong wind at about the same time; None where there was none."""

    place: str
    rain_us: int
    rain: float
    wind_us: int | None
    wind: float | None


class Blow(NamedTuple):
    """A measurement of the wind, and the weather at its time."""

    place: str
    timestamp_us: int
    wind: float
    weather: str | None


class Expected:
    """What the queries have to tell, and to drop.

    Attributes:
        results: of each query.
        dropped: of each query, how many rows are too late. A measurement is one for each window that it is in.
    """

    def __init__(self, arrived: Mapping[str, Sequence[Reading]]) -> None:
        temperatures, wind, changes = (judged(stream, arrived[stream]) for stream in (TEMPERATURES, WIND, WEATHER))
        # Spark filters first: only what passes moves the watermark.
        cold = judged(TEMPERATURES, arrived[TEMPERATURES], passes=is_cold)
        much, strong = judged(RAIN, arrived[RAIN], passes=is_much), judged(WIND, arrived[WIND], passes=is_strong)
        until_us = temperatures.watermark_us
        self.results: dict[str, Collection[Window | Storm | Blow]] = {
            "days": windows(temperatures.counted(), length_us=DAY_US, step_us=DAY_US, until_us=until_us),
            "quarters": windows(temperatures.counted(), length_us=DAY_US, step_us=STEP_H * HOUR_US, until_us=until_us),
            "nights": sessions(cold.counted(), gap_us=GAP_MIN * HOUR_US // 60, until_us=cold.watermark_us),
            "storms": storms(much.counted(), strong.counted(), until_us=min(much.watermark_us, strong.watermark_us)),
            "weather": as_of(wind.counted(), changes.counted(), until_us=min(wind.watermark_us, changes.watermark_us)),
        }
        self.dropped = {
            "days": len(temperatures.too_late),
            "quarters": len(temperatures.too_late) * (24 // STEP_H),
            "nights": len(cold.too_late),
            "storms": len(much.too_late) + len(strong.too_late),
            "weather": len(wind.too_late) + len(changes.too_late),
        }


def judged(
    stream: str, arrived: Sequence[Reading], *, passes: Callable[[Reading], bool] = lambda reading: True
) -> Judged:
    """Say of each measurement of a stream how late it was, among those that pass a filter.

    A watermark moves from batch to batch, so of what is too late by a little Spark may take some and drop some. This
    is no such case, or it is refused: what is too late is so by far, and was two batches before.

    Raises:
        SystemExit: something is too late, but not by far.
    """
    delay_us = DELAYS_H[stream] * HOUR_US
    batch = batch_size(len(arrived))
    result = Judged([], [], [], 0)
    newest_us = 0
    known_us = [0]  # how new the newest is when each batch begins
    for index, reading in enumerate(arrived):
        if index and index % batch == 0:
            known_us.append(newest_us)
        if not passes(reading):
            continue
        if newest_us <= reading.timestamp_us:
            result.in_order.append(reading)
            newest_us = reading.timestamp_us
        elif newest_us - reading.timestamp_us <= delay_us:
            result.late.append(reading)
        elif len(known_us) > 1 and known_us[-2] - delay_us >= reading.timestamp_us + SURE_US:
            result.too_late.append(reading)
        else:
            raise SystemExit(f"{reading} is too late, but perhaps not for Spark; take another seed")
    return result._replace(watermark_us=newest_us - delay_us)


def batch_size(count: int) -> int:
    """Return how many events of a stream are a batch."""
    return -(-count // BATCHES)


def windows(readings: Iterable[Reading], *, length_us: int, step_us: int, until_us: int) -> list[Window]:
    """Return the windows that end up to a moment. A measurement is in each that begins by its time and ends later."""
    found: defaultdict[tuple[str, int], list[Reading]] = defaultdict(list)
    for reading in readings:
        begin_us = reading.timestamp_us - reading.timestamp_us % step_us
        while begin_us > reading.timestamp_us - length_us:
            found[reading.key, begin_us].append(reading)
            begin_us -= step_us
    ended = {key: held for key, held in found.items() if key[1] + length_us <= until_us}
    return [window(held, begin_us=begin, end_us=begin + length_us) for (_, begin), held in ended.items()]


def sessions(readings: Iterable[Reading], *, gap_us: int, until_us: int) -> list[Window]:
    """Return the sessions that end up to a moment: between two measurements of one there is no more than the gap."""
    of_key: defaultdict[str, list[list[Reading]]] = defaultdict(list)
    for reading in sorted(readings, key=lambda reading: reading.timestamp_us):
        before = of_key[reading.key]
        if before and reading.timestamp_us - before[-1][-1].timestamp_us <= gap_us:
            before[-1].append(reading)
        else:
            before.append([reading])
    every = (held for sessions_of_key in of_key.values() for held in sessions_of_key)
    found = [window(held, begin_us=held[0].timestamp_us, end_us=held[-1].timestamp_us + gap_us) for held in every]
    return [each for each in found if each.end_us <= until_us]


def window(held: Sequence[Reading], *, begin_us: int, end_us: int) -> Window:
    """Return what a window says of the measurements in it."""
    values = [number(reading) for reading in held]
    mean = round(sum(values) / len(values), 6)
    return Window(held[0].key, begin_us, end_us, len(values), min(values), max(values), mean)


def storms(rain: Iterable[Reading], wind: Sequence[Reading], *, until_us: int) -> list[Storm]:
    """Return each rain with each wind near to it, or alone once no such wind can come."""
    within_us = NEAR_H * HOUR_US
    found = []
    for wet in rain:
        near = [
            Storm(wet.key, wet.timestamp_us, number(wet), blow.timestamp_us, number(blow))
            for blow in wind
            if abs(blow.timestamp_us - wet.timestamp_us) <= within_us
        ]
        if not near and wet.timestamp_us + within_us < until_us:
            near = [Storm(wet.key, wet.timestamp_us, number(wet), None, None)]
        found += near
    return found


def as_of(wind: Iterable[Reading], changes: Iterable[Reading], *, until_us: float = inf) -> list[Blow]:
    """Return each wind up to a moment with the weather at its own time."""
    table: dict[str, str] = {}
    found = []
    # Of one moment the change is first.
    moments = [(each.timestamp_us, 0, each) for each in changes] + [(each.timestamp_us, 1, each) for each in wind]
    for at_us, is_wind, reading in sorted(moments, key=lambda moment: moment[:2]):
        if is_wind and at_us <= until_us:
            found.append(Blow(reading.key, at_us, number(reading), table.get(reading.key)))
        elif not is_wind and reading.value is None:
            table.pop(reading.key, None)
        elif not is_wind:
            table[reading.key] = str(reading.value)
    return found


def is_cold(temperature: Reading) -> bool:
    return number(temperature) < COLD_F[temperature.key]


def is_much(rain: Reading) -> bool:
    return number(rain) >= RAIN_MIN_MM


def is_strong(wind: Reading) -> bool:
    return number(wind) >= WIND_MIN


def number(reading: Reading) -> float:
    """Return a value that is a number."""
    assert isinstance(reading.value, float)
    return reading.value


def check(name: str, found: Iterable[T], expected: Iterable[T]) -> int:
    """Check that results are those that are expected, each once; return how many there are.

    Raises:
        SystemExit: they are not.
    """
    told, right = Counter(found), Counter(expected)
    if told != right:
        missing, wrong = right - told, told - right
        one = next(iter(wrong or missing))
        raise SystemExit(f"{name}: {missing.total()} are missing, {wrong.total()} are wrong or repeated, such as {one}")
    return told.total()
