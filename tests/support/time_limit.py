"""A pytest plugin: `--minutes-max` skips the tests that would begin after so many minutes."""

import time
from typing import Final

import pytest

_END: Final = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--minutes-max", type=float, help="skip the tests that would begin after so many minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the time; each worker of xdist has its own."""
    minutes = config.getoption("--minutes-max")
    if minutes is not None:
        config.stash[_END] = time.monotonic() + minutes * 60


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test when the time is over."""
    end_s = item.config.stash.get(_END, None)
    if end_s is not None and time.monotonic() >= end_s:
        pytest.skip("out of time")
