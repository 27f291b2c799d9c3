"""The pytest fixture `millrace_server`, found by pytest through the entry point `pytest11`."""

from collections.abc import Iterator

import pytest

from .testing import TestServer, server


@pytest.fixture
def millrace_server() -> Iterator[TestServer]:
    """A real server in a temporary folder, for one test."""
    with server() as running:
        yield running
