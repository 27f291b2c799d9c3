"""Lets Spark find `format("millrace")` without registering it.

Spark imports every top-level package named `pyspark_*` when a Python data source is first asked for, and takes its
`DefaultSource`. It does so for all data sources, so an installation without the extra `spark` must not fail here.
"""

from contextlib import suppress

with suppress(ImportError):
    from millrace.spark_source import MillraceDataSource as DefaultSource

    __all__ = ["DefaultSource"]
