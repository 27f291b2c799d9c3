"""A store on a folder of its own, and one with a rich checkpoint in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.server.container.checkpoint.store import CheckpointStore
from tests.server.container.checkpoint.stores import RICH, exported, opened, save_all


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.db"


@pytest.fixture
def store(path: Path) -> Iterator[CheckpointStore]:
    with opened(path) as store:
        yield store


@pytest.fixture
def rich_copy(store: CheckpointStore) -> bytes:
    """An export of a rich state as of sequence 10; the store is left with it."""
    assert store.load() is None
    save_all(store, RICH, 10)
    return exported(store)
