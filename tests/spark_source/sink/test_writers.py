"""What the data source checks on the driver, and what of it crosses to other processes; no JVM is needed."""

import pickle
import socket

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from millrace.spark_source import IdentityError, MillraceDataSource, OptionError, SchemaError, SourceError
from millrace.spark_source.sink.message import TaskMessage
from millrace.spark_source.sink.rows import batches_of_rows
from millrace.spark_source.sink.writers import (
    MillraceBatchWriter,
    MillraceRowStreamWriter,
    MillraceStreamWriter,
    Sink,
    stream_writer,
)
from tests.spark_source.conftest import ARROW_IS_WRITTEN
from tests.spark_source.sink.conftest import SCHEMA, Cluster, batch_of, rows

pytestmark = pytest.mark.slow


def source(cluster: Cluster, **options: object) -> MillraceDataSource:
    given = {"address": cluster.address, "stream": cluster.stream, **options}
    return MillraceDataSource({name: str(value) for name, value in given.items()})


def test_a_batch_is_one_transaction(cluster: Cluster) -> None:
    """Spark pickles the writer, to tasks and to the process that commits."""
    writer = source(cluster).writer(SCHEMA, overwrite=False)
    messages: list[WriterCommitMessage | None] = []
    for value in (b"1", b"2"):
        there: MillraceBatchWriter = pickle.loads(pickle.dumps(writer))
        messages.append(pickle.loads(pickle.dumps(there.write(iter([rows(value)])))))
    assert cluster.stored() == []

    pickle.loads(pickle.dumps(writer)).commit(messages)

    assert cluster.stored() == [b"1", b"2"]


def test_two_batches_are_two_transactions(cluster: Cluster) -> None:
    for value in (b"1", b"2"):
        writer = source(cluster).writer(SCHEMA, overwrite=False)
        writer.commit([writer.write(iter([rows(value)]))])

    assert cluster.stored() == [b"1", b"2"]


def test_a_batch_with_a_number_is_committed_once(cluster: Cluster) -> None:
    for value in (b"1", b"again"):
        writer = source(cluster, writerId=f"cook-{cluster.stream}", batchId=4).writer(SCHEMA, overwrite=False)
        writer.commit([writer.write(iter([rows(value)]))])

    assert cluster.stored() == [b"1"]


def test_a_batch_that_is_aborted_leaves_nothing(cluster: Cluster) -> None:
    before = list(cluster.client.list_transactions())
    writer = source(cluster).writer(SCHEMA, overwrite=False)
    writer.abort([writer.write(iter([rows(b"1")])), None])
    writer.abort([None])

    assert cluster.stored() == []
    assert [each.name for each in cluster.client.list_transactions()] == [each.name for each in before]


def test_a_batch_without_tasks_leaves_nothing(cluster: Cluster) -> None:
    """Behaviour 70."""
    source(cluster).writer(SCHEMA, overwrite=False).commit([])
    stream_writer(Sink(cluster.options(), SCHEMA)).commit([], 0)

    assert cluster.stored() == []


def test_a_commit_without_the_message_of_a_task_is_refused(cluster: Cluster) -> None:
    writer = source(cluster).writer(SCHEMA, overwrite=False)
    with pytest.raises(SourceError, match="1 tasks of the batch have no message"):
        writer.commit([writer.write(iter([rows(b"1")])), None])


def test_the_writer_of_a_query_takes_arrow_batches_where_pyspark_has_such(cluster: Cluster) -> None:
    expected = MillraceStreamWriter if ARROW_IS_WRITTEN else MillraceRowStreamWriter
    assert type(source(cluster).streamWriter(SCHEMA, overwrite=False)) is expected


def test_outside_a_query_its_writer_writes_nothing(cluster: Cluster) -> None:
    for writer, row in (
        (MillraceStreamWriter(Sink(cluster.options(), SCHEMA)), rows(b"1")),
        (MillraceRowStreamWriter(Sink(cluster.options(), SCHEMA)), Row("value", "key")(b"1", None)),
    ):
        with pytest.raises(IdentityError):
            writer.write(iter([row]))


def test_rows_are_written_as_well(cluster: Cluster) -> None:
    """As PySpark 4.0 hands them out."""
    sink = Sink(cluster.options(), SCHEMA)
    made = Row("value", "key")
    message = sink.write(batches_of_rows([made(b"1", None), made(b"2", "k")], SCHEMA), cluster.identity())
    MillraceRowStreamWriter(sink).commit([message], 0)

    assert cluster.stored() == [b"1", b"2"]


def test_an_overwrite_is_refused(cluster: Cluster) -> None:
    """What is in a stream stays."""
    with pytest.raises(OptionError, match='option "mode": overwrite: what is in a stream stays'):
        source(cluster).writer(SCHEMA, overwrite=True)
    with pytest.raises(OptionError, match=r'option "outputMode": complete: .* use append, or foreachBatch'):
        source(cluster).streamWriter(SCHEMA, overwrite=True)


def test_a_stream_that_is_not_there_is_named_or_made(cluster: Cluster) -> None:
    """Behaviour 60."""
    missing = f"{cluster.stream}-missing"
    with pytest.raises(OptionError, match=f'option "stream": there is no stream {missing}; the option createSegments'):
        source(cluster, stream=missing).writer(SCHEMA, overwrite=False)

    source(cluster, stream=missing, createSegments=3).streamWriter(SCHEMA, overwrite=False)
    assert len(cluster.client.stream_info(missing).open_segments) == 3
    source(cluster, stream=missing, createSegments=9).streamWriter(SCHEMA, overwrite=False)
    assert len(cluster.client.stream_info(missing).open_segments) == 3


def test_a_stream_that_takes_nothing_is_named(cluster: Cluster) -> None:
    """Behaviour 60."""
    with cluster.client.writer(cluster.stream, exclusive=True, writer_id=f"alone-{cluster.stream}"):
        with pytest.raises(OptionError, match=r'option "stream": .* from its exclusive writer alone'):
            source(cluster).writer(SCHEMA, overwrite=False)
    cluster.client.seal_stream(cluster.stream)
    with pytest.raises(OptionError, match=r'option "stream": .* is sealed'):
        source(cluster).writer(SCHEMA, overwrite=False)


def test_a_server_that_does_not_answer_is_named(cluster: Cluster) -> None:
    """Behaviour 60: at once, and before any task."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OptionError, match=f'option "address": .*{address}'):
            source(cluster, address=address).streamWriter(SCHEMA, overwrite=False)


def test_a_wrong_column_is_said_before_the_server_is_asked() -> None:
    """Behaviour 60: types are checked on the driver, and not by tasks."""
    schema = StructType([StructField("value", BinaryType()), StructField("price", LongType())])
    with pytest.raises(SchemaError, match='column "price"'):
        MillraceDataSource({"address": "127.0.0.1:1", "stream": "a/b"}).streamWriter(schema, overwrite=False)


def test_the_writer_that_commits_asks_the_server_for_nothing_else(cluster: Cluster) -> None:
    """Behaviour 89: it is made when the tasks have run, and a server that is away is then waited for."""
    there: MillraceDataSource = pickle.loads(pickle.dumps(source(cluster, address="127.0.0.1:1")))

    assert isinstance(there.streamWriter(SCHEMA, overwrite=False), DataSourceStreamWriter)


def test_messages_can_be_pickled(cluster: Cluster) -> None:
    message = cluster.write(cluster.identity(), b"1")

    assert pickle.loads(pickle.dumps(message)) == message
    assert isinstance(message, TaskMessage)


def test_string_values_are_taken(cluster: Cluster) -> None:
    writer = source(cluster).writer(StructType([StructField("value", StringType())]), overwrite=False)
    batch = batch_of({"value": (pa.string(), ["tea"])})
    writer.commit([writer.write(iter([batch]))])

    assert cluster.stored() == [b"tea"]
