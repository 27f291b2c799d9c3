"""What is computed with the times of events is exact, however they arrive and whatever is killed; a fault is told."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import millrace
from applications.event_time import __main__ as command
from applications.event_time import plain
from applications.event_time.in_a_reader import BLOWS, Table, blows_of, follow
from applications.event_time.plain import Blow, Storm, Window
from applications.event_time.queries import QUERIES, Note
from applications.event_time.recorded import (
    DAY_US,
    HOUR_US,
    PLACE,
    TEMPERATURES,
    WEATHER,
    WIND,
    Reading,
    Value,
    arrivals,
    create,
    measured,
    write,
)
from millrace import blocking
from millrace.client.testing import TestServer
from millrace.examples.running import Program

pytestmark = pytest.mark.slow


def at(hours: float, value: Value, key: str = PLACE) -> Reading:
    return Reading(key, int(hours * HOUR_US), value)


# --- what arrives ---


def test_each_measurement_arrives_once() -> None:
    arrived, truth = arrivals(3), measured()

    assert {stream: len(readings) for stream, readings in truth.items()} == {
        "event-time/temperatures": 17_518, "event-time/rain": 1461, "event-time/wind": 1461, "event-time/weather": 506,
    }  # fmt: skip
    for stream, readings in truth.items():
        assert sorted(arrived[stream], key=repr) == sorted(readings, key=repr)
        assert arrived[stream] != readings
    assert arrivals(3) == arrived != arrivals(4)


@pytest.mark.parametrize("seed", range(8))
def test_of_each_seed_something_is_late_and_something_is_too_late(seed: int) -> None:
    """Nothing is too late by a little only: that would be refused."""
    for stream, readings in arrivals(seed).items():
        found = plain.judged(stream, readings)
        assert sorted([*found.counted(), *found.too_late], key=repr) == sorted(readings, key=repr)
        assert len(found.in_order) > len(found.late) > len(found.too_late) > 0


def test_how_late_something_is_counts_from_the_newest_before_it() -> None:
    before = [at(hour, 0.0) for hour in range(0, 3000, 100)]
    arrived = [*before, at(2876, 1.0), at(2900, 2.0), at(2901, 3.0), at(100, 4.0), at(2877, 5.0)]

    found = plain.judged(TEMPERATURES, arrived)

    assert found.in_order == [*before, at(2900, 2.0), at(2901, 3.0)]
    assert found.late == [at(2876, 1.0), at(2877, 5.0)]
    assert found.too_late == [at(100, 4.0)]
    assert [reading.value for reading in found.counted()[-5:]] == [1.0, 5.0, 0.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "arrived",
    [
        [at(1000, 1.0), at(0, 2.0)],  # in the first batch there is no watermark
        [*(at(hour, 1.0) for hour in range(0, 300, 10)), at(250, 2.0)],  # late by 40 hours, of which 24 are allowed
        [*(at(hour, 1.0) for hour in range(0, 500, 100)), at(0, 2.0)],  # no batch is done two batches before
    ],
)
def test_what_may_be_too_late_for_spark_or_not_is_refused(arrived: list[Reading]) -> None:
    with pytest.raises(SystemExit, match="too late, but perhaps not for Spark"):
        plain.judged(TEMPERATURES, arrived)


def test_only_what_passes_a_filter_moves_the_watermark() -> None:
    arrived = [at(1, 1.0), at(900, 0.0), at(2, 1.0), at(901, 0.0)]

    found = plain.judged(TEMPERATURES, arrived, passes=lambda reading: reading.value == 1.0)

    assert found == plain.Judged([at(1, 1.0), at(2, 1.0)], [], [], -22 * HOUR_US)


# --- plain Python ---


def test_windows_hold_what_is_from_their_begin_to_before_their_end() -> None:
    readings = [at(0, 3.0), at(23, 1.0), at(24, 5.0), at(50, 7.0)]

    days = plain.windows(readings, length_us=DAY_US, step_us=DAY_US, until_us=48 * HOUR_US)
    assert days == [Window(PLACE, 0, DAY_US, 2, 1.0, 3.0, 2.0), Window(PLACE, DAY_US, 2 * DAY_US, 1, 5.0, 5.0, 5.0)]

    halves = plain.windows([at(25, 3.0)], length_us=DAY_US, step_us=12 * HOUR_US, until_us=DAY_US * 9)
    assert sorted(each.begin_us // HOUR_US for each in halves) == [12, 24]


def test_a_session_ends_where_nothing_comes_for_the_gap() -> None:
    readings = [at(5, 4.0), at(0, 1.0, "a"), at(1, 2.0, "a"), at(3, 3.0, "a")]

    found = plain.sessions(readings, gap_us=HOUR_US, until_us=5 * HOUR_US)

    assert found == [
        Window("a", 0, 2 * HOUR_US, 2, 1.0, 2.0, 1.5),
        Window("a", 3 * HOUR_US, 4 * HOUR_US, 1, 3.0, 3.0, 3.0),
    ]


def test_much_rain_has_each_strong_wind_within_a_day_or_is_told_alone_when_that_is_certain() -> None:
    rain = [at(0, 10.0), at(100, 12.0), at(200, 11.0)]
    wind = [at(-24, 6.0), at(24, 7.0), at(25, 8.0)]

    found = plain.storms(rain, wind, until_us=int(224 * HOUR_US))

    assert found == [
        Storm(PLACE, 0, 10.0, -24 * HOUR_US, 6.0),
        Storm(PLACE, 0, 10.0, 24 * HOUR_US, 7.0),
        Storm(PLACE, 100 * HOUR_US, 12.0, None, None),
    ]


def test_a_wind_has_the_weather_of_its_own_time() -> None:
    changes = [at(4, None), at(2, "fog"), at(6, "rain")]
    wind = [at(1, 1.0), at(2, 2.0), at(3, 3.0), at(4, 4.0), at(6, 5.0), at(9, 6.0)]

    assert [blow.weather for blow in plain.as_of(wind, changes)] == [None, "fog", "fog", None, "rain", "rain"]
    assert len(plain.as_of(wind, changes, until_us=6 * HOUR_US)) == 5


# --- the reader ---


@pytest.mark.parametrize("seed", range(5))
def test_a_table_tells_the_truth_in_the_end_whatever_order_things_come_in(seed: int) -> None:
    chance = Random(seed)
    truth = measured()
    wind, changes = truth[WIND][:200], truth[WEATHER][:80]
    came = [(WIND, reading) for reading in wind] + [(WEATHER, reading) for reading in changes]
    chance.shuffle(came)
    table = Table()
    told = [blow for stream, reading in came for blow in table.take(stream, [reading])]

    assert command.check_table(told, plain.as_of(wind, changes)) == 200
    assert len(told) > 200


def test_a_change_that_comes_late_tells_the_winds_again_that_it_is_about() -> None:
    table = Table()
    table.take(WEATHER, [at(0, "fog"), at(8, "rain")])

    assert [blow.weather for blow in table.take(WIND, [at(1, 1.0), at(5, 2.0), at(9, 3.0)])] == ["fog", "fog", "rain"]
    assert table.take(WEATHER, [at(4, None)]) == [Blow(PLACE, 5 * HOUR_US, 2.0, None)]
    assert table.take(WEATHER, [at(6, "snow")]) == []


def test_a_reader_joins_exactly_although_it_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    """Behaviours 26 and 61: also a month that is read by its time has all that is of it."""
    command.main(["--no-spark", "--seed", "5"])

    shown = capsys.readouterr()
    assert re.search(r"event-time/wind +72 h +\d{4} +\d+ +\d+", shown.out)
    assert "has told 1,461 winds with the weather of their own times" in shown.err
    told = re.search(r"all of its 1,344 temperatures, (\d+) of them too late", shown.err)
    assert told
    assert int(told[1]) > 0


@pytest.mark.asyncio
async def test_of_two_readers_one_tells(millrace_server: TestServer) -> None:
    """Behaviour 61: two streams and one table, two cursors and one commit."""
    address = millrace_server.address
    arrived = arrivals(2)

    def put() -> None:
        with blocking.connect(address) as client:
            create(client, WIND, WEATHER, BLOWS)
            for stream in (WIND, WEATHER):
                write(client, stream, arrived[stream])

    await asyncio.to_thread(put)
    following = (asyncio.to_thread(follow, address, end="tail") for _ in range(3))
    outcomes = await asyncio.gather(*following, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), millrace.CursorMovedError}
    await asyncio.to_thread(follow, address, end="tail")
    async with millrace.connect(address) as client, client.reader(BLOWS, end=millrace.TAIL) as reader:
        told = blows_of([event async for event in reader])

    assert command.check_table(told, plain.as_of(measured()[WIND], measured()[WEATHER])) == 1461


# --- faults are told ---


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([], "1 are missing, 0 are wrong"),
        ([Blow(PLACE, 1, 2.0, "rain")], "1 are missing, 1 are wrong"),
        ([Blow(PLACE, 1, 2.0, "fog"), Blow(PLACE, 1, 2.0, None)], "1 are missing, 1 are wrong"),
        ([Blow(PLACE, 1, 2.0, "fog"), Blow(PLACE, 1, 2.0, "fog")], "told twice"),
        ([Blow(PLACE, 1, 2.0, "fog"), Blow(PLACE, 2, 2.0, "fog")], "0 are missing, 1 are wrong"),
    ],
)
def test_what_a_reader_tells_wrong_is_seen(told: list[Blow], says: str) -> None:
    right = Blow(PLACE, 1, 2.0, "fog")
    assert command.check_table([Blow(PLACE, 1, 2.0, None), right], [right]) == 1

    with pytest.raises(SystemExit, match=says):
        command.check_table(told, [right])


def test_a_result_that_came_twice_is_seen() -> None:
    storm = Storm(PLACE, 1, 12.0, None, None)

    assert plain.check("storms", [storm], [storm]) == 1
    with pytest.raises(SystemExit, match="storms: 0 are missing, 1 are wrong or repeated"):
        plain.check("storms", [storm, storm], [storm])


@pytest.mark.parametrize("note", [Note("days", 6, 99, 2), Note("days", 6, 100, 1)])
def test_another_count_of_what_was_dropped_is_seen(note: Note) -> None:
    command.check_note(Note("days", 6, 100, 2), events=100, dropped=2)

    with pytest.raises(SystemExit, match="in place of 100 events and 2 rows"):
        command.check_note(note, events=100, dropped=2)


def test_a_month_of_which_something_is_missing_is_seen(millrace_server: TestServer) -> None:
    with blocking.connect(millrace_server.address) as client:
        create(client, TEMPERATURES)
        write(client, TEMPERATURES, measured()[TEMPERATURES][:1500])
        with pytest.raises(SystemExit, match=r"February: \d+ are missing, 0 are wrong"):
            command.count_february(client, [])


def test_a_program_that_ends_too_early_is_seen(millrace_server: TestServer, tmp_path: Path) -> None:
    with blocking.connect(millrace_server.address) as client:
        create(client, BLOWS)
    with Program("this", log=tmp_path / "log") as program:  # prints a text, and ends
        with pytest.raises(SystemExit, match="nothing was told, and the program has ended"):
            asyncio.run(command.first_event(millrace_server.address, BLOWS, program))


# --- Spark ---


@pytest.mark.timeout(1200)  # about a minute, but of much work: beside others it takes long
@pytest.mark.spark
def test_spark_tells_what_plain_python_tells() -> None:
    """Behaviours 55, 56 and 67: server and driver are killed. As a process of its own: Spark stays in its process."""
    program = [sys.executable, "-m", "applications.event_time"]
    finished = subprocess.run(program, capture_output=True, text=True, check=False)

    shown = finished.stdout + finished.stderr
    assert finished.returncode == 0, shown
    assert "each result is what plain Python says" in shown
    table = finished.stdout.partition("dropped, says Spark")[2].splitlines()[1 : 1 + len(QUERIES)]
    rows = {name: cells for name, *cells in map(str.split, table)}
    for query in QUERIES:
        events, results, too_late, *said = rows[query]
        assert int(events) > int(results) > int(too_late) > 0
        assert said == (["not", "known"] if query == command.KILLED else [too_late])
