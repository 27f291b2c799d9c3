"""Replay slices with Spark: one as a DataFrame of its own, or all of them in one batch job."""

from collections.abc import Iterator, Sequence
from math import isclose
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import millrace
from millrace import blocking

from .recorded import SLICES, Reading, runs_below

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Final = "value double, _key string, _timestamp timestamp"


class Spell(NamedTuple):
    """What one slice holds.

    Attributes:
        begin_us: when its first measurement was taken, in Unix microseconds.
        length: how many measurements.
        low: the lowest of them.
    """

    sensor: str
    text: str
    begin_us: int
    length: int
    low: float
    mean: float


def replay_one(spark: "SparkSession", address: str, text: str) -> DataFrame:
    """Return the measurements of a slice, oldest first: `time`, `value`."""
    reader = spark.read.format("millrace").schema(SCHEMA).options(address=address, valueFormat="json", slice=text)
    return reader.load().selectExpr("_timestamp as time", "value").orderBy("time")


def closed_slices(spark: "SparkSession", address: str) -> DataFrame:
    """Return the slices that are told with their ends, as texts: `slice`."""
    told = spark.read.format("millrace").options(address=address, stream=SLICES, columns="value").load()
    return told.selectExpr("cast(value as string) as slice").where("slice not like '%..#%'")


def replay_all(address: str, slices: DataFrame) -> DataFrame:
    """Return the measurements of all slices: `slice`, `sensor`, `time`, `value`. Each task reads some of the slices."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with blocking.connect(address) as client:
            for text in (text for batch in batches for text in batch.column("slice").to_pylist()):
                with client.reader(millrace.Slice.parse(text)) as reader:
                    for events in reader.arrow_batches():
                        columns = events.select(["key", "timestamp", "value"])
                        yield columns.append_column("slice", pa.repeat(text, len(events)))

    events = slices.mapInArrow(read, "key string, timestamp timestamp, value binary, slice string")
    value = F.from_json(F.col("value").cast("string"), "value double")["value"]
    return events.select("slice", F.col("key").alias("sensor"), F.col("timestamp").alias("time"), value.alias("value"))


def spells(spark: "SparkSession", address: str) -> list[Spell]:
    """Return how long and how low each closed slice is, those of a sensor one after another, oldest first."""
    slices = closed_slices(spark, address).repartition(spark.sparkContext.defaultParallelism)
    begin_us = F.unix_micros(F.min("time")).alias("begin_us")
    of_each = (
        replay_all(address, slices)
        .groupBy("sensor", "slice")
        .agg(begin_us, F.count("*"), F.min("value"), F.avg("value"))
        .orderBy("sensor", "begin_us")
    )
    return [Spell(*row) for row in of_each.collect()]


def check_spells(found: Sequence[Spell], readings: Sequence[Reading]) -> None:
    """Check that what was replayed is what was measured.

    Raises:
        SystemExit: it is not.
    """
    for sensor, runs in runs_below(readings).items():
        expected = [run.readings for run in runs if run.is_over]
        of_sensor = [spell for spell in found if spell.sensor == sensor]
        if len(of_sensor) != len(expected) or not all(map(_is_of, of_sensor, expected)):
            raise SystemExit(f"{sensor}: replayed were {of_sensor} in place of {expected}")


def _is_of(spell: Spell, run: Sequence[Reading]) -> bool:
    values = [reading.value for reading in run]
    same = (spell.begin_us, spell.length, spell.low) == (run[0].timestamp_us, len(run), min(values))
    return same and isclose(spell.mean, sum(values) / len(values))
