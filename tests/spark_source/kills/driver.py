"""A driver of Spark in a process of its own, to be killed with its JVM.

    python -m tests.spark_source.kills.driver FOLDER MASTER

Each line of its input is a query, as JSON: it is run to its end, and its outcome is one line of its output.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark_source.kills.points import FOLDER_VARIABLE, PointedDataSource

ROOT: Final = Path(__file__).parents[3]
ROWS_OF_ARROW: Final = 5
"""Of each batch that a writer gets: so a task has several."""
PATIENCE_S: Final = 300.0
"""Only a test that hangs waits so long."""


class DriverProcess:
    """A driver, on the side of the test."""

    def __init__(self, folder: Path, points: Path, *, master: str, conf: dict[str, str] | None = None) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            FOLDER_VARIABLE: str(points),
        }
        self._log = folder / "driver.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_source.kills.driver", str(folder), master, json.dumps(conf or {})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=ROOT,
                env=environment,
            )

    def start(self, **query: Any) -> None:
        """Start a query."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(query) + "\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Of Python; its JVM and all workers are its descendants."""
        return self._process.pid

    def fileno(self) -> int:
        """What can be read once there is an outcome, or the driver has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def outcome(self) -> dict[str, Any]:
        """Wait until the query has ended, and return its outcome.

        Raises:
            RuntimeError: the driver has ended.
        """
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE_S):
                raise TimeoutError(f"no outcome: {self._said()}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver ended: {self._said()}")
        outcome: dict[str, Any] = json.loads(line)
        return outcome

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to Python and its JVM; their workers have groups of their own, and end with the JVM."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End it without any warning."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _said(self) -> str:
        return self._log.read_text()[-3000:]


def main(folder: Path, master: str, conf: dict[str, str]) -> None:
    """Run queries until the input ends."""
    builder = SparkSession.builder.master(master).appName("millrace kills").config("spark.ui.enabled", "false")
    settings = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_OF_ARROW),
        "spark.sql.streaming.pollingDelay": "20ms",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(PointedDataSource)
    for line in sys.stdin:
        print(json.dumps(run(spark, **json.loads(line))), flush=True)


def run(
    spark: SparkSession,
    *,
    source: dict[str, str],
    columns: list[str],
    sink: dict[str, str],
    checkpoint: str,
    schema: str | None = None,
    partitions: int = 0,
    is_endless: bool = False,
) -> dict[str, Any]:
    """Run a query until it has read all that is there; an endless one until it fails.

    Args:
        source: options of the source; `schema` is that of its values where it decodes them.
        columns: that are written.
        sink: options of the sink.
        partitions: of each batch, by key; 0: as the source has them.
    """
    outcome: dict[str, Any] = {"id": "", "run": "", "error": "", "batches": []}
    try:
        reader = spark.readStream.format("millrace").options(**source)
        rows = (reader if schema is None else reader.schema(schema)).load()
        if partitions:
            # Of a key a batch has events in one task only, so what is read keeps its order.
            rows = rows.repartition(partitions, "key" if schema is None else "_key")
        writing = rows.selectExpr(*columns).writeStream.format("millrace").options(**sink)
        writing = writing.option("checkpointLocation", checkpoint)
        trigger = writing.trigger(processingTime="0 seconds") if is_endless else writing.trigger(availableNow=True)
        query = trigger.start()
        outcome |= {"id": str(query.id), "run": str(query.runId)}
        query.awaitTermination()
    except PySparkException as error:
        outcome["error"] = str(error)
    if outcome["id"]:
        outcome["batches"] = [progress.batchId for progress in query.recentProgress]
    return outcome


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
