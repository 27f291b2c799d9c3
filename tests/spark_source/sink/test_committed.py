import pytest

import millrace
from millrace.spark_source import SourceError, committed
from tests.spark_source.sink.conftest import Cluster, rows

pytestmark = pytest.mark.slow


def test_a_batch_is_committed_once_it_is(cluster: Cluster) -> None:
    """Behaviour 67: the answer is a cut that all of it is before."""
    writer, query = f"cook-{cluster.stream}", f"query-{cluster.stream}"
    assert committed(cluster.address, writer, 0) is None
    message = cluster.write(cluster.identity(writer=writer, holder=query), b"1", b"2")
    assert committed(cluster.address, writer, 0) is None

    cluster.commit(message)

    cut = committed(cluster.address, writer, 0)
    assert cut == cluster.client.stream_cut(cluster.stream)
    assert committed(cluster.address, writer, 1) is None
    with cluster.client.reader(cluster.stream, end=cut) as reader:
        assert len(list(reader)) == 2


def test_a_batch_without_rows_is_committed_to_no_stream(cluster: Cluster) -> None:
    """Behaviour 70: so the stream is named by who asks."""
    identity = cluster.identity(2)
    cluster.commit(cluster.run(identity, [rows()]))
    writer = f"query-{cluster.stream}"

    assert committed(cluster.address, writer, 2, stream=cluster.stream) == cluster.client.stream_cut(cluster.stream)
    with pytest.raises(SourceError, match=r"batch 2 of query-.* is committed.*name the stream"):
        committed(cluster.address, writer, 2)


def test_a_stream_that_is_not_there_has_no_cut(cluster: Cluster) -> None:
    cluster.commit(cluster.write(cluster.identity(), b"1"))

    with pytest.raises(millrace.StreamNotFoundError):
        committed(cluster.address, f"query-{cluster.stream}", 0, stream="tests/none")


def test_after_a_reset_nothing_is_committed(cluster: Cluster) -> None:
    writer = f"query-{cluster.stream}"
    cluster.commit(cluster.write(cluster.identity(), b"1"))
    cluster.client.reset_producer(writer)

    assert committed(cluster.address, writer, 0) is None
