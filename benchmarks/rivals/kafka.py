"""Kafka, for Spark's own source and sink: one node in KRaft mode, on the loopback, with the jars that Maven finds.

It is set as it comes: acknowledged from the page cache, never synced. Topics have two partitions and are made on first
use. Its own performance tool is the producer, so that no Python client is in the way.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.processes import LOOPBACK, Child, find_program, free_port, running
from benchmarks.session import AbsentError

VERSION: Final = "4.1.0"
PARTITIONS: Final = 2
_RESOLVE_TIMEOUT_S: Final = 600.0
_FORMAT_TIMEOUT_S: Final = 60.0
_START_TIMEOUT_S: Final = 90.0
_LIFETIME_S: Final = 900.0
_CLUSTER_ID: Final = "bWlsbHJhY2UtYmVuY2htYX"  # 16 bytes in base64, as it wants them
# PySpark brings the rest of what the connector depends on.
_CONNECTOR_JARS: Final = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


@dataclass(frozen=True, slots=True)
class Kafka:
    """A running broker."""

    address: str
    child: Child
    # For `java -cp`.
    class_path: str

    def producer(self, topic: str, *, count: int, per_s: float, payload: Path) -> list[str]:
        """Return the command of a producer that sends lines of a file, drawn at random; -1 per second is all it can."""
        return [
            "java", "-cp", self.class_path, "org.apache.kafka.tools.ProducerPerformance",
            "--topic", topic, "--num-records", str(count), "--throughput", f"{per_s:g}", "--payload-file", str(payload),
            "--producer-props", f"bootstrap.servers={self.address}", "acks=1", "batch.size=262144",
        ]  # fmt: skip

    def fill(self, topic: str, *, count: int, payload: Path) -> None:
        """Fill a topic as fast as it takes it."""
        command = self.producer(topic, count=count, per_s=-1, payload=payload)
        subprocess.run(command, capture_output=True, text=True, timeout=_LIFETIME_S, check=True)


def resolve(folder: Path, *artifacts: str) -> list[Path]:
    """Return the jars of some artifacts (`group:name:version`) and of all that they need, from Maven's own store.

    Raises:
        AbsentError: there is no Maven, or it cannot get them.
    """
    maven = find_program("mvn")
    if maven is None or find_program("java") is None:
        raise AbsentError("apt-get install maven openjdk-17-jre-headless")
    with tempfile.TemporaryDirectory(dir=folder, prefix="maven-") as name:
        project, found = Path(name, "pom.xml"), Path(name, "class-path")
        project.write_text(_project(artifacts))
        finished = subprocess.run(
            [maven, "-B", "-q", "-f", str(project), "dependency:build-classpath", f"-Dmdep.outputFile={found}"],
            capture_output=True, text=True, timeout=_RESOLVE_TIMEOUT_S, check=False,
        )  # fmt: skip
        if finished.returncode != 0:
            (error, *_) = [line for line in finished.stdout.splitlines() if "[ERROR]" in line] or [finished.stderr]
            raise AbsentError(f"Maven cannot get {', '.join(artifacts)}: {error.partition('[ERROR]')[2][:300].strip()}")
        return [Path(text) for text in found.read_text().strip().split(os.pathsep)]


def connector(folder: Path, spark_version: str) -> list[Path]:
    """Return the jars of Spark's source and sink for Kafka, without those that Spark has itself.

    Raises:
        AbsentError: they cannot be had.
    """
    jars = resolve(folder, f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark_version}")
    return [jar for jar in jars if jar.name.startswith(_CONNECTOR_JARS)]


@contextlib.contextmanager
def running_broker(directory: Path) -> Iterator[Kafka]:
    """Run a broker with an empty log until the end of the block.

    Raises:
        AbsentError: its jars cannot be had, or there is no Java.
    """
    jars = resolve(directory, f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")
    class_path = os.pathsep.join(map(str, jars))
    port, controller_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(dir=directory, prefix="kafka-") as name:
        settings = Path(name, "server.properties")
        settings.write_text(_settings(Path(name), port, controller_port))
        subprocess.run(
            ["java", "-cp", class_path, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)],
            capture_output=True, timeout=_FORMAT_TIMEOUT_S, check=True,
        )  # fmt: skip
        command = ["java", "-Xmx1g", "-cp", class_path, "kafka.Kafka", str(settings)]
        with running(command, output=Path(name, "output"), lifetime_s=_LIFETIME_S) as child:
            child.wait_for_port(port, timeout_s=_START_TIMEOUT_S)
            yield Kafka(f"{LOOPBACK}:{port}", child, class_path)


def _settings(folder: Path, port: int, controller_port: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder / "data",
        "num.partitions": PARTITIONS,
        # With one node there is one copy, of its own topics, too.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _project(artifacts: Sequence[str]) -> str:
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *artifact.split(":")
        )
        for artifact in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>millrace</groupId><artifactId>benchmarks</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
