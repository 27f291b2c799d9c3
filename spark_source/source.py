"""`MillraceDataSource`: the name that is registered with Spark."""

from contextlib import closing

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .batch import MillraceBatchReader
from .errors import OptionError
from .link import Link
from .options import SourceOptions, parse_options
from .planning import Bounds, Planner
from .rows import schema_of
from .stream import MillraceStreamReader


class MillraceDataSource(DataSource):
    """Streams of events as DataFrames: `spark.read.format("millrace")` and `spark.readStream.format("millrace")`.

    `load()` checks all options and asks the server for the stream, so that what is wrong is said at once. A batch
    DataFrame is what was between its cuts at that moment, however often it is used.
    """

    # Set in the instance that Spark pickles after it asked for the schema.
    _bounds: dict[str, Bounds] | None = None

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "millrace"

    def schema(self) -> StructType:
        """Return the columns, after everything that can be checked was checked.

        Raises:
            OptionError: an option is missing, unknown or wrong, the stream does not exist, or nothing answers.
        """
        options = self._parsed()
        if options.value_format is not None:
            raise OptionError("valueFormat", "needs to know the columns: name them with .schema(...) before load()")
        with closing(Link(options)) as link:
            _, self._bounds = link.call(Planner.bounds)
        return schema_of(options.columns)

    def reader(self, schema: StructType) -> MillraceBatchReader:
        """Return the batch reader."""
        return MillraceBatchReader(self._parsed(), schema, self._bounds)

    def streamReader(self, schema: StructType) -> MillraceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of micro-batches."""
        return MillraceStreamReader(self._parsed(), schema)

    def _parsed(self) -> SourceOptions:
        return parse_options(self.options)
