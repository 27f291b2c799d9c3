"""The pytest fixtures `millrace_server` and `millrace_chaos`, found through the entry point `pytest11`."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from .chaos import Chaos, chaos
from .testing import TestServer, server

SEED_VARIABLE: Final = "MILLRACE_CHAOS_SEED"


@pytest.fixture
def millrace_server() -> Iterator[TestServer]:
    """A real server in a temporary folder, for one test."""
    with server() as running:
        yield running


@pytest.fixture
def millrace_chaos(millrace_server: TestServer) -> Iterator[Chaos]:
    """What kills, stalls and cuts `millrace_server` during one test; a program connects to its `address`.

    The seed is that of the environment variable MILLRACE_CHAOS_SEED, or a new one; a test that fails prints it.
    """
    text = os.environ.get(SEED_VARIABLE)
    with chaos(millrace_server, seed=int(text) if text else None) as running:
        print(f"{SEED_VARIABLE}={running.seed}")  # noqa: T201 - pytest shows it when the test fails
        yield running
