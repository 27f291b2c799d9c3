"""The demo and the bench are commands, and run as the others do."""

from tests.cli.conftest import run, running

__all__ = ["run", "running"]
