"""The identity of a batch: the producer that commits it, and the name of its transaction.

    writer id   the option `writerId`, else the query
    holder      the query: its id, which is kept in its checkpoint. The numbers of batches mean something to it alone
    run         one start of the query, as Spark numbers them: a newer one fences the one before
    sequence    the number of the batch

Tasks read these from Spark's local properties, so the driver has to send them nothing first: the first task begins the
transaction, the others join it by name and producer.

The name is made of writer id, holder and sequence, without the run. So a newer run finds the transaction if it is
committed; if an older run has left it open, the server begins another one of that name.
"""

import uuid
from dataclasses import dataclass, replace
from typing import Final

import pyspark
from pyspark import TaskContext

from millrace.model.limits import TRANSACTION_NAME_SIZE_BYTES_MAX
from millrace.model.producer import Producer
from millrace.model.sequence_row import SEQUENCE_MAX
from millrace.spark_source.errors import IdentityError

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
DESCRIPTION_PROPERTY: Final = "spark.job.description"
CHECKPOINTS_PROPERTY: Final = "spark.sql.streaming.checkpointLocation"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""A streaming query runs its jobs in a group that has the id of the run for its name."""

BATCH_HOLDER: Final = "batch"
"""Of batch writes that no query makes."""
_PREFIX: Final = "spark"
_HOLDER_SIZE_BYTES: Final = 36
WRITER_ID_SIZE_BYTES_MAX: Final = (
    TRANSACTION_NAME_SIZE_BYTES_MAX - len(f"{_PREFIX}///{SEQUENCE_MAX}") - _HOLDER_SIZE_BYTES
)
"""So that the name of the transaction is not too long."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which transaction a batch is; the same to all its tasks.

    Attributes:
        name: of the transaction.
        producer: as whom it is committed; None where its name alone keeps it from being committed twice.
        checkpoint: of the query, as its session says; None if it does not.
    """

    name: str
    producer: Producer | None
    checkpoint: str | None = None


def transaction_name(writer_id: str, holder: str, sequence: int) -> str:
    """Return the name of the transaction of a batch."""
    whose = holder if writer_id == holder else f"{writer_id}/{holder}"
    return f"{_PREFIX}/{whose}/{sequence}"


def identity_of_producer(producer: Producer) -> BatchIdentity:
    """Return the identity of a batch that is committed as a producer."""
    return BatchIdentity(transaction_name(producer.writer_id, producer.holder, producer.sequence), producer)


def identity_of_job(job_id: str) -> BatchIdentity:
    """Return the identity of a batch write that is repeated by nobody: its job has an id of its own."""
    return BatchIdentity(f"{_PREFIX}/{job_id}", None)


def new_job_id() -> str:
    """Return an id that no other job has."""
    return str(uuid.uuid4())


def identity_of_stream_task(writer_id: str | None) -> BatchIdentity:
    """Return the identity of the batch that the task of this process belongs to.

    Raises:
        IdentityError: Spark does not say it.
    """
    query_id, run, batch = (_told(name) for name in (QUERY_PROPERTY, RUN_PROPERTY, BATCH_PROPERTY))
    if not batch.isdigit():
        raise IdentityError(_untold(BATCH_PROPERTY, batch))
    identity = identity_of_producer(Producer(writer_id or query_id, query_id, run, int(batch)))
    checkpoint = checkpoint_of_session(_local_property(CHECKPOINTS_PROPERTY), _local_property(DESCRIPTION_PROPERTY))
    return replace(identity, checkpoint=checkpoint)


def identity_of_batch_task(writer_id: str, batch_id: int, *, job_id: str) -> BatchIdentity:
    """Return the identity of a batch write with a writer id; of one that a query makes, the query is the holder."""
    query_id = _local_property(QUERY_PROPERTY)
    if query_id:
        return identity_of_producer(Producer(writer_id, query_id, _told(RUN_PROPERTY), batch_id))
    return identity_of_producer(Producer(writer_id, BATCH_HOLDER, job_id, batch_id))


def checkpoint_of_session(location: str | None, description: str | None) -> str | None:
    """Return the checkpoint of a query that takes it from the session; None if it is unknown.

    Args:
        location: the setting `spark.sql.streaming.checkpointLocation`.
        description: of the jobs of the query: its first line is the name of the query. A query without a name has a
            new checkpoint at each start.
    """
    name = (description or "").split("\n", 1)[0]
    return f"{location.rstrip('/')}/{name}" if location and name else None


def partition_of_task() -> int:
    """Return which partition the task of this process writes."""
    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def _told(name: str) -> str:
    """Return what Spark says; raise IdentityError if that is nothing."""
    value = _local_property(name)
    if not value:
        raise IdentityError(_untold(name, value))
    return value


def _local_property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _untold(name: str, value: str | None) -> str:
    return (
        f"PySpark {pyspark.__version__} tells its tasks {value!r} as {name}: without the ids of the query and of its"
        " run, and the number of the batch, a batch cannot be committed exactly once. Use foreachBatch, and a batch"
        " write with the options writerId and batchId in it"
    )
