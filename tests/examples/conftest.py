"""The demo is a command, and runs as the others do."""

from tests.cli.conftest import run

__all__ = ["run"]
