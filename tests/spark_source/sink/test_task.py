"""Tasks and drivers of a sink against a real server: what Spark may do to them is done here call by call."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

import millrace
from millrace.model.limits import EVENT_SIZE_BYTES_MAX, ROUTING_KEY_SIZE_BYTES_MAX
from millrace.spark_source import BatchMismatchError, ReplacedError, RowError, SourceError, TransactionLostError
from millrace.spark_source.link import SILENT_S_MAX, Link
from millrace.spark_source.sink.columns import maker_of
from millrace.spark_source.sink.identity import identity_of_job
from millrace.spark_source.sink.message import TaskMessage
from millrace.spark_source.sink.task import SinkTask
from tests.spark_source.sink.conftest import SCHEMA, Cluster, batch_of, rows
from tests.support.clock import ManualClock
from tests.support.waiting import until

pytestmark = pytest.mark.slow


def test_nothing_of_a_batch_is_readable_before_its_commit_and_all_of_it_after(cluster: Cluster) -> None:
    identity = cluster.identity()
    messages = [cluster.write(identity, b"1", b"2", key="a"), cluster.write(identity, b"3", key="b")]
    assert cluster.stored() == []

    cluster.commit(*messages)

    assert cluster.stored() == [b"1", b"2", b"3"]
    assert cluster.open_names() == []


def test_the_events_of_a_key_are_in_the_order_of_the_partitions(cluster: Cluster) -> None:
    """Behaviour 67: whichever task is done first."""
    identity = cluster.identity()
    second = cluster.write(identity, b"2", key="a")
    first = cluster.write(identity, b"1", key="a")

    cluster.commit(first, second)

    with cluster.client.reader(cluster.stream, end=millrace.TAIL) as reader:
        assert [event.value for event in reader] == [b"1", b"2"]


def test_only_the_attempts_whose_messages_the_driver_has_are_committed(cluster: Cluster) -> None:
    """Behaviour 68: attempts that failed in the middle, or were speculative, leave nothing."""
    identity = cluster.identity()

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(b"failed")
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError, match="the task fails"):
        cluster.run(identity, failing())
    cluster.write(identity, b"speculative")
    winner = cluster.write(identity, b"winner")
    assert len(cluster.open_names()) == 1

    cluster.commit(winner)

    assert cluster.stored() == [b"winner"]
    assert cluster.open_names() == []


def test_a_task_goes_on_with_the_client_that_it_began_with(cluster: Cluster) -> None:
    """However long Spark takes for the next rows: its branch belongs to that client."""
    identity, options, clock = cluster.identity(), cluster.options(), ManualClock()

    def slow() -> Iterator[pa.RecordBatch]:
        for value in (b"1", b"2", b"3"):
            yield rows(value)
            clock.move(10 * SILENT_S_MAX)

    with closing(Link(options, clock=clock)) as link:
        first = link.client()
        message = SinkTask(options, identity, maker_of(SCHEMA, options), link=link, partition=0).run(slow())
        clock.move(10 * SILENT_S_MAX)
        assert link.client() is not first

    cluster.commit(message)
    assert cluster.stored() == [b"1", b"2", b"3"]


def test_a_batch_that_comes_again_is_committed_once(cluster: Cluster) -> None:
    """Behaviours 55 and 67: by the run that did it, and by a later one; begun, and not begun again."""
    first = cluster.write(cluster.identity(3), b"1")
    cluster.commit(first)
    cluster.commit(first)
    again = cluster.write(cluster.identity(3, run="run-2"), b"1")
    assert again.was_committed
    assert again.token is None

    cluster.commit(again)

    assert cluster.stored() == [b"1"]


def test_a_copied_checkpoint_that_writes_elsewhere_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """Behaviour 99: with other streams, or with other offsets of the same number."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (offsets / "3").write_text('v1\n{"batchTimestampMs":1}\n{"n":7}')
    options: dict[str, Any] = {"checkpointLocation": tmp_path}
    cluster.commit(cluster.write(cluster.identity(3), b"1", **options), **options)
    fork = f"{cluster.stream}-fork"
    assert cluster.client.create_stream(fork)
    again = cluster.write(cluster.identity(3, run="run-2"), b"1", stream=fork, **options)
    assert again.was_committed

    with pytest.raises(BatchMismatchError, match=f"was committed to {cluster.stream}, and now writes to {fork}"):
        cluster.commit(again, stream=fork, **options)
    (offsets / "3").write_text('v1\n{"batchTimestampMs":2}\n{"n":7}')
    cluster.commit(again, **options)
    (offsets / "3").write_text('v1\n{"batchTimestampMs":2}\n{"n":8}')
    with pytest.raises(BatchMismatchError, match="with other input"):
        cluster.commit(again, **options)

    assert (cluster.stored(), cluster.stored(fork)) == ([b"1"], [])


def test_a_batch_is_known_to_be_committed_when_its_transaction_is_forgotten(cluster: Cluster) -> None:
    """Behaviours 67 and 99: however old it is; a sequence below the last one has no transaction of its name at all."""
    cluster.commit(cluster.write(cluster.identity(5), b"5"))
    old = cluster.write(cluster.identity(2, run="run-2"), b"2")

    assert old.was_committed
    with pytest.raises(BatchMismatchError, match="all batches up to 5"):
        cluster.commit(old)
    assert cluster.stored() == [b"5"]


def test_a_task_that_is_told_in_the_middle_that_its_batch_is_committed_ends_well(cluster: Cluster) -> None:
    """Behaviour 68: a zombie, whose driver has the message of another attempt."""
    identity = cluster.identity()

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows(b"zombie", key="a")
        cluster.commit(cluster.write(identity, b"winner"))
        for _ in range(3):
            yield rows(b"late", key="b")

    message = cluster.run(identity, overtaken())

    assert message == TaskMessage(identity=identity, was_committed=True)
    assert cluster.stored() == [b"winner"]


def test_a_task_that_is_told_at_its_end_that_its_batch_is_committed_ends_well(cluster: Cluster) -> None:
    """Behaviour 68."""
    identity = cluster.identity()

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows(b"zombie")
        cluster.commit(cluster.write(identity, b"winner"))

    message = cluster.run(identity, overtaken())

    # What it had written was stored before the commit dropped it, or not: both are fine, and neither is read.
    assert message.was_committed or message.token is not None
    assert message.refusal is None
    cluster.commit(message)
    assert cluster.stored() == [b"winner"]


def test_a_task_without_rows_asks_nothing_and_a_batch_without_rows_is_committed(cluster: Cluster) -> None:
    """Behaviour 70."""
    identity = cluster.identity(4)
    messages = [cluster.run(identity, []), cluster.run(identity, [rows()])]
    assert messages == [TaskMessage(identity=identity)] * 2
    assert cluster.open_names() == []

    cluster.commit(*messages)

    assert identity.producer is not None
    assert cluster.client.producer_info(identity.producer.writer_id).last_sequence == 4
    assert cluster.write(cluster.identity(4, run="run-2"), b"1").was_committed


def test_ids_may_have_gaps(cluster: Cluster) -> None:
    """Behaviour 70: a batch without tasks commits nothing, and the next one is committed all the same."""
    for batch in (0, 7):
        cluster.commit(cluster.write(cluster.identity(batch), b"%d" % batch))

    assert cluster.stored() == [b"0", b"7"]


def test_an_older_run_is_fenced_wherever_it_is(cluster: Cluster) -> None:
    """Behaviour 69: at its commit, and at its next batch; nothing of it is left."""
    old = cluster.write(cluster.identity(0), b"old")
    new = cluster.write(cluster.identity(0, run="run-2"), b"new")

    with pytest.raises(ReplacedError, match=r"run run-1 of query-.* was replaced by run run-2"):
        cluster.commit(old)
    later = cluster.write(cluster.identity(1), b"zombie")
    assert later.token is None
    with pytest.raises(ReplacedError, match=r"run run-1 of query-.* was replaced by run run-2"):
        cluster.commit(later)
    cluster.commit(new)

    assert cluster.stored() == [b"new"]
    assert cluster.open_names() == []


def test_a_task_of_an_older_run_is_told_in_the_middle(cluster: Cluster) -> None:
    """Behaviour 69: it joins nothing of the newer run; its message, and no failure that is tried again, says why."""
    old, new = cluster.identity(0), cluster.identity(0, run="run-2")
    cluster.write(old, b"old")
    token = cluster.write(new, b"new").token
    late = cluster.write(old, b"late")

    assert late.token is None
    assert late.refusal is not None
    assert "was replaced by run run-2" in late.refusal
    cluster.commit(TaskMessage(identity=new, token=token))
    assert cluster.stored() == [b"new"]


def test_another_query_under_a_writer_id_is_refused_until_a_reset(cluster: Cluster) -> None:
    """Behaviour 69: the error names both, whatever the number of the batch."""
    writer = f"cook-{cluster.stream}"
    first, second = (
        cluster.identity(batch, writer=writer, holder=f"query-{batch}", run=f"run-{batch}") for batch in (8, 0)
    )
    cluster.commit(cluster.write(first, b"first"))
    refused = cluster.write(second, b"second")

    with pytest.raises(ReplacedError, match=rf"(?s)held by query-8, not by query-0.*millrace txn reset {writer}"):
        cluster.commit(refused)
    cluster.client.reset_producer(writer)
    cluster.commit(cluster.write(second, b"second"))

    assert cluster.stored() == [b"first", b"second"]


def test_a_batch_of_which_a_task_was_refused_is_not_committed_after_a_reset(cluster: Cluster) -> None:
    """Behaviour 67: the server would take it now, and what that task was to write is missing."""
    writer = f"cook-{cluster.stream}"
    first, second = (cluster.identity(0, writer=writer, holder=f"query-{each}", run=f"run-{each}") for each in "ab")
    cluster.commit(cluster.write(first, b"first"))
    refused = cluster.write(second, b"refused")
    cluster.client.reset_producer(writer)
    taken = cluster.write(second, b"taken")

    with pytest.raises(ReplacedError, match="held by query-a, not by query-b"):
        cluster.commit(taken, refused)

    assert cluster.stored() == [b"first"]


def test_an_abort_after_a_commit_changes_nothing(cluster: Cluster) -> None:
    """Behaviour 55: as Spark does when the answer to a commit was lost."""
    message = cluster.write(cluster.identity(), b"1")
    cluster.commit(message)
    cluster.abort(message)

    assert cluster.stored() == [b"1"]


def test_an_abort_ends_what_tasks_have_written_and_the_batch_can_be_run_again(cluster: Cluster) -> None:
    """Behaviour 68."""
    cluster.abort(cluster.write(cluster.identity(), b"1"))
    assert cluster.open_names() == []

    cluster.commit(cluster.write(cluster.identity(run="run-2"), b"2"))

    assert cluster.stored() == [b"2"]


def test_a_late_abort_of_an_older_run_ends_nothing_of_a_newer_one(cluster: Cluster) -> None:
    """Behaviour 69."""
    old = cluster.write(cluster.identity(), b"old")
    new = cluster.write(cluster.identity(run="run-2"), b"new")
    cluster.abort(old)

    cluster.commit(new)

    assert cluster.stored() == [b"new"]


def test_an_abort_without_tokens_is_left_to_the_lease(cluster: Cluster) -> None:
    message = cluster.write(cluster.identity(), b"1")
    cluster.abort(TaskMessage(identity=message.identity))

    assert len(cluster.open_names()) == 1


def test_what_an_expired_lease_has_ended_is_not_committed(cluster: Cluster) -> None:
    """Behaviour 68: the cost of a batch that nobody commits ends with its lease, which is an option."""
    message = cluster.write(cluster.identity(), b"1", transactionLease="1s")
    asyncio.run(until(lambda: not cluster.open_names()))

    with pytest.raises(TransactionLostError, match="the option transactionLease has to be longer"):
        cluster.commit(message, transactionLease="1s")

    assert cluster.open_names() == []
    assert cluster.stored() == []


def test_a_task_whose_transaction_was_aborted_fails_and_says_what_it_lost(cluster: Cluster) -> None:
    """Behaviour 68: a zombie whose driver has given the batch up. Tried again, it would begin another transaction."""
    identity = cluster.identity()
    message = cluster.write(identity, b"1")

    def orphaned() -> Iterator[pa.RecordBatch]:
        yield rows(b"zombie", key="a")
        cluster.abort(message)
        for _ in range(3):
            yield rows(b"late", key="b")

    with pytest.raises(TransactionLostError, match=f"Nothing of {identity.name} is in the streams"):
        cluster.run(identity, orphaned())

    assert cluster.open_names() == []


def test_tokens_of_two_transactions_are_never_one_commit(cluster: Cluster) -> None:
    """Behaviour 67: the lease of the first has run out between two tasks."""
    first = cluster.write(cluster.identity(), b"1", transactionLease="1s")
    asyncio.run(until(lambda: not cluster.open_names()))
    second = cluster.write(cluster.identity(), b"2")

    with pytest.raises(TransactionLostError, match="can be run again"):
        cluster.commit(first, second)

    assert cluster.stored() == []


def test_messages_of_two_batches_are_refused(cluster: Cluster) -> None:
    with pytest.raises(SourceError, match="tasks of one batch"):
        cluster.commit(cluster.write(cluster.identity(0), b"0"), cluster.write(cluster.identity(1), b"1"))


def test_a_job_without_a_writer_id_is_a_transaction_of_its_own(cluster: Cluster) -> None:
    identity = identity_of_job(f"job-{cluster.stream}")
    message = cluster.write(identity, b"1")
    cluster.commit(message)
    cluster.commit(message)

    assert cluster.write(identity, b"late").was_committed
    assert cluster.stored() == [b"1"]


def test_rows_go_to_the_stream_that_they_name(cluster: Cluster) -> None:
    """Both streams get their events by one commit."""
    other = f"{cluster.stream}-other"
    cluster.client.create_stream(other)
    schema = StructType([StructField("value", StringType()), StructField("stream", StringType())])
    batch = batch_of({"value": (pa.string(), ["1", "2", "3"]), "stream": (pa.string(), [other, cluster.stream, other])})
    streams = f"{cluster.stream}, {other}"
    message = cluster.run(cluster.identity(), [batch], schema=schema, stream=streams)
    assert cluster.stored(other) == []

    cluster.commit(message, stream=streams)

    assert cluster.stored() == [b"2"]
    assert cluster.stored(other) == [b"1", b"3"]


def test_headers_and_timestamps_are_kept(cluster: Cluster) -> None:
    schema = StructType(
        [StructField("value", BinaryType()), StructField("headers", MapType(StringType(), BinaryType()))]
    )
    batch = batch_of(
        {"value": (pa.binary(), [b"1", b"2"]), "headers": (pa.map_(pa.string(), pa.binary()), [[("a", b"x")], None])}
    )
    cluster.commit(cluster.run(cluster.identity(), [batch], schema=schema))

    with cluster.client.reader(cluster.stream, end=millrace.TAIL) as reader:
        assert {event.value: event.headers for event in reader} == {b"1": {"a": b"x"}, b"2": {}}


def test_a_large_batch_is_written_in_parts(cluster: Cluster) -> None:
    """More than the buffer of a writer would take at once."""
    value = bytes(4 << 20)
    batch = rows(*[value] * 80)
    assert batch.nbytes > 256 << 20
    cluster.commit(cluster.run(cluster.identity(), [batch]))

    with cluster.client.reader(cluster.stream, end=millrace.TAIL) as reader:
        assert sum(len(event.value) for event in reader) == 80 * len(value)


MAP = pa.map_(pa.string(), pa.binary())


@pytest.mark.parametrize(
    ("columns", "column", "reason"),
    [
        ({"value": (pa.binary(), [b"1", None])}, "value", "has 1 nulls: an event is bytes, which may be empty"),
        (
            {"value": (pa.binary(), [b"1", bytes(EVENT_SIZE_BYTES_MAX + 1)])},
            "value",
            f"an event holds at most {EVENT_SIZE_BYTES_MAX} bytes, not {EVENT_SIZE_BYTES_MAX + 1}",
        ),
        (
            {"value": (pa.binary(), [b"1", b"2"]), "key": (pa.string(), ["a", "k" * (ROUTING_KEY_SIZE_BYTES_MAX + 1)])},
            "key",
            f"a routing key holds at most {ROUTING_KEY_SIZE_BYTES_MAX} bytes",
        ),
        (
            {"value": (pa.binary(), [b"1", b"2"]), "headers": (MAP, [[], [("a", None)]])},
            "headers",
            "has 1 null values: a header is bytes",
        ),
        (
            {"value": (pa.binary(), [b"1", b"2"]), "stream": (pa.string(), [None, "tests/elsewhere"])},
            "stream",
            "is tests/elsewhere, and the option stream names",
        ),
    ],
)
def test_a_row_that_can_be_no_event_is_named(
    cluster: Cluster, columns: dict[str, Any], column: str, reason: str
) -> None:
    """Behaviour 60: with its column, its place and what would be right. Nothing of the batch can be committed."""
    kinds = {
        "value": BinaryType(),
        "key": StringType(),
        "headers": MapType(StringType(), BinaryType()),
        "stream": StringType(),
    }
    schema = StructType([StructField(name, kinds[name]) for name in columns])
    good = batch_of({name: (kind, values[:1]) for name, (kind, values) in columns.items()})

    with pytest.raises(RowError) as caught:
        cluster.run(cluster.identity(), [good, good, batch_of(columns)], schema=schema, partition=3)

    error = caught.value
    assert (error.column, error.row, error.partition) == (column, 3, 3)
    assert error.reason.startswith(reason)
    assert f'column "{column}", row 3 of partition 3: {reason}' in str(error)
    assert cluster.stored() == []


def test_a_row_names_one_of_several_streams(cluster: Cluster) -> None:
    schema = StructType([StructField("value", StringType()), StructField("stream", StringType())])
    batch = batch_of({"value": (pa.string(), ["1"]), "stream": (pa.string(), [None])})
    with pytest.raises(RowError, match='column "stream", row 0 of partition 0: is null'):
        cluster.run(cluster.identity(), [batch], schema=schema, stream=f"{cluster.stream},tests/other")
