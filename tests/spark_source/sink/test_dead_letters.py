"""Rows that can be no event, in the transaction of the batch that they were in."""

import logging
import math
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

import millrace
from millrace.client.testing import SETTINGS_SMALL
from millrace.model.event import Event
from millrace.model.limits import EVENT_SIZE_BYTES_MAX
from millrace.spark_source import OptionError, RowError
from millrace.spark_source.link import borrowed, close_waiting_links
from millrace.spark_source.sink.targets import check_streams
from tests.spark_source.sink.conftest import Cluster, batch_of, rows

pytestmark = pytest.mark.slow

TYPED = StructType([StructField("price", DoubleType()), StructField("_stream", StringType())])


@pytest.fixture
def dead(cluster: Cluster) -> str:
    name = f"{cluster.stream}-dead"
    assert cluster.client.create_stream(name)
    return name


def letters(cluster: Cluster, dead: str) -> list[Event]:
    with cluster.client.reader(dead, end=millrace.TAIL) as reader:
        return list(reader)


def priced(*prices: float, stream: str | None = None) -> pa.RecordBatch:
    return batch_of({"price": (pa.float64(), prices), "_stream": (pa.string(), [stream] * len(prices))})


def test_refused_rows_are_events_of_another_stream_once(
    cluster: Cluster, dead: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviours 60 and 67: the batch is stored without them, and the commit tells how many there are."""
    identity = cluster.identity()
    batches = [rows(b"1", None, b"2", key="k"), rows(bytes(EVENT_SIZE_BYTES_MAX + 1), b"3", key="k")]
    lost = cluster.run(identity, batches, deadLetterStream=dead)
    message = cluster.run(identity, batches, deadLetterStream=dead)
    assert (lost.dead_letters, message.dead_letters) == (2, 2)
    assert letters(cluster, dead) == []

    with caplog.at_level(logging.WARNING, logger="millrace.spark_source"):
        cluster.commit(message, deadLetterStream=dead)
        cluster.commit(message, deadLetterStream=dead)

    assert cluster.stored() == [b"1", b"2", b"3"]
    found = letters(cluster, dead)
    assert [(event.key, len(event.value)) for event in found] == [("k", 0), ("k", 1 << 20)]
    assert found[0].headers == {
        "dead-letter-error": b'column "value" has 1 nulls: an event is bytes, which may be empty',
        "dead-letter-stream": cluster.stream.encode(),
        "dead-letter-batch": identity.name.encode(),
    }
    assert caplog.messages == [f"dead letters transaction={identity.name} stream={dead} count=2"]


def test_a_row_without_a_form_and_one_of_another_stream_are_dead_letters(cluster: Cluster, dead: str) -> None:
    batches = [priced(1.5, math.nan), priced(2.5, stream="tests/elsewhere"), priced(math.inf, 3.5)]
    message = cluster.run(cluster.identity(), batches, schema=TYPED, deadLetterStream=dead, valueFormat="json")
    cluster.commit(message, deadLetterStream=dead)

    assert cluster.stored() == [b'{"price":1.5}', b'{"price":3.5}']
    found = letters(cluster, dead)
    assert [event.headers["dead-letter-stream"] for event in found] == [
        cluster.stream.encode(),
        b"tests/elsewhere",
        cluster.stream.encode(),
    ]
    assert math.isnan(pa.ipc.open_stream(found[0].value).read_all().column("price")[0].as_py())
    assert found[1].value == b'{"price":2.5}'
    assert message.dead_letters == 3


def test_of_a_batch_that_is_aborted_no_dead_letter_is_left(cluster: Cluster, dead: str) -> None:
    """Behaviour 68."""
    message = cluster.run(cluster.identity(), [rows(None, b"1")], deadLetterStream=dead)
    cluster.abort(message, deadLetterStream=dead)

    assert letters(cluster, dead) == []
    assert cluster.stored() == []


@pytest.mark.parametrize(
    ("batch", "column", "row", "reason"),
    [
        (priced(1.0, 1.0, math.nan), "price", 6, "is not finite"),
        (priced(1.0, 1.0, stream="tests/elsewhere"), "stream", 4, "is tests/elsewhere"),
    ],
)
def test_without_such_a_stream_the_row_is_named(
    cluster: Cluster, batch: pa.RecordBatch, column: str, row: int, reason: str
) -> None:
    """Behaviour 60."""
    batches = [priced(1.0, 2.0), priced(3.0, 4.0), batch]
    with pytest.raises(RowError, match=reason) as caught:
        cluster.run(cluster.identity(), batches, schema=TYPED, valueFormat="json")

    assert (caught.value.column, caught.value.row) == (column, row)


def test_a_row_that_becomes_too_large_is_named_by_its_number(cluster: Cluster) -> None:
    """Of the rows before it, one event is made of many in this format."""
    schema = StructType([StructField("text", StringType()), StructField("_key", StringType())])
    batch = batch_of(
        {
            "text": (pa.string(), ["a", "b", "c" * EVENT_SIZE_BYTES_MAX]),
            "_key": (pa.string(), ["k", "k", "l"]),
        }
    )
    with pytest.raises(RowError) as caught:
        cluster.run(cluster.identity(), [batch], schema=schema, valueFormat="arrow")

    assert (caught.value.column, caught.value.row) == ("value", 2)


def test_the_stream_of_dead_letters_has_to_be_there(cluster: Cluster) -> None:
    """Behaviour 60: it is made where the others are."""
    name = f"{cluster.stream}-none"
    options = cluster.options(deadLetterStream=name)
    created = cluster.options(deadLetterStream=name, createSegments=3)
    with borrowed(options) as link:
        with pytest.raises(OptionError, match=f'option "deadLetterStream": there is no stream {name}'):
            link.turn(check_streams(link.client(), options))
        link.turn(check_streams(link.client(), created))

    assert len(cluster.client.stream_info(name).open_segments) == 3


def test_an_event_above_the_append_limit_of_its_server_is_a_dead_letter(tmp_path: Path) -> None:
    """Behaviour 60: of a server that takes less than the protocol allows."""
    small = {**SETTINGS_SMALL, "MILLRACE_WAL_RUN_SIZE_BYTES_MAX": str(1 << 20)}
    with millrace.testing.server(tmp_path / "data", settings=small) as server:
        with millrace.blocking.connect(server.address) as client:
            client.create_stream("tests/small")
            client.create_stream("tests/small-dead")
            cluster = Cluster(client, server, "tests/small")
            batches = [rows(b"1", bytes(3 << 20), b"2", key="k")]
            with pytest.raises(RowError, match=r'column "value", row 1 of partition 0: an append of this server'):
                cluster.run(cluster.identity(0), batches)
            message = cluster.run(cluster.identity(1), batches, deadLetterStream="tests/small-dead")
            cluster.commit(message, deadLetterStream="tests/small-dead")

            assert cluster.stored() == [b"1", b"2"]
            (found,) = letters(cluster, "tests/small-dead")
            assert found.headers["dead-letter-size"] == b"%d" % (3 << 20)
            assert 0 < len(found.value) <= 1 << 20
        close_waiting_links()
