"""A pytest plugin that limits the processor time of each unmarked test.

The processor time of a test is what its call takes in all threads of this process, and in each child process that it
waited for. Unlike wall-clock time it hardly depends on what else the machine does. A test marked `slow` or `spark` has
no limit. Above `WARN_S` a test is listed at the end of the run; above `FAIL_S` it fails, and has to become cheaper or
be marked. Nor is there a limit in a part of `make test-all`, whose property tests draw ten times the examples.
"""

import os
from collections.abc import Iterator
from typing import Final

import pytest

WARN_S: Final = 1.0
FAIL_S: Final = 5.0

_PROPERTY: Final = "processor time"


def processor_time_s() -> float:
    """Return the processor time of this process, and of its children that have ended, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the call of an unmarked test, and fail the test when it took more than `FAIL_S`."""
    before = processor_time_s()
    result = yield
    if any(mark.name in ("slow", "spark") for mark in item.iter_markers()):
        return result
    taken = processor_time_s() - before
    item.user_properties.append((_PROPERTY, taken))
    if taken > FAIL_S and item.config.getoption("--minutes-max") is None:
        pytest.fail(f"took {taken:.1f} s of processor time: unmarked tests may take {FAIL_S:g} s", pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that took more than `WARN_S`, the longest first."""
    times = {
        report.nodeid: value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == _PROPERTY and value > WARN_S
    }
    if times:
        terminalreporter.section(f"unmarked tests above {WARN_S:g} s of processor time")
        for node, taken in sorted(times.items(), key=lambda each: -each[1]):
            terminalreporter.line(f"{taken:5.1f} s {node}")
