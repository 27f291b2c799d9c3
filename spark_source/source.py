"""`MillraceDataSource`: the name that is registered with Spark."""

from contextlib import closing
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

from .batch import MillraceBatchReader
from .errors import OptionError
from .link import Link
from .options import SourceOptions, parse_options
from .planning import Bounds, Planner, run_plan
from .rows import schema_of
from .sink.options import SINK_OPTION_NAMES, parse_sink_options
from .sink.writers import MillraceBatchWriter, Sink, stream_writer
from .stream import MillraceStreamReader
from .table_options import given_options, is_of_table, options_of, with_options


class MillraceDataSource(DataSource):
    """Streams of events as DataFrames: `format("millrace")` of `spark.read`, `readStream`, `write` and `writeStream`.

    `load()` checks all options and asks the server for the stream, so that what is wrong is said at once. A batch
    DataFrame is what was between its cuts at that moment, however often it is used.

    What is written is checked on the driver, before the tasks of each batch.
    """

    # Set in the instance that Spark pickles after it asked for the schema.
    _bounds: dict[str, Bounds] | None = None
    # Of an instance that was pickled: Spark asks it for the writer that commits, when tasks have run already.
    _was_checked: bool = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle it."""
        self.__dict__.update(state)
        self._was_checked = True

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "millrace"

    def schema(self) -> StructType:
        """Return the columns, after everything that can be checked was checked.

        Raises:
            OptionError: an option is missing, unknown or wrong, the stream does not exist, or nothing answers.
        """
        given = given_options(self.options)
        options = parse_options(given)
        if options.value_format is not None:
            raise OptionError("valueFormat", "needs to know the columns: name them with .schema(...) before load()")
        with closing(Link(options)) as link:
            _, self._bounds = run_plan(Planner.bounds, link=link, options=options)
        schema = schema_of(options.columns)
        return with_options(schema, given) if is_of_table(self.options) else schema

    def reader(self, schema: StructType) -> MillraceBatchReader:
        """Return the batch reader."""
        return MillraceBatchReader(self._parsed(schema), schema, self._bounds)

    def streamReader(self, schema: StructType) -> MillraceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of micro-batches."""
        return MillraceStreamReader(self._parsed(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> MillraceBatchWriter:
        """Return the writer of a batch, after everything that can be checked was checked.

        Raises:
            OptionError: an option is missing, unknown or wrong, a stream is not there, or nothing answers.
            SchemaError: a column is none of events.
        """
        if overwrite:
            raise OptionError("mode", "overwrite: what is in a stream stays; append, or write to another stream")
        return MillraceBatchWriter(self._checked_sink(schema, is_streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of micro-batches. Raises like `writer`."""
        if overwrite:
            raise OptionError(
                "outputMode",
                "complete: each batch would replace the one before, and what is in a stream stays; use append, or"
                " foreachBatch with a batch write of what has changed",
            )
        return stream_writer(self._checked_sink(schema, is_streaming=True))

    def _checked_sink(self, schema: StructType, *, is_streaming: bool) -> Sink:
        options = options_of(schema, given_options(self.options), names=SINK_OPTION_NAMES)
        sink = Sink(parse_sink_options(options, is_streaming=is_streaming), schema)
        if not self._was_checked:
            sink.check()
        return sink

    def _parsed(self, schema: StructType) -> SourceOptions:
        return parse_options(options_of(schema, given_options(self.options)))
