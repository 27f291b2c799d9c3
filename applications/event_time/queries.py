"""Windows, sessions and joins in Spark: `python -m applications.event_time.queries ADDRESS FOLDER`.

    days       tumbling windows: each day of each city
    quarters   sliding windows: 24 hours, each 6 hours
    nights     session windows: each cold spell of each city
    storms     a join of two streams: much rain, with the strong winds near to it
    weather    a join of a stream with a table that changes: each wind with the weather at its own time

Each takes what is there in some batches, and writes its results to a stream, each once. What Spark said of it is a
line in `notes.jsonl` of the folder. There are the checkpoints, too: kill this program at any moment and start it again.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import Row

from millrace import blocking
from millrace.examples.running import STATE_IN_ROCKSDB, spark_session

from .plain import COLD_F, GAP_MIN, NEAR_H, RAIN_MIN_MM, STEP_H, WIND_MIN, batch_size
from .recorded import DELAYS_H, RAIN, TEMPERATURES, WEATHER, WIND

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTES: Final = "notes.jsonl"


class Source:
    """Reads the streams as they arrive, in some batches."""

    def __init__(self, spark: "SparkSession", address: str) -> None:
        self._spark = spark
        self._address = address

    def readings(self, stream: str, value: str = "value double") -> "DataFrame":
        """Return the measurements of a stream, with their own times and a watermark: `value`, `_key`, `_timestamp`."""
        with blocking.connect(self._address) as client:
            count = client.distance(client.stream_head(stream), client.stream_cut(stream)).events
        reader = self._spark.readStream.format("millrace").options(address=self._address, stream=stream)
        reader = reader.options(valueFormat="json", startCut="head", maxEventsPerTrigger=str(batch_size(count)))
        rows = reader.schema(f"{value}, _key string, _timestamp timestamp").load()
        return rows.withWatermark("_timestamp", f"{DELAYS_H[stream]} hours")


def days(source: Source) -> "DataFrame":
    """Return each day of each city, once it is over."""
    return of_windows(source.readings(TEMPERATURES), F.window("_timestamp", "24 hours"))


def quarters(source: Source) -> "DataFrame":
    """Return the 24 hours from every sixth hour on."""
    return of_windows(source.readings(TEMPERATURES), F.window("_timestamp", "24 hours", f"{STEP_H} hours"))


def nights(source: Source) -> "DataFrame":
    """Return each cold spell of each city, once nothing can be added to it any more."""
    limit = F.create_map(*(F.lit(each) for pair in COLD_F.items() for each in pair))[F.col("_key")]
    cold = source.readings(TEMPERATURES).where(F.col("value") < limit)
    return of_windows(cold, F.session_window("_timestamp", f"{GAP_MIN} minutes"))


def of_windows(readings: "DataFrame", window: Any) -> "DataFrame":
    """Return what each window says of the measurements in it."""
    held = readings.groupBy(window.alias("window"), "_key").agg(
        F.count("*").alias("count"), F.min("value").alias("low"), F.max("value").alias("high"),
        F.avg("value").alias("mean"),
    )  # fmt: skip
    return held.selectExpr(
        "_key", "window.start as _timestamp", "unix_micros(window.end) as end_us", "count", "low", "high", "mean"
    )


def storms(source: Source) -> "DataFrame":
    """Return each day of much rain with each strong wind within a day of it, or alone once no such wind can come."""
    rain = source.readings(RAIN).where(F.col("value") >= RAIN_MIN_MM).alias("rain")
    wind = source.readings(WIND).where(F.col("value") >= WIND_MIN).alias("wind")
    near = (
        f"rain._key = wind._key and wind._timestamp between rain._timestamp - interval {NEAR_H} hours "
        f"and rain._timestamp + interval {NEAR_H} hours"
    )
    both = rain.join(wind, on=F.expr(near), how="leftOuter")
    return both.selectExpr(
        "rain._key", "rain._timestamp", "rain.value as rain", "unix_micros(wind._timestamp) as wind_us",
        "wind.value as wind",
    )  # fmt: skip


def weather(source: Source) -> "DataFrame":
    """Return each wind with the weather that was true at its own time."""
    wind = source.readings(WIND).withColumnRenamed("value", "wind")
    changes = source.readings(WEATHER, "value string").withColumnRenamed("value", "weather")
    wind = wind.selectExpr("_key", "_timestamp", "false as is_change", "wind", "cast(null as string) as weather")
    changes = changes.selectExpr("_key", "_timestamp", "true as is_change", "cast(null as double) as wind", "weather")
    joined = (
        wind.union(changes)
        .withColumn("at_us", F.unix_micros("_timestamp"))
        .groupBy("_key")
        .transformWithState(
            statefulProcessor=AsOf(),
            outputStructType="place string, at_us long, wind double, weather string",
            outputMode="append",
            timeMode="eventTime",
        )
    )
    return joined.selectExpr("place as _key", "timestamp_micros(at_us) as _timestamp", "wind", "weather")


class AsOf(StatefulProcessor):
    """Gives each event the value that the table had at the event's own time.

    An event waits until the watermark has passed its time: no change from before it can come then. The state is what
    waits, and the changes that something may still ask for.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._handle = handle
        self._waiting = handle.getListState("waiting", "at_us long, wind double")
        self._changes = handle.getListState("changes", "at_us long, weather string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Keep what comes; ask to be woken for the first that waits."""
        waiting, changes = list(self._waiting.get()), list(self._changes.get())
        for row in rows:
            if row["is_change"]:
                changes.append((row["at_us"], row["weather"]))
            else:
                waiting.append((row["at_us"], row["wind"]))
        self._keep(waiting, changes)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Tell what the watermark has passed."""
        until_us = timerValues.getCurrentWatermarkInMs() * 1000
        waiting, changes = sorted(self._waiting.get()), sorted(self._changes.get(), key=lambda change: change[0])
        ended = [each for each in waiting if each[0] <= until_us]
        for at_us, wind in ended:
            while len(changes) > 1 and changes[1][0] <= at_us:
                del changes[0]
            known = changes[0][1] if changes and changes[0][0] <= at_us else None
            yield Row(place=key[0], at_us=at_us, wind=wind, weather=known)
        self._keep(waiting[len(ended) :], changes)

    def _keep(self, waiting: list[tuple[int, float]], changes: list[tuple[int, str | None]]) -> None:
        for state, held in ((self._waiting, waiting), (self._changes, changes)):
            if held:
                state.put(list(held))
            else:
                state.clear()  # Spark takes no empty list
        if waiting:
            self._handle.registerTimer(min(waiting)[0] // 1000)

    def close(self) -> None:
        """Nothing is open."""


class Query(NamedTuple):
    """A query, the streams that it reads, and the one that it writes."""

    build: Callable[[Source], "DataFrame"]
    streams: tuple[str, ...]
    results: str


QUERIES: Final = {
    "days": Query(days, (TEMPERATURES,), "event-time/days"),
    "quarters": Query(quarters, (TEMPERATURES,), "event-time/quarters"),
    "nights": Query(nights, (TEMPERATURES,), "event-time/nights"),
    "storms": Query(storms, (RAIN, WIND), "event-time/storms"),
    "weather": Query(weather, (WIND, WEATHER), "event-time/wind-and-weather"),
}


class Note(NamedTuple):
    """What Spark says of a query: events that it has read, rows that it has dropped by the watermark."""

    query: str
    batches: int
    events: int
    dropped: int


def run(address: str, folder: Path) -> None:
    """Run the queries that have no note yet, one after the other."""
    done = {note.query for note in notes(folder)}
    with spark_session("event time", STATE_IN_ROCKSDB) as spark:
        source = Source(spark, address)
        for name, (build, _, results) in QUERIES.items():
            if name in done:
                continue
            writing = build(source).writeStream.format("millrace").options(address=address, stream=results)
            writing = writing.options(valueFormat="json").option("checkpointLocation", str(folder / name))
            query = writing.trigger(availableNow=True).start()
            query.awaitTermination()
            progress = query.recentProgress
            dropped = sum(each.numRowsDroppedByWatermark for batch in progress for each in batch.stateOperators)
            note = Note(name, len(progress), sum(batch.numInputRows for batch in progress), dropped)
            with (folder / NOTES).open("a") as file:
                print(json.dumps(note._asdict()), file=file)


def notes(folder: Path) -> list[Note]:
    """Return what was noted."""
    path = folder / NOTES
    return [Note(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
