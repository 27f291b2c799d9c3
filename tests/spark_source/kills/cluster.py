"""A cluster of Spark in processes of its own: a master, and workers on hosts of their own, all of them this machine.

Spark starts a second attempt of a slow task only on another host, and every address of 127.0.0.0/8 is one.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

HOME: Final = Path(pyspark.__file__).parent
JARS: Final = HOME / "jars"


@contextmanager
def standalone_cluster(folder: Path, *, workers: int, environment: dict[str, str], cores: int = 1) -> Iterator[str]:
    """Run a cluster, and return its master as Spark takes it.

    Args:
        cores: of each worker; for each there are 512 MiB for an executor, and as much to spare.
        environment: of its executors, beside what this process has.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    processes = []
    try:
        processes.append(
            _start(folder / "master", "master.Master", "127.0.0.1", ["--port", str(port)], environment=environment)
        )
        for number in range(2, workers + 2):
            work = folder / f"worker-{number}"
            arguments = ["--cores", str(cores), "--memory", f"{cores}g", "--work-dir", str(work / "work"), master]
            processes.append(_start(work, "worker.Worker", f"127.0.0.{number}", arguments, environment=environment))
        yield master
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(
    folder: Path, name: str, host: str, arguments: list[str], *, environment: dict[str, str]
) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        command = ["java", "-cp", f"{JARS}/*", f"org.apache.spark.deploy.{name}", "--host", host, "--webui-port", "0"]
        return subprocess.Popen(
            [*command, *arguments],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={
                **os.environ,
                "SPARK_HOME": str(HOME),
                "SPARK_SCALA_VERSION": _scala_version(),  # else a worker looks for where Spark was built
                "SPARK_LOCAL_IP": host,
                "PYSPARK_PYTHON": sys.executable,
                **environment,
            },
        )


def _scala_version() -> str:
    (core,) = JARS.glob("spark-core_*.jar")
    return core.name.removeprefix("spark-core_").split("-")[0]
