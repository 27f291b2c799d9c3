"""A server for the commands that need one, a data folder for those that read files, and a way to run commands."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.main import main
from millrace.client.testing import TestServer, server
from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True)
class Outcome:
    """What a command returned and said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Outcome]
Write = Callable[..., Outcome]
GiveInput = Callable[[bytes], None]

PROGRAM = [sys.executable, "-c", "import sys; from millrace.cli.main import main; sys.exit(main())"]
"""The program in a process of its own, whatever is installed."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run_command(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_command


@pytest.fixture
def run_process() -> Run:
    """Run a command in a process of its own: one that sets up the log of its process."""

    def run_command(*arguments: object) -> Outcome:
        done = subprocess.run(
            [*PROGRAM, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run_command


@pytest.fixture(scope="session")
def running() -> Iterator[TestServer]:
    """A server for all tests; each uses names of its own."""
    with server() as started:
        yield started


@pytest.fixture
def ask(run: Run, running: TestServer) -> Run:
    """Run a command against the server."""
    return lambda *arguments: run(*arguments, "--address", running.address)


@pytest.fixture
def give_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GiveInput]:
    """Put bytes into a file that is the standard input of commands from then on."""
    with ExitStack() as files:

        def give(data: bytes) -> None:
            path = tmp_path / "input"
            path.write_bytes(data)
            monkeypatch.setattr(sys, "stdin", files.enter_context(path.open()))

        yield give


@pytest.fixture
def write(ask: Run, give_input: GiveInput) -> Write:
    """Create a stream and write some input to it."""

    def write_input(stream: str, data: bytes, *options: str) -> Outcome:
        ask("stream", "create", stream, "--segments", 3)
        give_input(data)
        return ask("write", stream, *options)

    return write_input
