import pickle
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

import millrace
import pyspark_millrace
from millrace.spark_source import MillraceDataSource
from millrace.spark_source.rows import SCHEMA
from tests.spark_source.conftest import IS_FOUND, Shop


@pytest.mark.skipif(not IS_FOUND, reason="PySpark 4.0 refuses to register what it has found")
def test_spark_finds_the_source_by_its_short_name() -> None:
    """Spark imports the packages named `pyspark_*` and takes their `DefaultSource`."""
    assert pyspark_millrace.DefaultSource is MillraceDataSource
    assert MillraceDataSource.name() == "millrace"
    assert millrace.spark_source.MillraceDataSource is MillraceDataSource


def test_an_installation_without_spark_is_left_in_peace() -> None:
    """Spark looks at all such packages for any Python data source: none may fail."""
    program = """
import sys
sys.modules["pyarrow"] = None
import pyspark_millrace
print(hasattr(pyspark_millrace, "DefaultSource"))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert finished.stdout == "False\n"


def test_nothing_but_the_source_imports_pyspark() -> None:
    program = "import sys, millrace, millrace.blocking, millrace.testing; print('pyspark' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert finished.stdout == "False\n"


def test_what_was_asked_at_load_travels_with_the_source(shop: Shop) -> None:
    """Spark pickles the instance that was asked for the schema, and asks it for the reader elsewhere."""
    shop.create()
    shop.write(2)
    source = MillraceDataSource(shop.options())
    source.schema()
    shop.write(2)
    there: MillraceDataSource = pickle.loads(pickle.dumps(source))
    reader = there.reader(SCHEMA)

    assert sum(len(batch) for partition in reader.partitions() for batch in reader.read(partition)) == 20


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_it_can_be_registered_too(spark: SparkSession, shop: Shop) -> None:
    shop.create()
    shop.write(2)
    assert shop.batch(spark).count() == 20
    spark.dataSource.register(millrace.spark_source.MillraceDataSource)

    assert shop.batch(spark).count() == 20
