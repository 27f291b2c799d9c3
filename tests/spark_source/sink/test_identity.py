import pyspark
import pytest

from millrace.model.limits import TRANSACTION_NAME_SIZE_BYTES_MAX
from millrace.model.names import checked_transaction_name
from millrace.model.producer import Producer
from millrace.model.sequence_row import SEQUENCE_MAX
from millrace.spark_source import IdentityError
from millrace.spark_source.sink.identity import (
    WRITER_ID_SIZE_BYTES_MAX,
    identity_of_batch_task,
    identity_of_job,
    identity_of_producer,
    identity_of_stream_task,
    new_job_id,
    partition_of_task,
    transaction_name,
)

QUERY = "0d6f9a2e-54c1-4a0f-9d0e-1f1a3a0c5b11"


def test_a_name_tells_identity_and_batch() -> None:
    assert transaction_name(QUERY, QUERY, 7) == f"spark/{QUERY}/7"
    assert transaction_name("cook", QUERY, 7) == f"spark/cook/{QUERY}/7"
    producer = Producer("cook", QUERY, "run", 7)
    assert identity_of_producer(producer).name == f"spark/cook/{QUERY}/7"
    assert identity_of_producer(producer).producer is producer


def test_the_longest_name_is_one() -> None:
    name = transaction_name("w" * WRITER_ID_SIZE_BYTES_MAX, QUERY, SEQUENCE_MAX)

    assert len(checked_transaction_name(name)) == TRANSACTION_NAME_SIZE_BYTES_MAX


def test_a_job_has_a_name_of_its_own() -> None:
    assert identity_of_job(new_job_id()) != identity_of_job(new_job_id())
    assert identity_of_job("job").producer is None


def test_a_batch_write_outside_a_query_is_held_by_no_query() -> None:
    assert identity_of_batch_task("cook", 3, job_id="job-1").producer == Producer("cook", "batch", "job-1", 3)


def test_where_spark_tells_no_query_its_version_is_named() -> None:
    """Behaviour 67 rests on names that are internal to Spark; the error says which one is missing, and what to do."""
    with pytest.raises(IdentityError, match=rf"PySpark {pyspark.__version__} tells its tasks None as sql.streaming"):
        identity_of_stream_task("cook")


def test_outside_a_task_there_is_no_partition() -> None:
    assert partition_of_task() == -1
