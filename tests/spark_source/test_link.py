"""What tasks and plans leave to those which follow them in the same process."""

import pytest

from millrace.spark_source.errors import OptionError
from millrace.spark_source.link import LINKS_KEPT_COUNT_MAX, borrowed
from millrace.spark_source.options import parse_options
from tests.spark_source.conftest import Drivers, Shop, rows_of_events


def connects(shop: Shop) -> int:
    """Return how many connections for reads the link has made that the next task gets."""
    with borrowed(parse_options(shop.options())) as link:
        return link.turn(link.client(check=False)).statistics().reads.connects


def test_tasks_of_one_process_share_a_connection(shop: Shop, drivers: Drivers) -> None:
    shop.create(3)
    shop.write(30, keys=20)
    driver = drivers(maxEventsPerTrigger=60)
    rows = [row for _, _, more in driver.batches() for row in more]

    assert len(rows) == 300
    assert connects(shop) == 1


def test_a_task_that_fails_leaves_no_connection(shop: Shop) -> None:
    shop.create()
    options = parse_options(shop.options(token="of its own"))
    with borrowed(options) as first:
        assert first.turn(first.client(check=False)) is not None

    def fail() -> None:
        with borrowed(options) as again:
            assert again is first
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with borrowed(options) as other:
        assert other is not first


def test_a_link_is_lent_once_and_few_are_kept(shop: Shop) -> None:
    options = [parse_options(shop.options(token=f"token-{number}")) for number in range(LINKS_KEPT_COUNT_MAX + 1)]
    with borrowed(options[0]) as first, borrowed(options[0]) as second:
        assert first is not second
    links = []
    for each in options:
        with borrowed(each) as link:
            links.append(link)
    with borrowed(options[-1]) as link:
        assert link is links[-1]
    with borrowed(options[0]) as link:
        assert link is not links[0]  # of too many, that used longest ago was closed


def test_a_first_plan_that_reaches_nothing_says_so(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 60."""
    with pytest.raises(OptionError, match='"address"'):
        drivers(address="127.0.0.1:1").start()


def received_bytes(shop: Shop) -> int:
    """Return how many bytes the tasks of this process have received so far, over the connection that they share."""
    with borrowed(parse_options(shop.options())) as link:
        connection = link.turn(link.client(check=False)).statistics().reads.connection
    return 0 if connection is None else connection.received_bytes


def test_a_block_that_a_batch_ended_inside_of_is_fetched_once(shop: Shop, drivers: Drivers) -> None:
    """Micro-batches of a few events, out of large blocks."""
    shop.create()
    shop.write(4, events=1000)
    driver = drivers(maxEventsPerTrigger=70)
    before = received_bytes(shop)
    rows = [row for _, _, more in driver.batches() for row in more]

    assert rows == rows_of_events(shop.plain())
    size_bytes = shop.client.stream_info(shop.stream).size_bytes
    # Without that, each of the 58 batches fetches one of the four blocks at least, and so 14 times as much.
    assert size_bytes <= received_bytes(shop) - before < 5 * size_bytes


def test_blocks_of_other_tasks_are_fetched_as_always(shop: Shop, drivers: Drivers) -> None:
    """The task of the next batch may run in another process, or twice."""
    shop.create(2)
    shop.write(6, events=50)
    ran = list(drivers(maxEventsPerTrigger=33).batches())

    for start, end, rows in reversed(ran):
        assert drivers().read(start, end) == rows == drivers().read(start, end)
