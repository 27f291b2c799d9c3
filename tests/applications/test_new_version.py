"""A new version takes the place of an old one at one cut: each reading has one result, of the right version."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import millrace
from applications.new_version import __main__ as command
from applications.new_version.weather import READINGS, create, write
from millrace import blocking
from millrace.client.testing import TestServer, server
from millrace.examples.demo.data import readings

pytestmark = pytest.mark.slow


@pytest.mark.spark
def test_a_new_version_takes_over_at_a_cut() -> None:
    """Behaviours 55 and 67. As a process of its own: Spark stays in its process until that ends."""
    finished = subprocess.run(
        [sys.executable, "-m", "applications.new_version"], capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "only for the new version" in finished.stdout
    assert "each reading has one result" in finished.stderr


@pytest.fixture
def started() -> Iterator[TestServer]:
    """A server with twenty readings, and a switch in the middle of them."""
    with server() as started, blocking.connect(started.address) as client:
        create(client, READINGS, command.RESULTS)
        write(client, readings()[:10])
        client.bookmarks(READINGS).save("switch")
        write(client, readings()[10:20])
        yield started


def told(
    started: TestServer, *, missing: int = 0, switched_late: int = 0, twice: int = 0, patience_s: float = 60.0
) -> str:
    """Write a result of each reading, with some faults; return what the check of the command says."""
    with blocking.connect(started.address) as client:
        with client.writer(command.RESULTS) as writer:
            for version, start, end in ((1, millrace.HEAD, command.SWITCH), (2, command.SWITCH, millrace.TAIL)):
                with client.reader(READINGS, start=start, end=end) as reader:
                    for number, event in enumerate(reader):
                        if version == 2 and number < missing:
                            continue
                        result = {
                            "version": 1 if number < switched_late else version, "sensor": event.key, "unusual": False,
                            "segment": event.segment, "offset": event.offset, "index": event.index,
                        }  # fmt: skip
                        for _ in range(2 if version == 2 and number < twice else 1):
                            writer.write(json.dumps(result).encode(), key=event.key).result()
        try:
            with command.Screen(started.address, patience_s=patience_s) as screen:
                command.check(client, screen)
        except SystemExit as error:
            return str(error)
        return "right"


def test_what_is_right_passes(started: TestServer) -> None:
    assert told(started) == "right"


def test_a_result_that_is_missing_is_told(started: TestServer) -> None:
    assert told(started, missing=1, patience_s=1.0) == "no more than 19 events of weather/results came within 1 s"


def test_a_result_of_the_wrong_version_is_told(started: TestServer) -> None:
    assert told(started, switched_late=1).startswith("2 results are missing, repeated, or of the wrong version")


def test_a_result_that_came_twice_is_told(started: TestServer) -> None:
    assert " came after " in told(started, twice=1)
