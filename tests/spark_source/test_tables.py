"""Streams as tables and views of SQL, in a real local Spark."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark_source.conftest import PYSPARK, Shop

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(PYSPARK < (4, 3), reason="what Spark passes for tables is known from 4.3 on"),
]


@pytest.fixture
def table(spark: SparkSession, shop: Shop) -> Iterator[str]:
    """Create a table of the stream in the catalog."""
    shop.create()
    name = shop.stream.replace("/", "_")
    options = f"address '{shop.address}', stream '{shop.stream}', columns 'value,key'"
    spark.sql(f"CREATE TABLE {name} USING millrace OPTIONS ({options})")
    yield name
    spark.sql(f"DROP TABLE {name}")


def test_a_table_is_read_and_written_by_sql(spark: SparkSession, shop: Shop, table: str) -> None:
    """Also through a view of it; each use finds the bounds again."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW whole AS SELECT * FROM {table}")
    shop.write(1)
    assert spark.sql("SELECT * FROM whole").count() == 10

    spark.sql(f"INSERT INTO {table} (value) VALUES (cast('eleven' AS binary))")

    assert spark.sql("SELECT * FROM whole").count() == 11
    assert spark.sql(f"SELECT * FROM {table} WITH (startCut = 'tail')").count() == 0
    assert shop.plain()[-1].value == b"eleven"
