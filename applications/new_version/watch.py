"""Watch temperatures: `python -m applications.new_version.watch VERSION ADDRESS CHECKPOINT INTO [UNTIL]`.

For each reading one result: what was expected of it, and whether it is unusual. There are two versions:

    1  a reading is unusual if it jumps away from the one before it
    2  a reading is unusual if it is far from what the days before had at the same hour

Both read the stream from its head. So a new version has, when it has caught up, the state that it would have if it had
always been there. A version writes into the stream INTO; with UNTIL, a place of the readings such as `bookmark:switch`,
it ends exactly there. Its checkpoint says how far it is: kill it, start it again, with another INTO as well, and each
reading has one result.
"""

import sys
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import Row

from millrace import EventPosition
from millrace.examples.running import STATE_IN_ROCKSDB, spark_session

from .weather import READINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULT: Final = (
    "version int, sensor string, segment long, offset long, `index` int, "
    "temp_f double, expected_f double, unusual boolean"
)
JUMP_F: Final = 2.75
FAR_F: Final = 1.75
WEIGHT_OF_A_DAY: Final = 0.2
"""Of what is expected at an hour, how much the last day counts beside all before it."""


def _place(row: Row) -> EventPosition:
    return EventPosition(row["segment"], row["offset"], row["index"])


class _Watch(StatefulProcessor):
    """Gives each reading of a sensor its result, in the order in which they were taken."""

    version: int
    state_type: str

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", self.state_type)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        found = self._state.get()
        state = list(found[0]) if found else self.first_state()
        # A shuffle has no order. The places of the readings of one key ascend as they were written.
        for row in sorted(rows, key=_place):
            expected_f, unusual = self.judge(state, row["hour"], row["temp_f"])
            yield Row(
                version=self.version, sensor=key[0],
                segment=row["segment"], offset=row["offset"], index=row["index"],
                temp_f=row["temp_f"], expected_f=expected_f, unusual=unusual,
            )  # fmt: skip
        self._state.update((state,))

    def close(self) -> None:
        """Nothing is open."""

    @abstractmethod
    def first_state(self) -> list[float | None]:
        """Return what is known before the first reading."""

    @abstractmethod
    def judge(self, state: list[float | None], hour: int, temp_f: float) -> tuple[float, bool]:
        """Return what was expected, and whether the reading is unusual; let the state learn it."""


class Jumps(_Watch):
    """Version 1: expects what the last reading was."""

    version = 1
    state_type = "last array<double>"

    def first_state(self) -> list[float | None]:
        return [None]

    def judge(self, state: list[float | None], hour: int, temp_f: float) -> tuple[float, bool]:
        expected_f = temp_f if state[0] is None else state[0]
        state[0] = temp_f
        return expected_f, abs(temp_f - expected_f) > JUMP_F


class Hours(_Watch):
    """Version 2: expects what the days before had at this hour."""

    version = 2
    state_type = "hours array<double>"

    def first_state(self) -> list[float | None]:
        return [None] * 24

    def judge(self, state: list[float | None], hour: int, temp_f: float) -> tuple[float, bool]:
        known = state[hour]
        expected_f = temp_f if known is None else known
        state[hour] = expected_f + WEIGHT_OF_A_DAY * (temp_f - expected_f)
        return expected_f, abs(temp_f - expected_f) > FAR_F


VERSIONS: Final = {1: Jumps, 2: Hours}


def readings(rows: "DataFrame") -> "DataFrame":
    """Return the readings that events are, with their places."""
    reading = F.from_json(F.col("value").cast("string"), "sensor string, temp_f double")
    columns = (F.hour("timestamp").alias("hour"), "segment", "offset", "index")
    return rows.select(reading.alias("reading"), *columns).select("reading.*", "hour", "segment", "offset", "index")


def run(version: int, address: str, checkpoint: str, into: str, until: str | None = None) -> None:
    """Run a version: for as long as this process lives, or until a place of the readings."""
    options = {"address": address, "stream": READINGS, "startCut": "head"}
    trigger: dict[str, Any] = {"processingTime": "0 seconds"}
    if until is not None:
        options["endCut"] = until
        trigger = {"availableNow": True}
    with spark_session(f"watch, version {version}", STATE_IN_ROCKSDB) as spark:
        results = (
            readings(spark.readStream.format("millrace").options(**options).load())
            .groupBy("sensor")
            .transformWithState(
                statefulProcessor=VERSIONS[version](), outputStructType=RESULT, outputMode="append", timeMode="none"
            )
        )
        # The writer id is the version's: a batch is written once, whichever stream it is written to.
        told = {"address": address, "stream": into, "writerId": f"watch-{version}"}
        writing = results.writeStream.format("millrace").options(**told, valueFormat="json", keyColumn="sensor")
        writing.option("checkpointLocation", checkpoint).trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    _, number, *rest = sys.argv
    run(int(number), *rest)
