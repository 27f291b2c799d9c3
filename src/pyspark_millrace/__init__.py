"""Lets Spark find `format("millrace")` without registering it, from PySpark 4.1 on.

Spark imports every top-level package named `pyspark_*` when a Python data source is first asked for, and takes its
`DefaultSource`. It does so for all data sources, so an installation without the extra `spark` must not fail here.

PySpark 4.0 then refuses to register a source of the same name (SPARK-51919), which programs that run on several
versions do; there it has to be registered.
"""

from contextlib import suppress

with suppress(ImportError):
    from pyspark import __version__

    from millrace.spark_source import MillraceDataSource

    if not __version__.startswith("4.0."):
        DefaultSource = MillraceDataSource
