"""What the programs share: a server to use, and a session of Spark."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millrace.client.testing import server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def server_at(address: str | None) -> Iterator[str]:
    """Give the address of a server: the one that is named, or one of its own for the length of the block."""
    if address is not None:
        yield address
        return
    with server() as started:
        yield started.address


@contextmanager
def spark_session(name: str, settings: Mapping[str, str] | None = None) -> Iterator["SparkSession"]:
    """Give a session of Spark on two cores of this machine, which says nothing but errors."""
    from pyspark.sql import SparkSession

    from millrace.spark_source import MillraceDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable  # of its workers, which need Millrace as well
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName(name)
    usual = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # 200, as Spark has them by default, would keep a state of a few keys in 200 places.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    for key, value in (usual | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(MillraceDataSource)
        yield spark
    finally:
        spark.stop()
