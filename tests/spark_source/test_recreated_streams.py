"""Streams that are deleted and created again under a query, called as Spark calls the reader."""

import pytest

from millrace.spark_source import CheckpointError
from tests.spark_source.conftest import Drivers, Row, Shop, needs_limits

pytestmark = pytest.mark.slow


def create_again(shop: Shop, *, blocks: int) -> list[bytes]:
    """Delete the stream and create another one of its name; return the events of that."""
    shop.client.seal_stream(shop.stream)
    shop.client.delete_stream(shop.stream)
    shop.create(2)
    shop.write(blocks)
    return sorted(event.value for event in shop.plain())


def values(rows: list[Row]) -> list[bytes]:
    return sorted(row[0] for row in rows)


@pytest.mark.parametrize("options", [{"failOnDataLoss": "false"}, {"streamPattern": "*"}])
def test_a_query_reads_a_stream_that_was_created_again_from_its_head(
    shop: Shop, drivers: Drivers, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    """Behaviour 58: where a deletion does not end the query, what replaces the stream does not either."""
    shop.create()
    shop.write(3)
    if "streamPattern" in options:
        options = {"streamPattern": shop.stream.replace("tests/", "*/")}  # of this stream alone
    driver = drivers(**options)
    start = driver.start()
    end = driver.end(start)
    fresh = create_again(shop, blocks=2)

    assert driver.read(start, end) == []  # planned before, and gone
    for resumed in (driver, drivers(**options)):
        rows: list[Row] = []
        last = end
        for _, reached, more in resumed.batches(end):
            rows += more
            last = reached
        assert values(rows) == fresh
        assert driver.end(last) == last
    assert caplog.text.count(f"stream was recreated, reading from its head stream={shop.stream}") == 2


def test_a_named_stream_that_was_created_again_ends_a_query(
    shop: Shop, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    shop.create()
    shop.write(1)
    driver = drivers()
    start = driver.start()
    create_again(shop, blocks=1)

    with pytest.raises(CheckpointError, match=r'made again.* Set option "failOnDataLoss" to "false"'):
        driver.end(start)
    assert "stream was recreated" not in caplog.text


@needs_limits
def test_an_available_now_leaves_a_stream_that_was_created_again_to_the_next_run(shop: Shop, drivers: Drivers) -> None:
    """It ends at the tail of its start, which is in the stream before."""
    shop.create()
    shop.write(3)
    driver = drivers(failOnDataLoss="false")
    start = driver.start()
    driver.reader.prepareForTriggerAvailableNow()
    fresh = create_again(shop, blocks=2)

    rows = [row for _, _, more in driver.batches(start) for row in more]
    assert rows == []
    assert values([row for _, _, more in drivers(failOnDataLoss="false").batches(start) for row in more]) == fresh
    assert len(fresh) == 20
