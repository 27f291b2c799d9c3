import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.spark_source import OptionError
from millrace.spark_source.client_link import (
    SHARED_COUNT_MAX,
    ClientLink,
    close_shared_links,
    shared_link,
)

pytestmark = pytest.mark.slow


@dataclass(slots=True, kw_only=True)
class Choice:
    """What options say of a server."""

    address: str
    token: str = ""
    tls: bool = False
    outage_timeout_s: float = 10.0


@pytest.fixture(autouse=True)
def links() -> Iterator[None]:
    yield
    close_shared_links()


@pytest.fixture
def choice(server: TestServer) -> Choice:
    return Choice(address=server.address)


async def myself(client: Client) -> Client:
    await client.ping()
    return client


def test_calls_share_a_client_and_a_loop(choice: Choice) -> None:
    link = ClientLink(choice, request_timeout_s=10.0)
    link.check()
    first = link.call(myself)
    assert link.call(myself, is_continued=True) is first
    assert link.call(myself) is first
    link.close()

    assert link.call(myself) is not first
    link.close()
    link.close()


def test_where_nothing_answers_the_check_fails_at_once_and_each_time() -> None:
    """Behaviour 60."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        link = ClientLink(Choice(address=f"127.0.0.1:{taken.getsockname()[1]}"), request_timeout_s=10.0)
        for _ in range(2):
            with pytest.raises(OptionError, match='option "address": no server could be reached'):
                link.check()
        link.close()


def test_a_link_that_has_been_connected_is_not_checked_again(choice: Choice) -> None:
    """Behaviour 89: later calls wait for a server that is away."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        link = ClientLink(choice, request_timeout_s=10.0)
        _ = link.call(myself)
        link.close()
        choice.address = f"127.0.0.1:{taken.getsockname()[1]}"
        link.check()


def test_a_process_has_one_link_to_a_server(choice: Choice) -> None:
    link = shared_link(choice)

    assert shared_link(Choice(address=choice.address)) is link
    assert shared_link(Choice(address=choice.address, outage_timeout_s=20.0)) is not link
    assert shared_link(choice) is link


def test_a_thread_has_links_of_its_own(choice: Choice) -> None:
    """A loop belongs to one."""
    found = []

    def use() -> None:
        found.append(shared_link(choice))
        close_shared_links()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()

    assert found[0] is not shared_link(choice)


def test_links_are_few(choice: Choice) -> None:
    """Behaviour 86: another one closes that which was made first."""
    choices = [Choice(address=choice.address, outage_timeout_s=10.0 + number) for number in range(SHARED_COUNT_MAX + 1)]
    links = [shared_link(each) for each in choices]

    assert shared_link(choices[-1]) is links[-1]
    assert shared_link(choices[0]) is not links[0]


def test_a_forked_process_makes_its_own(choice: Choice) -> None:
    """Spark forks the processes that it runs tasks in."""
    link = shared_link(choice)
    _ = link.call(myself)
    child = os.fork()
    if child == 0:
        os._exit(0 if shared_link(choice) is not link else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert shared_link(choice) is link
