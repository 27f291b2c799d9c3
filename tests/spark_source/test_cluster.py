"""Spark in processes of its own: a standalone cluster of a master and two workers, and a Spark Connect server.

Each is started from what the package of PySpark brings along, on ports of the loopback that the system chooses, and is
ended with everything that it has started. The drivers are processes, too: a Python process has one Spark.
"""

import collections
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pyspark
import pytest

from tests.spark_source.conftest import Shop

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOOPBACK = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


def environment() -> dict[str, str]:
    return {
        **os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOOPBACK, "SPARK_DAEMON_MEMORY": "600m",
        "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip


class Daemon:
    """A running class of Spark, heard of by what it logs."""

    def __init__(self, log: IO[str]) -> None:
        self._log = log
        # A pipe that nobody reads fills, and stops the one who writes.
        self.drain = threading.Thread(target=collections.deque, args=(log, 0))

    def said(self, pattern: str) -> str:
        """Return the first group of a pattern, as soon as a line has it; to be called once: the rest is thrown away."""
        lines: list[str] = []
        for line in self._log:
            lines.append(line)
            if found := re.search(pattern, line):
                self.drain.start()
                return found[1]
        raise AssertionError(f"ended, and never said {pattern!r}: {''.join(lines)[-3000:]}")


@contextmanager
def daemon(*arguments: str, folder: Path) -> Iterator[Daemon]:
    """Run a class of Spark until the end of the block, and end what it has started with it."""
    with subprocess.Popen(
        [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True, cwd=folder, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        running = Daemon(process.stdout)
        try:
            yield running
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            if running.drain.ident is not None:
                running.drain.join()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster of two workers with one core each."""
    with ExitStack() as stack:
        where = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        running = stack.enter_context(daemon(MASTER, *where, folder=tmp_path))
        address = running.said(r"Starting Spark master at (spark://[\d.:]+)")
        workers = [
            stack.enter_context(
                daemon(
                    WORKER,
                    *where,
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--work-dir",
                    str(tmp_path / f"work-{number}"),
                    address,
                    folder=tmp_path,
                )
            )
            for number in range(2)
        ]
        for worker in workers:
            worker.said(r"Successfully registered with (master)")
        yield address


def run_driver(program: str, *arguments: str, options: Mapping[str, str], folder: Path) -> list[str]:
    """Run a driver in a process of its own, and return the lines that it prints."""
    finished = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments, str(folder), *(f"{k}={v}" for k, v in options.items())],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2], env=environment(),
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-5000:]
    return finished.stdout.splitlines()


PRELUDE = """
import os, signal, sys
from pathlib import Path
import psutil
from pyspark.sql import SparkSession
from millrace.spark_source import MillraceDataSource

master, folder, *texts = sys.argv[1:]
options = dict(text.split("=", 1) for text in texts)
"""

BATCHES = """
query = (
    spark.readStream.format("millrace").options(**options).load()
    .selectExpr("cast(value as string) as value", "key", "segment", "offset", "index")
    .writeStream.format("parquet")
    .option("path", f"{folder}/rows").option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
)
query.start().awaitTermination()
print(spark.read.parquet(f"{folder}/rows").count(), spark.read.parquet(f"{folder}/rows").distinct().count())
"""

CLUSTER = (
    """
spark = (
    SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", folder + "/warehouse").config("spark.sql.shuffle.partitions", "2")
    .config("spark.executor.memory", "512m").config("spark.scheduler.minRegisteredResourcesRatio", "1")
    .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s").getOrCreate()
)
if spark.version.startswith("4.0."):
    spark.dataSource.register(MillraceDataSource)
rows = spark.read.format("millrace").options(**options).option("partitionBytes", "200").load()

def executors(batches):
    import pyarrow as pa
    daemon = psutil.Process().parent()
    for batch in batches:
        executor = daemon.parent().pid
        yield pa.RecordBatch.from_pydict({"executor": [executor] * len(batch), "value": batch.column("value")})

def with_a_kill(batches):
    import pyarrow as pa
    for batch in batches:
        try:
            Path(folder, "killed").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            psutil.Process().parent().parent().kill()
        yield pa.RecordBatch.from_pydict({"value": batch.column("value")})

seen = rows.select("value").mapInArrow(executors, "executor long, value binary").collect()
print(len(seen), len({bytes(row.value) for row in seen}), len({row.executor for row in seen}))
seen = rows.select("value").mapInArrow(with_a_kill, "value binary").collect()
print(len(seen), len({bytes(row.value) for row in seen}), Path(folder, "killed").exists())
"""
    + BATCHES
)


def test_executors_of_a_cluster_read_each_event_once_also_when_one_is_killed(master: str, shop: Shop) -> None:
    shop.create(4)
    shop.write(20)
    shop.scale(0.3, 0.6)
    shop.write(20)

    lines = run_driver(CLUSTER, master, options=shop.options(), folder=shop.folder)

    assert lines == ["400 400 2", "400 400 True", "400 400"]


REMOTE = (
    """
spark = SparkSession.builder.remote(master).getOrCreate()
if spark.version.startswith("4.0."):
    spark.dataSource.register(MillraceDataSource)
rows = spark.read.format("millrace").options(**options).load()
print(type(spark).__module__, rows.count(), rows.select("key").distinct().count())
try:
    spark.read.format("millrace").options(**{**options, "stream": "tests/nothing"}).load().count()
except Exception as error:
    print("there is no stream tests/nothing" in str(error))
"""
    + BATCHES
)


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server in a process of its own."""
    settings = {
        "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"), "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
    }  # fmt: skip
    arguments = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    with daemon(SUBMIT, *arguments, "--class", CONNECT, "spark-internal", folder=tmp_path) as running:
        yield f"sc://{LOOPBACK}:{running.said(r'Spark Connect server started at: [^ ]*:([0-9]+)')}"


def test_a_client_of_spark_connect_reads_a_batch_and_runs_a_query(connect_server: str, shop: Shop) -> None:
    """The client has no JVM: classes, errors and plans cross as messages."""
    shop.create(2)
    shop.write(10)
    shop.scale(0.5)
    shop.write(10)

    lines = run_driver(REMOTE, connect_server, options=shop.options(), folder=shop.folder)

    assert lines == ["pyspark.sql.connect.session 200 7", "True", "200 200"]
