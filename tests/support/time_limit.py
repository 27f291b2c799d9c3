"""A pytest plugin for the parts of `make test-all`: a limit of time, and an order of the files that a seed draws.

`--minutes-max` skips the tests that would begin after so many minutes. `--order-seed` shuffles the files, so that runs
with different seeds skip different ones. The tests of a file stay together and in order.
"""

import random
import time
from typing import Final

import pytest

_END: Final = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--minutes-max", type=float, help="skip the tests that would begin after so many minutes")
    parser.addoption("--order-seed", type=int, help="run the files in the order that this seed draws")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the time; each worker of xdist has its own."""
    minutes = config.getoption("--minutes-max")
    if minutes is not None:
        config.stash[_END] = time.monotonic() + minutes * 60


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the files; each worker of xdist draws the same order, as xdist demands."""
    seed = config.getoption("--order-seed")
    if seed is None:
        return
    files = sorted({item.path for item in items})
    random.Random(seed).shuffle(files)
    places = {path: place for place, path in enumerate(files)}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test when the time is over."""
    end_s = item.config.stash.get(_END, None)
    if end_s is not None and time.monotonic() >= end_s:
        pytest.skip("out of time")
