import pyarrow as pa
import pytest

from millrace.client.errors import ColumnInvalidError
from millrace.model.limits import EVENT_SIZE_BYTES_MAX
from millrace.spark_source.sink.options import SinkOptions
from millrace.spark_source.sink.refusing import check_events, split_streams
from tests.spark_source.sink.conftest import batch_of

ONE = SinkOptions(address="127.0.0.1:9240", streams=("shop/a",))
TWO = SinkOptions(address="127.0.0.1:9240", streams=("shop/a", "shop/b"))


def named(*streams: str | None) -> pa.RecordBatch:
    values = [b"%d" % number for number in range(len(streams))]
    return batch_of({"value": (pa.binary(), values), "stream": (pa.string(), streams)})


def test_an_error_has_its_column_and_no_row() -> None:
    values = (pa.binary(), [b"1", bytes(EVENT_SIZE_BYTES_MAX + 1)])
    with pytest.raises(ColumnInvalidError) as caught:
        check_events(batch_of({"key": (pa.string(), ["a", "b"]), "value": values}))

    assert caught.value.column == "value"
    assert str(caught.value).endswith(f"not {EVENT_SIZE_BYTES_MAX + 1}")
    check_events(batch_of({"key": (pa.string(), ["a", None]), "value": (pa.binary(), [b"1", b""])}))


def test_events_of_streams_that_the_option_names_are_passed_on() -> None:
    for events, options in ((named("shop/a", None), ONE), (named("shop/b", "shop/a"), TWO)):
        passed, refused = split_streams(events, options)
        assert passed is events
        assert refused.reasons == ()
    plain = named("x").select(["value"])
    assert split_streams(plain, ONE)[0] is plain


def test_events_of_other_streams_are_told() -> None:
    passed, refused = split_streams(named("shop/a", None, "shop/c"), TWO)

    assert passed.column("value").to_pylist() == [b"0"]
    assert refused.events.column("value").to_pylist() == [b"1", b"2"]
    assert [(row.number, str(row)) for row in refused.reasons] == [
        (1, 'column "stream" is null, and the option stream names shop/a, shop/b'),
        (2, 'column "stream" is shop/c, and the option stream names shop/a, shop/b'),
    ]


def test_a_name_that_is_not_utf_8_is_told() -> None:
    """Spark lets a column of text hold any bytes."""
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    passed, refused = split_streams(named("x").set_column(1, "stream", bad), ONE)

    assert len(passed) == 0
    assert "is \ufffd, and" in str(refused.reasons[0])
