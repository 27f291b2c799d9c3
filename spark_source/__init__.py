"""The PySpark data source: streams of events as batch and as streaming DataFrames.

    spark.dataSource.register(millrace.spark_source.MillraceDataSource)
    df = spark.read.format("millrace").option("address", "127.0.0.1:9240").option("stream", "shop/orders").load()

PySpark and pyarrow are needed (`pip install millrace[spark]`), on the executors too. No module but those of this
package imports PySpark.
"""

from .errors import DataLossError, OptionError, SchemaError, SourceError
from .progress import cut_of, cuts_of
from .source import MillraceDataSource

__all__ = ["DataLossError", "MillraceDataSource", "OptionError", "SchemaError", "SourceError", "cut_of", "cuts_of"]
