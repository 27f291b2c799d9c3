"""The fixtures of tests of checkpoints, for the tables of streams."""

from tests.server.container.checkpoint.conftest import path, store

__all__ = ["path", "store"]
