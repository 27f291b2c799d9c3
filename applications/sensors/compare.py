"""Compare what comes with a week of last year: one query over a live stream and a slice of it by time, in Spark."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

import millrace
from millrace.examples.demo.data import unix_us_of

from .recorded import COMPARED, DAY_US, READINGS, Reading
from .replay import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

THIS_WEEK: Final = "this week"
"""The bookmark at which the query begins."""
BEGIN: Final = unix_us_of("2015/06/28")
"""Of the week: a hot one in Seattle, from Sunday to Saturday."""
YEAR_DAYS: Final = 7 * 52
"""From a day to the same day of the week a year later."""


class Pair(NamedTuple):
    """A measurement beside that of a year before."""

    sensor: str
    timestamp_us: int
    now: float
    then: float


def last_year() -> millrace.Slice:
    """Return the slice of the same week a year before."""
    begin_us = BEGIN - YEAR_DAYS * DAY_US
    return millrace.Slice(READINGS, millrace.TimeCut(begin_us), millrace.TimeCut(begin_us + 7 * DAY_US))


def comparison(spark: "SparkSession", address: str) -> "DataStreamWriter":
    """Return the query that writes each measurement of the week beside that of the same sensor a year before."""
    typed = {"address": address, "valueFormat": "json"}
    then = spark.read.format("millrace").schema(SCHEMA).options(**typed, slice=str(last_year())).load()
    live = spark.readStream.format("millrace").schema(SCHEMA).options(**typed, stream=READINGS)
    now = live.option("startCut", f"bookmark:{THIS_WEEK}").load()
    is_same_day = f"now._key = then._key and now._timestamp = then._timestamp + interval {YEAR_DAYS} days"
    both = now.alias("now").join(then.alias("then"), on=F.expr(is_same_day))
    compared = both.selectExpr("now._key", "now._timestamp", "now.value as now", "then.value as then")
    return compared.writeStream.format("millrace").options(**typed, stream=COMPARED)


async def pairs(address: str) -> list[Pair]:
    """Return what the query has written, in the order of the days."""
    found = []
    async with millrace.connect(address) as client, client.reader(COMPARED, end=millrace.TAIL) as reader:
        async for event in reader:
            values = json.loads(event.value)
            found.append(Pair(event.key or "", event.timestamp_us or 0, values["now"], values["then"]))
    return sorted(found, key=lambda pair: (pair.timestamp_us, pair.sensor))


def check_pairs(found: Sequence[Pair], readings: Sequence[Reading]) -> None:
    """Check that each measurement of the week is compared once, with the right one.

    Raises:
        SystemExit: it is not.
    """
    values = {(reading.sensor, reading.timestamp_us): reading.value for reading in readings}
    expected = [
        Pair(sensor, at_us, now, values[sensor, at_us - YEAR_DAYS * DAY_US])
        for (sensor, at_us), now in values.items()
        if BEGIN <= at_us < BEGIN + 7 * DAY_US
    ]
    if found != expected:
        raise SystemExit(f"compared were {found} in place of {expected}")
