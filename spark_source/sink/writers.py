"""The writer classes that Spark calls: they check options first, write in tasks, and commit on the driver.

Spark pickles a writer and sends it to the tasks. The driver commits a batch write with the same writer; for a query it
makes a new writer, from the same options, in another process.

PySpark has writers that take Arrow batches, for batch writes from 4.0 and for queries from 4.1 on. On 4.0 those of a
query take rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.spark_source.errors import SourceError
from millrace.spark_source.link import borrowed

from .columns import maker_of
from .driver import abort_batch, commit_batch
from .identity import (
    BatchIdentity,
    identity_of_batch_task,
    identity_of_job,
    identity_of_stream_task,
    new_job_id,
    partition_of_task,
)
from .message import TaskMessage
from .options import SinkOptions
from .rows import batches_of_rows
from .targets import check_streams
from .task import SinkTask

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # PySpark 4.0: `stream_writer` returns the writer of rows then

        class DataSourceStreamArrowWriter:
            """Replaces a class that this PySpark does not have."""


Messages = Sequence[WriterCommitMessage | None]
"""What Spark hands back: None for a task that has failed."""


@dataclass(frozen=True, slots=True)
class Sink:
    """What all writers do; pickled with them."""

    options: SinkOptions
    schema: StructType

    def check(self) -> None:
        """Check the columns, and that the server takes events of these streams.

        Raises:
            SchemaError: a column is none of events.
            OptionError: nothing answers at the address, or a stream is not there.
        """
        maker_of(self.schema, self.options)
        with borrowed(self.options) as link:
            link.check()
            link.turn(check_streams(link.client(), self.options))

    def write(self, batches: Iterable[pa.RecordBatch], identity: BatchIdentity) -> TaskMessage:
        """Write the rows of a task. Raises like `SinkTask.run`."""
        make = maker_of(self.schema, self.options)
        with borrowed(self.options) as link:
            return SinkTask(self.options, identity, make, link=link, partition=partition_of_task()).run(batches)

    def commit(self, messages: Messages) -> None:
        """Commit what tasks have written. Raises like `commit_batch`."""
        ours = _ours(messages)
        if len(ours) < len(messages):
            raise SourceError(f"{len(messages) - len(ours)} tasks of the batch have no message")
        if ours:
            with borrowed(self.options) as link:
                link.turn(commit_batch(link.client(), self.options, ours))

    def abort(self, messages: Messages) -> None:
        """Delete what tasks have written, unless it is committed."""
        ours = _ours(messages)
        if ours:
            with borrowed(self.options) as link:
                link.turn(abort_batch(link.client(), self.options, ours))


class MillraceBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame in one transaction."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        # It travels with the writer, which is made once for each job.
        self._job_id = new_job_id()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of a task; in a task."""
        return self.sink.write(iterator, self._identity())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what the tasks have written; on the driver."""
        self.sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have written; on the driver."""
        self.sink.abort(messages)

    def _identity(self) -> BatchIdentity:
        writer_id, batch_id = self.sink.options.writer_id, self.sink.options.batch_id
        if writer_id is None or batch_id is None:
            return identity_of_job(self._job_id)
        return identity_of_batch_task(writer_id, batch_id, job_id=self._job_id)


class _QueryWriter:
    """What the writers of a query do on the driver, whatever their tasks take."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit what the tasks of a batch have written; on the driver."""
        self.sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Delete what the tasks of a batch have written; on the driver."""
        self.sink.abort(messages)


class MillraceRowStreamWriter(_QueryWriter, DataSourceStreamWriter):
    """Writes each micro-batch in one transaction, from rows."""

    def write(self, iterator: Iterator[Row]) -> TaskMessage:
        """Write the rows of a task; in a task."""
        batches = batches_of_rows(iterator, self.sink.schema)
        return self.sink.write(batches, identity_of_stream_task(self.sink.options.writer_id))


class MillraceStreamWriter(_QueryWriter, DataSourceStreamArrowWriter):
    """Writes each micro-batch in one transaction, from Arrow batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of a task; in a task."""
        return self.sink.write(iterator, identity_of_stream_task(self.sink.options.writer_id))


HAS_ARROW_STREAMS: Final = issubclass(MillraceStreamWriter, DataSourceStreamWriter)


def stream_writer(sink: Sink) -> DataSourceStreamWriter:
    """Return the writer of a query that this PySpark can use."""
    return MillraceStreamWriter(sink) if HAS_ARROW_STREAMS else MillraceRowStreamWriter(sink)


def _ours(messages: Messages) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]
