"""A stream of several epochs, and what a batch reads of it."""

from pyspark.sql.datasource import InputPartition

from millrace.spark_source.batch import MillraceBatchReader
from millrace.spark_source.positions import StreamOffset
from millrace.spark_source.rows import SCHEMA
from millrace.spark_source.source import MillraceDataSource
from tests.spark_source.conftest import Offset, Row, Shop, rows_of_tasks


def scaled(shop: Shop) -> None:
    """Make a stream of four epochs, with 1, 3, 1 and 2 segments, and 60 events in each."""
    shop.create()
    for borders in ((1 / 3, 2 / 3), (), (0.5,)):
        shop.write(12, events=5)
        shop.scale(*borders)
    shop.write(12, events=5)


def loaded(shop: Shop, **options: object) -> tuple[MillraceBatchReader, list[InputPartition]]:
    source = MillraceDataSource(shop.options(**options))
    source.schema()
    reader = source.reader(SCHEMA)
    return reader, reader.partitions()


def batch_rows(shop: Shop, **options: object) -> list[Row]:
    """Return what a batch reads, in the order of its partitions."""
    return rows_of_tasks(*loaded(shop, **options))


def segments_of(offset: Offset) -> list[int]:
    return sorted(StreamOffset.from_json(offset).marks)
