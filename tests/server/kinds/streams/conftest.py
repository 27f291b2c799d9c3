"""The fixtures of tests of checkpoints, for the tables of streams."""

from tests.server.container.checkpoint.conftest import files, path, store

__all__ = ["files", "path", "store"]
