"""The PySpark data source: streams of events as batch and as streaming DataFrames, and DataFrames as events.

    spark.dataSource.register(millrace.spark_source.MillraceDataSource)
    df = spark.read.format("millrace").option("address", "127.0.0.1:9240").option("stream", "shop/orders").load()
    df.select("value", "key").write.format("millrace").options(address=..., stream=...).mode("append").save()

PySpark and pyarrow are needed, on the executors too: the extra `spark`. Only the modules of this package import
PySpark.
"""

from millrace.model.extras import needs

with needs("spark"):
    from .errors import (
        BatchMismatchError,
        CheckpointError,
        DataLossError,
        IdentityError,
        MalformedValueError,
        MissingRange,
        OptionError,
        ReplacedError,
        RowError,
        SchemaError,
        SourceError,
        TransactionLostError,
    )
    from .progress import cut_of, cuts_of
    from .sink.committed import committed
    from .source import MillraceDataSource

__all__ = [
    "BatchMismatchError",
    "CheckpointError",
    "DataLossError",
    "IdentityError",
    "MalformedValueError",
    "MillraceDataSource",
    "MissingRange",
    "OptionError",
    "ReplacedError",
    "RowError",
    "SchemaError",
    "SourceError",
    "TransactionLostError",
    "committed",
    "cut_of",
    "cuts_of",
]


def __dir__() -> list[str]:
    return __all__
