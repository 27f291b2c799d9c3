"""Event loops and hypothesis profiles for the whole suite.

An async test runs on asyncio, in debug mode: a coroutine never awaited, a call from the wrong thread or a callback that
holds the loop is reported with its origin. A test marked `both_loops` also runs on uvloop, the loop of the server::

    @pytest.mark.both_loops
    @pytest.mark.asyncio
    async def test_acks_arrive_in_order() -> None: ...

One that makes sense on the server's loop alone says `@pytest.mark.asyncio(loop_factories=["uvloop"])`.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import uvloop
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from tests.support.environment import settle_environment
from tests.support.s3 import NO_VERSITYGW, MotoServer, Versitygw, find_versitygw, moto_server, versitygw_server

# A shell that puts the suite into the background lets it ignore Ctrl-C, and with it every program that a test starts:
# those that are to be ended that way would continue. What is handled here is not ignored there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settle_environment()

ENDING_S_MAX: Final = 5.0

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

pytest_plugins = ["tests.support.data_folders", "tests.support.processor_time", "tests.support.time_limit"]

# No deadline: the machine is shared, and a slow example is not a wrong one. `make test` tries the same examples each
# time; `python -m tests.parts properties` draws fresh ones, and prints the blob and the seed that bring them back.
settings.register_profile(
    "default", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough",
    settings.get_profile("default"),
    derandomize=False,
    print_blob=True,
    max_examples=10 * settings.get_profile("default").max_examples,
)
settings.load_profile("default")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    """Offer the loops; a test is run once on each one offered unless its asyncio mark selects among them."""
    if item.get_closest_marker("both_loops") is not None or _selects_loops(item):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def _selects_loops(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("asyncio")
    return mark is not None and "loop_factories" in mark.kwargs


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the workers of xdist begin with the files that take longest: those with Spark, then those with slow tests.

    A worker takes whole files. By itself xdist begins with the files of many tests, and a long one of few tests is the
    last, and keeps one worker busy while the others have nothing left to do.
    """
    if not hasattr(config, "workerinput"):
        return
    rank_of_file: dict[Path, int] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        rank = 0 if "spark" in marks else 1 if "slow" in marks else 2
        rank_of_file[item.path] = min(rank, rank_of_file.get(item.path, rank))
    items.sort(key=lambda item: rank_of_file[item.path])


@pytest.fixture
def loop_never_blocks() -> Iterator[None]:
    """Fail the test when code of millrace, called inside a running loop, sleeps, reads a file or waits for a lock."""
    blockbuster = BlockBuster(scanned_modules=["millrace"])
    blockbuster.activate()
    try:
        yield
    finally:
        blockbuster.deactivate()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail the test when a thread of millrace outlives it: a client, a server or a relay that nobody has closed.

    What fixtures of a module or of the session began is there before. One that was told to end may need a moment.
    """
    before = set(threading.enumerate())
    yield
    left = [each for each in threading.enumerate() if each not in before and each.name.startswith("millrace")]
    for thread in left:
        thread.join(ENDING_S_MAX)
    assert [thread.name for thread in left if thread.is_alive()] == []


@pytest.fixture(autouse=True)
def log_is_as_before() -> Iterator[None]:
    """Fail the test when it leaves a level or a handler at the root of the log: later tests would have it, too.

    A program that sets up its log belongs in a process of its own. The handlers of pytest come and go by themselves.
    """
    root = logging.getLogger()

    def setup() -> tuple[int, list[logging.Handler]]:
        return root.level, [each for each in root.handlers if not type(each).__module__.startswith("_pytest.")]

    before = setup()
    yield
    after = setup()
    root.setLevel(before[0])
    for handler in after[1]:
        if handler not in before[1]:
            root.removeHandler(handler)
    assert after == before


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    """Start moto once in this process: a test makes a bucket of its own there."""
    with moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    """Start versitygw once for this process; skip where it is not installed."""
    program = find_versitygw()
    if program is None:
        pytest.skip(NO_VERSITYGW)
    with versitygw_server(program, tmp_path_factory.mktemp("versitygw") / "root") as gateway:
        yield gateway
