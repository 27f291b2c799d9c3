"""Compute with the times of events, however late they arrive: `python -m applications.event_time`.

Recorded measurements arrive out of order, late, and some of them far too late. Spark computes windows, sessions, a
join of two streams and a join with a table that changes, up to a watermark; the server is killed in the first of these
queries, and the driver in the last. A reader without Spark computes the last one, too, and waits for no watermark. Each
result has to be what plain Python computes from all measurements at once; what Spark drops has to be what is too late.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import millrace
from millrace import blocking
from millrace.cli.output import print_done, print_note, print_table
from millrace.client.testing import TestServer, server
from millrace.examples.demo.data import unix_us_of
from millrace.examples.running import Program, ended_by_sigterm

from .in_a_reader import BLOWS, blows_of
from .plain import COLD_F, Blow, Expected, Judged, Storm, Window, as_of, check, judged
from .queries import QUERIES, Note, notes
from .recorded import (
    DELAYS_H,
    RAIN,
    TEMPERATURES,
    WEATHER,
    WIND,
    Reading,
    arrivals,
    create,
    measured,
    readings_of,
    write,
)

SEED: Final = 0
PATIENCE_S: Final = 600.0
CHECK_S: Final = 1.0
KILLED: Final = "weather"
"""The query in which the driver is killed: the last one."""
FEBRUARY: Final = (unix_us_of("2010/02/01"), unix_us_of("2010/03/01"))
"""Some of its temperatures arrive in the last weeks of the year."""


def show_arrivals(arrived: Mapping[str, Judged]) -> None:
    """Print how late the measurements of each stream are."""
    columns = ("stream", "watermark", "in order", "late", "too late")
    rows = [
        (name, f"{DELAYS_H[name]} h", len(each.in_order), len(each.late), len(each.too_late))
        for name, each in arrived.items()
    ]
    print_table(columns, rows, right=columns[1:])


def join_in_a_reader(client: blocking.Client, address: str, arrived: Mapping[str, list[Reading]], folder: Path) -> None:
    """Write wind and weather; meanwhile a reader joins them, and is killed.

    Raises:
        SystemExit: what it has told is not what is true, or it has told something twice.
    """
    module, log = f"{__package__}.in_a_reader", folder / "reader.log"
    with Program(module, address, log=log) as program:
        for stream in (WIND, WEATHER):
            write(client, stream, arrived[stream][: len(arrived[stream]) // 2])
        asyncio.run(first_event(address, BLOWS, program))
        for stream in (WIND, WEATHER):
            write(client, stream, arrived[stream][len(arrived[stream]) // 2 :])
        program.kill()
    with Program(module, address, "tail", log=log) as program:
        program.wait(PATIENCE_S)
    with client.reader(BLOWS, end=millrace.TAIL) as reader:
        told = blows_of(reader)
    truth = measured()
    count = check_table(told, as_of(truth[WIND], truth[WEATHER]))
    print_done(
        f"a reader, killed once, has told {count:,} winds with the weather of their own times, however late that came; "
        f"{len(told) - count:,} times it told a wind again, for a change that came after it"
    )


def check_table(told: Sequence[Blow], expected: Iterable[Blow]) -> int:
    """Check what a reader has told: the last of each moment is right, and none is told again as it was.

    Raises:
        SystemExit: it is not.
    """
    of_moment: dict[int, list[Blow]] = {}
    for blow in told:
        of_moment.setdefault(blow.timestamp_us, []).append(blow)
    for blows in of_moment.values():
        if any(before == again for before, again in pairwise(blows)):
            raise SystemExit(f"in a reader: told twice was one of {blows}")
    return check("in a reader", (blows[-1] for blows in of_moment.values()), expected)


async def first_event(address: str, stream: str, program: Program) -> None:
    """Wait until a program has told something in a stream.

    Raises:
        SystemExit: it tells nothing, or has ended.
    """
    async with millrace.connect(address) as client, client.reader(stream) as reader:
        reading = asyncio.ensure_future(anext(reader))
        left_s = PATIENCE_S
        while not (await asyncio.wait({reading}, timeout=CHECK_S))[0]:
            left_s -= CHECK_S
            if program.ended or left_s < 0:
                reading.cancel()
                state = "has ended" if program.ended else f"has run for {PATIENCE_S:g} s"
                raise SystemExit(f"{stream}: nothing was told, and the program {state}")
        await reading


def count_february(client: blocking.Client, too_late: Sequence[Reading]) -> None:
    """Read a month by its time, whenever it arrived, and check it.

    Raises:
        SystemExit: something of the month is not between the cuts.
    """
    begin_us, end_us = FEBRUARY
    with client.reader(TEMPERATURES, start=millrace.TimeCut(begin_us), end=millrace.TimeCut(end_us)) as reader:
        found = readings_of(reader)
    of_month = [reading for reading in found if begin_us <= reading.timestamp_us < end_us]
    truth = [reading for reading in measured()[TEMPERATURES] if begin_us <= reading.timestamp_us < end_us]
    count = check("February", of_month, truth)
    late = len(set(of_month) & set(too_late))
    print_done(
        f"February, read by its time, has all of its {count:,} temperatures, {late} of them too late for a watermark; "
        f"the slice holds {len(found):,} events, as these came months later"
    )


def run_queries(started: TestServer, folder: Path) -> None:
    """Run the queries; kill the server in the middle of the first one, and their driver in the middle of the last."""
    arguments = (f"{__package__}.queries", started.address, str(folder))
    with Program(*arguments, log=folder / "spark.log") as driver:
        asyncio.run(first_event(started.address, QUERIES["days"].results, driver))
        started.kill()
        started.start()
        asyncio.run(first_event(started.address, QUERIES[KILLED].results, driver))
        driver.kill()
        if len(notes(folder)) == len(QUERIES):
            print_note("all queries were done before the driver was killed")
        driver.start()
        driver.wait(PATIENCE_S)
    print_done("all queries are done; the server was killed in the first of them, and the driver of Spark in the last")


def results(client: blocking.Client, name: str) -> Sequence[Window | Storm | Blow]:
    """Return what a query has told."""
    with client.reader(QUERIES[name].results, end=millrace.TAIL) as reader:
        events = list(reader)
    if name == "weather":
        return blows_of(events)
    return [result_of(name, event.key or "", event.timestamp_us or 0, json.loads(event.value)) for event in events]


def result_of(name: str, key: str, at_us: int, told: Mapping[str, Any]) -> Window | Storm:
    """Return the result that an event says."""
    if name == "storms":
        return Storm(key, at_us, told["rain"], told.get("wind_us"), told.get("wind"))
    return Window(key, at_us, told["end_us"], told["count"], told["low"], told["high"], round(told["mean"], 6))


def check_note(note: Note, *, events: int, dropped: int) -> None:
    """Check what Spark says of a query.

    Raises:
        SystemExit: it has not read all events, or has dropped others than those that are too late.
    """
    if (note.events, note.dropped) != (events, dropped):
        raise SystemExit(f"{note}, in place of {events} events and {dropped} rows that are dropped")


def show_results(client: blocking.Client, arrived: Mapping[str, Sequence[Reading]], folder: Path) -> None:
    """Check the results of all queries, and print them.

    Raises:
        SystemExit: one of them is wrong.
    """
    expected = Expected(arrived)
    said = {note.query: note for note in notes(folder)}
    found = {name: results(client, name) for name in QUERIES}
    rows: list[tuple[object, ...]] = []
    for name, query in QUERIES.items():
        events = sum(len(arrived[stream]) for stream in query.streams)
        count = check(name, found[name], expected.results[name])
        # Spark counts in memory: what the driver counted before it was killed is not known.
        is_known = name != KILLED
        if is_known:
            check_note(said[name], events=events, dropped=expected.dropped[name])
        rows.append((name, events, count, expected.dropped[name], said[name].dropped if is_known else "not known"))
    columns = ("query", "events", "results", "rows too late", "dropped, says Spark")
    print_table(columns, rows, right=columns[1:])
    show_nights(found["nights"])
    show_storms(found["storms"])
    show_weather(found["weather"])


def show_nights(found: Iterable[Any]) -> None:
    """Print how many cold spells a city had, and the longest."""
    rows = []
    for city in COLD_F:
        spells = [spell for spell in found if spell.sensor == city]
        longest = max(spells, key=lambda spell: spell.length)
        rows.append(
            (city, f"{COLD_F[city]:g} F", len(spells), longest.length, f"{date_of(longest.begin_us)}", longest.low)
        )
    columns = ("city", "cold below", "cold spells", "hours of the longest", "from", "its lowest F")
    print_table(columns, rows, right=columns[1:])


def show_storms(found: Sequence[Any]) -> None:
    """Print how much rain came with strong wind."""
    wet = {storm.rain_us for storm in found}
    alone = {storm.rain_us for storm in found if storm.wind is None}
    print_note(f"{len(wet)} days of much rain; {len(wet) - len(alone)} of them had strong wind within a day of it")


def show_weather(found: Sequence[Any]) -> None:
    """Print the mean wind of each weather, and where the table was not told in time."""
    truth = {blow.timestamp_us: blow for blow in as_of(measured()[WIND], measured()[WEATHER])}
    rows = []
    for weather in sorted({blow.weather for blow in found}, key=str):
        winds = [blow.wind for blow in found if blow.weather == weather]
        rows.append((weather or "nothing told: sun", len(winds), f"{fmean(winds):.2f}", max(winds)))
    columns = ("weather", "winds", "mean m/s", "strongest")
    print_table(columns, rows, right=columns[1:])
    wrong = sum(blow != truth[blow.timestamp_us] for blow in found)
    print_note(
        f"{wrong} of these {len(found):,} winds have an older weather, whose change came too late; "
        f"{len(truth) - len(found)} more are too late themselves, or wait for the watermark"
    )


def date_of(timestamp_us: int) -> str:
    """Return a day as people write it."""
    return f"{datetime.fromtimestamp(timestamp_us / 1e6, UTC):%d %b %Y}"


@ended_by_sigterm()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m applications.event_time", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="of the times of arrival (%(default)s)")
    parser.add_argument("--no-spark", action="store_true", help="only the reader and the slice: without Java")
    options = parser.parse_args(arguments)
    arrived = arrivals(options.seed)
    late = {stream: judged(stream, readings) for stream, readings in arrived.items()}
    show_arrivals(late)
    with ExitStack() as stack:
        started = stack.enter_context(server())
        client = stack.enter_context(blocking.connect(started.address))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        create(client, *arrived, BLOWS, *(query.results for query in QUERIES.values()))
        join_in_a_reader(client, started.address, arrived, folder)
        for stream in (TEMPERATURES, RAIN):
            write(client, stream, arrived[stream])
        count_february(client, late[TEMPERATURES].too_late)
        if not options.no_spark:
            run_queries(started, folder)
            show_results(client, arrived, folder)
            print_done("each result is what plain Python says, once, and dropped was what is too late")


if __name__ == "__main__":
    main()
