"""A link by itself, what the pool lends to whom, and what tasks leave to those which follow them in a process."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from millrace.client.client import Client
from millrace.client.read.ranges import SegmentRange
from millrace.client.testing import TestServer
from millrace.spark_source import OptionError
from millrace.spark_source.link import SILENT_S_MAX, WAITING_COUNT_MAX, Link, borrowed, close_waiting_links
from millrace.spark_source.options import parse_options
from tests.spark_source.conftest import Drivers, Shop, rows_of_events
from tests.support.clock import ManualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What options say of a server."""

    address: str
    token: str = ""
    tls: bool = False
    outage_timeout_s: float = 10.0


@pytest.fixture(autouse=True)
def links() -> Iterator[None]:
    """No link outlives its test."""
    yield
    close_waiting_links()


@pytest.fixture
def choice(server: TestServer) -> Choice:
    return Choice(address=server.address)


@pytest.fixture
def nowhere() -> Iterator[Choice]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        yield Choice(address=f"127.0.0.1:{taken.getsockname()[1]}")


# --- a link ---


def test_turns_share_a_client_and_a_loop(choice: Choice) -> None:
    link = Link(choice)
    link.check()
    first = link.client()
    link.turn(first.ping())
    assert link.client() is first
    link.turn(first.ping())
    link.close()

    assert link.client() is not first
    link.close()
    link.close()


def test_where_nothing_answers_the_check_fails_at_once_and_each_time(nowhere: Choice) -> None:
    """Behaviour 60."""
    with closing(Link(nowhere)) as link:
        for _ in range(2):
            with pytest.raises(OptionError, match='option "address": no server could be reached'):
                link.check()


def test_a_link_that_had_a_client_is_not_checked_again(nowhere: Choice) -> None:
    """Behaviour 89: later calls wait for a server that is away."""
    with closing(Link(nowhere)) as link:
        _ = link.client()
        link.check()
        link.close()
        link.check()


def test_a_client_that_was_silent_for_long_is_replaced_when_it_is_asked_for(choice: Choice) -> None:
    """It may have lost its connection; a turn in between keeps it."""
    clock = ManualClock()
    with closing(Link(choice, clock=clock)) as link:
        first = link.client()
        clock.move(SILENT_S_MAX)
        assert link.client() is first
        clock.move(SILENT_S_MAX + 1)
        link.turn(first.ping())
        assert link.client() is first
        clock.move(SILENT_S_MAX + 1)
        second = link.client()

        assert second is not first
        link.turn(second.ping())


async def read_to(client: Client, part: SegmentRange, link: Link) -> int:
    return sum([len(batch) async for batch in client.read_range(part, kept=link.kept)])


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_blocks_of_a_client_go_with_it(shop: Shop, *, is_replaced: bool) -> None:
    """Behaviour 81: what answers at the address may be another server by then, with other blocks at these places."""
    shop.create()
    shop.write(1, events=100)
    (segment,) = shop.client.stream_info(shop.stream).open_segments
    part = SegmentRange(segment_id=segment.segment_id, start_offset=0, start_index=0, end_offset=0, end_index=60)
    clock = ManualClock()
    with closing(Link(Choice(address=shop.address), clock=clock)) as link:
        assert link.turn(read_to(link.client(), part, link)) == 60
        clock.move(SILENT_S_MAX + 1 if is_replaced else 0)
        _ = link.client()
        kept = link.kept.take(replace(part, start_index=60, end_index=100))

    assert (kept is None) == is_replaced


# --- who gets which ---


def test_the_next_caller_gets_the_link_of_the_one_before_to_the_same_server(choice: Choice) -> None:
    with borrowed(choice) as first:
        client = first.client()
    with borrowed(Choice(address=choice.address, outage_timeout_s=20.0)) as other:
        assert other is not first
    with borrowed(Choice(address=choice.address)) as again:
        assert again is first
        assert again.client() is client


def test_a_task_of_the_sink_gets_the_link_of_a_task_of_the_source(shop: Shop) -> None:
    """They may run one after the other in a worker."""
    source = parse_options(shop.options(outageTimeout="10s"))
    with borrowed(source) as first:
        pass
    with borrowed(Choice(address=shop.address)) as second:
        assert second is first


def test_a_link_is_lent_to_one_caller_at_a_time(choice: Choice) -> None:
    with borrowed(choice) as first, borrowed(choice) as second:
        assert first is not second


def test_a_caller_that_fails_leaves_no_client(choice: Choice) -> None:
    """But that there was one is known, so the next caller waits for a server that is away."""
    with borrowed(choice) as link:
        client = link.client()

    def fail() -> None:
        with borrowed(choice) as again:
            assert again.client() is client
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with borrowed(choice) as link:
        assert link.client() is not client
        assert "closed" in repr(client)


def test_few_links_wait(choice: Choice) -> None:
    """Behaviour 86: of too many, that used longest ago is closed."""
    choices = [replace(choice, token=f"token-{number}") for number in range(WAITING_COUNT_MAX + 1)]
    links = []
    for each in choices:
        with borrowed(each) as link:
            links.append(link)
    for each, link in reversed(list(zip(choices, links, strict=True))):
        with borrowed(each) as again:
            assert (again is link) == (link is not links[0])


def test_a_forked_process_makes_its_own(choice: Choice) -> None:
    """Spark forks the processes that it runs tasks in."""
    with borrowed(choice) as link:
        client = link.client()
        link.turn(client.ping())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with borrowed(choice) as other:
                other.turn(other.client().ping())
            close_waiting_links()
            status = 0 if other is not link else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    with borrowed(choice) as again:
        assert again is link
        again.turn(client.ping())


# --- tasks ---


def connects(shop: Shop) -> int:
    """Return how many connections for reads the link has made that the next task gets."""
    with borrowed(parse_options(shop.options())) as link:
        return link.client().statistics().reads.connects


def test_tasks_of_one_process_share_a_connection(shop: Shop, drivers: Drivers) -> None:
    shop.create(3)
    shop.write(30, keys=20)
    driver = drivers(maxEventsPerTrigger=60)
    rows = [row for _, _, more in driver.batches() for row in more]

    assert len(rows) == 300
    assert connects(shop) == 1


def test_a_first_plan_that_reaches_nothing_says_so(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 60."""
    with pytest.raises(OptionError, match='"address"'):
        drivers(address="127.0.0.1:1").start()


def received_bytes(shop: Shop) -> int:
    """Return how many bytes the tasks of this process have received so far, over the connection that they share."""
    with borrowed(parse_options(shop.options())) as link:
        connection = link.client().statistics().reads.connection
    return 0 if connection is None else connection.received_bytes


@pytest.mark.slow
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


@pytest.mark.slow
def test_blocks_of_other_tasks_are_fetched_as_always(shop: Shop, drivers: Drivers) -> None:
    """The task of the next batch may run in another process, or twice."""
    shop.create(2)
    shop.write(6, events=50)
    ran = list(drivers(maxEventsPerTrigger=33).batches())

    for start, end, rows in reversed(ran):
        assert drivers().read(start, end) == rows == drivers().read(start, end)
