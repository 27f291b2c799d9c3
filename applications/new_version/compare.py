"""Compare what two versions say of the same readings: `python -m applications.new_version.compare`.

Its arguments are the address, the streams of results of the old and of the new version, and a place of the readings
such as `bookmark:trial`. It waits until both have told a result of each reading before it, and prints a line of JSON.
"""

import json
import sys
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from millrace.examples.running import spark_session

from .watch import RESULT
from .weather import READINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = ["segment", "offset", "index"]


class Comparison(NamedTuple):
    """Readings, counted by what the versions say of them.

    Attributes:
        without_result: at least one version has not yet said anything.
        both: both find them unusual.
        old, new: only that version does.
        examples: of those that the new version alone finds unusual: sensor, degrees, degrees that were expected by the
            new one, and by the old one; the largest differences first.
    """

    readings: int
    without_result: int
    both: int
    old: int
    new: int
    examples: list[tuple[str, float, float, float]]


def compare(spark: "SparkSession", address: str, *, old: str, new: str, until: str) -> Comparison:
    """Compare two streams of results over the readings up to a place, such as `bookmark:trial`."""
    events = spark.read.format("millrace").options(
        address=address, stream=READINGS, endCut=until, columns=",".join(PLACE)
    )
    readings = events.load().select(*PLACE)
    joined = readings.join(_results(spark, address, old, "old"), PLACE, "left")
    joined = joined.join(_results(spark, address, new, "new"), PLACE, "left").cache()
    is_old, is_new = F.col("old.unusual"), F.col("new.unusual")
    (counts,) = joined.select(
        F.count("*").alias("readings"),
        F.count_if(is_old.isNull() | is_new.isNull()).alias("without_result"),
        F.count_if(is_old & is_new).alias("both"),
        F.count_if(is_old & ~is_new).alias("old"),
        F.count_if(~is_old & is_new).alias("new"),
    ).collect()
    largest = joined.where(~is_old & is_new).orderBy(F.abs(F.col("new.temp_f") - F.col("new.expected_f")).desc())
    examples = largest.select("new.sensor", "new.temp_f", "new.expected_f", F.col("old.expected_f").alias("before"))
    return Comparison(**counts.asDict(), examples=[tuple(row) for row in examples.limit(3).collect()])


def _results(spark: "SparkSession", address: str, stream: str, name: str) -> "DataFrame":
    """Return the results of a stream, each with its place and the rest below a name."""
    reader = spark.read.format("millrace").options(address=address, stream=stream, valueFormat="json")
    return (
        reader.schema(RESULT).load().select(*PLACE, F.struct("sensor", "temp_f", "expected_f", "unusual").alias(name))
    )


if __name__ == "__main__":
    _, at, old_results, new_results, place = sys.argv
    with spark_session("compare") as session:
        compared = compare(session, at, old=old_results, new=new_results, until=place)
        while compared.without_result:
            compared = compare(session, at, old=old_results, new=new_results, until=place)
    print(json.dumps(compared._asdict()))
