"""Bookmark, slice and replay what sensors have measured: `python -m applications.sensors`.

Recorded measurements of five years are written as if they came now. A live job tells of each time at which a sensor is
below its threshold, as a slice of the stream. It is killed again and again meanwhile, and the stream is split and
merged. A week is compared with the same week of the year before, by a query that runs while the week comes. In the end
a batch job replays all slices. What each of the three says is checked against the measurements.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import millrace
from millrace.cli.output import print_note, print_table
from millrace.examples.running import ended_by_sigterm, server_at, spark_session

from . import live
from .compare import BEGIN, THIS_WEEK, Pair, check_pairs, comparison, pairs
from .recorded import DAY_US, READINGS, Reading, create, recorded, write
from .replay import Spell, check_spells, replay_one, spells
from .trial import Watcher, check, write_and_kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def watch_under_kills(address: str, history: list[Reading], first_day: list[Reading], *, log: Path) -> None:
    """Watch what comes until the week has begun, and save where it has."""
    async with millrace.connect(address) as client:
        if not await create(client):
            raise SystemExit(f"{READINGS} is there already; delete it first: millrace stream delete --seal {READINGS}")
        saving = asyncio.create_task(client.bookmarks(READINGS).save_when(THIS_WEEK, is_of_this_week))
        async with Watcher(address, log=log) as watcher:
            await write_and_kill(client, watcher, history)
        print_note(
            f"{len(history):,} measurements were watched by {watcher.starts} processes in turn, all of them killed"
        )
        await write(client, first_day)
        print_note(f"the week begins at {await saving}")


def is_of_this_week(event: millrace.Event) -> bool:
    """Return whether an event is of the week that is compared, or newer."""
    return event.timestamp_us is not None and event.timestamp_us >= BEGIN


async def watch_the_rest(address: str, rest: list[Reading]) -> None:
    """Write what is left, and let the live job end there."""
    async with millrace.connect(address) as client:
        await write(client, rest)
    await live.watch(address, end=millrace.TAIL)


def compare(spark: "SparkSession", address: str, rest: list[Reading], *, folder: Path) -> list[Pair]:
    """Compare the week while it comes; return what the query has written."""
    query = comparison(spark, address).option("checkpointLocation", str(folder / "comparison")).start()
    try:
        asyncio.run(watch_the_rest(address, rest))
        query.processAllAvailable()
    finally:
        query.stop()
    return asyncio.run(pairs(address))


async def count_slices(address: str, readings: list[Reading]) -> int:
    """Check what the live job has told; return how many slices that are."""
    async with millrace.connect(address) as client:
        return await check(client, readings)


def show_pairs(compared: Sequence[Pair]) -> None:
    """Print the week beside that of the year before."""
    rows = []
    for sensor in dict.fromkeys(pair.sensor for pair in compared):
        of_sensor = [pair for pair in compared if pair.sensor == sensor]
        now, then = (sum(values) / len(of_sensor) for values in zip(*(pair[2:] for pair in of_sensor), strict=True))
        rows.append((sensor, len(of_sensor), f"{now:.1f}", f"{then:.1f}", f"{now - then:+.1f}"))
    print_table(("sensor", "days", "mean of the week", "a year before", "difference"), rows, right=("days",))


def show_spells(found: Sequence[Spell]) -> None:
    """Print what the slices of each sensor hold."""
    rows = []
    for sensor in dict.fromkeys(spell.sensor for spell in found):
        of_sensor = [spell for spell in found if spell.sensor == sensor]
        lengths = [spell.length for spell in of_sensor]
        rows.append((sensor, len(of_sensor), sum(lengths), max(lengths), min(spell.low for spell in of_sensor)))
    columns = ("sensor", "slices", "measurements", "longest", "lowest")
    print_table(columns, rows, right=columns[1:])


def show_longest(spark: "SparkSession", address: str, found: Sequence[Spell], *, sensor: str) -> None:
    """Print the measurements of the longest slice of a sensor.

    Raises:
        SystemExit: they are not those that were counted.
    """
    longest = max((spell for spell in found if spell.sensor == sensor), key=lambda spell: spell.length)
    held = replay_one(spark, address, longest.text).collect()
    values = [row["value"] for row in held]
    if (len(values), min(values)) != (longest.length, longest.low):
        raise SystemExit(f"{longest.text} holds {values}, and not what was counted: {longest}")
    print_note(longest.text)
    print_note(f"is the longest of {sensor}, from {held[0]['time']:%d %b %Y} on: {' '.join(map(str, values))}")


@ended_by_sigterm()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m applications.sensors", description=__doc__)
    parser.add_argument("--address", help="of a server; without it one is started")
    parser.add_argument("--no-spark", action="store_true", help="only the live job: without Java")
    options = parser.parse_args(arguments)
    readings = recorded()
    history = [each for each in readings if each.timestamp_us < BEGIN]
    first_day = [each for each in readings if BEGIN <= each.timestamp_us < BEGIN + DAY_US]
    rest = [each for each in readings if each.timestamp_us >= BEGIN + DAY_US]
    with ExitStack() as stack:
        address = stack.enter_context(server_at(options.address))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asyncio.run(watch_under_kills(address, history, first_day, log=folder / "watcher.log"))
        if options.no_spark:
            asyncio.run(watch_the_rest(address, rest))
        else:
            spark = stack.enter_context(spark_session("sensors", log=folder / "spark.log"))
            compared = compare(spark, address, rest, folder=folder)
            check_pairs(compared, readings)
            show_pairs(compared)
        count = asyncio.run(count_slices(address, readings))
        print_note(f"{count} times a sensor was below its threshold, and each is one slice that holds exactly that")
        if not options.no_spark:
            found = spells(spark, address)
            check_spells(found, readings)
            show_spells(found)
            show_longest(spark, address, found, sensor="seattle-low")


if __name__ == "__main__":
    main()
