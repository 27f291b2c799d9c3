"""The driver of the demo, a process of its own: `python -m millrace.examples.demo.queries ADDRESS FOLDER`.

A streaming query takes each reading, turns its degrees into Celsius, and writes it to a second stream, each one once.
Its checkpoint is in the folder: kill this program at any moment, start it again, and it continues. Beside it, questions
in SQL that come as events of a third stream are answered in a fourth one, from all that the query has written by then.
"""

import json
import os
import shutil
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace import HEAD, blocking
from millrace.examples.running import spark_session
from millrace.model.extras import DISTRIBUTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEMPERATURES: Final = "demo/temperatures"
CELSIUS: Final = "demo/celsius"
QUESTIONS: Final = "demo/questions"
ANSWERS: Final = "demo/answers"

MOST_PER_BATCH: Final = "3000"
"""Events of a micro-batch, so that one which is killed is not all of them."""


def what_is_missing() -> str:
    """Return what Spark lacks here and how to get it, empty if it can run."""
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            return f"{package} is not installed: pip install '{DISTRIBUTION}[demo]'"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "no Java was found: install a Java 17 runtime (Debian: apt install openjdk-17-jre-headless)"
    return ""


def cook(spark: "SparkSession", address: str, folder: Path) -> None:
    """Start the query, or continue it where its checkpoint says."""
    rows = (
        spark.readStream.format("millrace")
        .schema("sensor string, temp_f double, _key string, _timestamp timestamp")
        .options(address=address, stream=TEMPERATURES, valueFormat="json", startCut="head")
        .option("maxEventsPerTrigger", MOST_PER_BATCH)
        .load()
    )
    (
        rows.selectExpr("sensor", "(temp_f - 32) * 5 / 9 AS celsius", "_key", "_timestamp")
        .writeStream.format("millrace")
        .options(address=address, stream=CELSIUS, valueFormat="json", writerId="demo/celsius")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )


def answer(spark: "SparkSession", address: str) -> None:
    """Answer questions in SQL over what the query has written, for as long as this process lives."""
    try:
        with (
            blocking.connect(address) as client,
            client.reader(QUESTIONS, start=HEAD) as questions,
            client.writer(ANSWERS) as answers,
        ):
            for question in questions:
                (
                    spark.read.format("millrace")
                    .schema("sensor string, celsius double, _timestamp timestamp")
                    .options(address=address, stream=CELSIUS, valueFormat="json")
                    .load()
                    .createOrReplaceTempView("celsius")
                )
                rows = spark.sql(question.value.decode()).collect()
                answers.write(json.dumps([row.asDict() for row in rows]).encode()).result()
    finally:
        # Who waits for an answer sees that this process has ended.
        for query in spark.streams.active:
            query.stop()


def run(address: str, folder: Path) -> None:
    """Run the query, and answer, until the query fails or the process is killed."""
    settings = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # A JVM that lives for half a minute is better off without its second compiler: 11 s of processor, not 18, up to
        # the end of a first query.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # The query never ends, and would have all cores before a question has one.
        "spark.scheduler.mode": "FAIR",
    }
    with spark_session("millrace demo", settings) as spark:
        cook(spark, address, folder)
        threading.Thread(target=answer, args=(spark, address), daemon=True).start()
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
