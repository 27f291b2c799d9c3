"""A server for the commands that need one, a data folder for those that read files, and a way to run commands."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace.cli.main import main
from millrace.client.testing import TestServer, server
from tests.support.waiting import PATIENCE_S

SMALL_LOG = {
    "MILLRACE_WAL_FILE_SIZE_BYTES": str(128 << 10),
    "MILLRACE_WAL_RUN_SIZE_BYTES_MAX": str(64 << 10),
    "MILLRACE_WAL_HEADROOM_BYTES": str(4 << 10),
}
"""Log files of 128 KiB, so that a folder is copied in no time."""


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
def write(ask: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Create a stream and write some input to it."""

    def write_input(stream: str, data: bytes, *options: str) -> Outcome:
        path = tmp_path / "input"
        path.write_bytes(data)
        ask("stream", "create", stream, "--segments", 3)
        with path.open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            return ask("write", stream, *options)

    return write_input


@pytest.fixture(scope="session")
def made_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two folders with the same content: of a server that was stopped, and of one that was killed."""
    stopped, killed = tmp_path_factory.mktemp("stopped"), tmp_path_factory.mktemp("killed")
    # A killed server leaves everything in the log, unless the bytes are old enough to be flushed.
    with server(killed, settings={**SMALL_LOG, "MILLRACE_CONTAINER_FLUSH_AGE_S": "3600"}) as running:
        fill(running.address)
        running.kill()
    with server(stopped, settings=SMALL_LOG) as running:
        fill(running.address)
    return {"stopped": stopped, "killed": killed}


def fill(address: str) -> None:
    """Write a segment of 3 appends, and a stream of 2 segments with 20 events of 2 keys."""
    with millrace.blocking.connect(address) as client:
        client.segments.create("raw/a")
        for letter in (b"a", b"b", b"c"):
            client.segments.append("raw/a", letter * 1000)
        config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2))
        client.create_stream("shop/orders", config)
        with client.writer("shop/orders", writer_id="till-7") as writer:
            for key in ("one", "customer-3"):
                writer.write_many([b"%s %d" % (key.encode(), number) for number in range(10)], key=key).result()


@pytest.fixture
def stopped_folder(made_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A data folder that was left in order: its bytes are in tier 2."""
    return Path(shutil.copytree(made_folders["stopped"], tmp_path / "stopped"))


@pytest.fixture
def killed_folder(made_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A data folder whose server was killed: its bytes are in the log."""
    return Path(shutil.copytree(made_folders["killed"], tmp_path / "killed"))
