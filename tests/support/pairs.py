"""Two server processes with their log in one bucket: one serves, and the other one stands by."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millrace.client.testing import SETTINGS_SMALL
from tests.support.s3 import S3Server
from tests.support.waiting import until


class Program:
    """A server process that may stand by: its ports are known before it serves."""

    def __init__(self, folder: Path, url: str, environment: dict[str, str]) -> None:
        self.address, self.console = free_address(), free_address()
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "millrace.server", str(folder), "--listen", self.address,
                "--console", self.console, "--store", url, "--log", "object", "--standby",
            ],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def problem(self) -> str:
        """Return what /health says; empty if it is well, or does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.console}/health") as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                found = json.load(error)
        except OSError:
            return ""
        problem: str = found["problem"]
        return problem

    def serves(self) -> None:
        """Wait until it says that it serves."""
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["address"] == self.address

    def end(self, number: int) -> int:
        """Send a signal, and return the exit code."""
        self.send(number)
        return self.ended()[0]

    def send(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Wait until it ends, and return the exit code, and what it said on standard error."""
        with self._process:
            _, said = self._process.communicate()
        return self._process.returncode, said

    def kill(self) -> None:
        """Leave no process."""
        if self._process.poll() is None:
            self.end(signal.SIGKILL)


def free_address() -> str:
    """Return HOST:PORT that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def pair(
    store: S3Server, folder: Path, *, settings: Mapping[str, str] = SETTINGS_SMALL
) -> Iterator[tuple[Program, Program]]:
    """Run two servers over one new bucket, of which the first one serves and the second one stands by.

    Args:
        folder: their data folders are `first` and `second` in it.
        settings: of both, as variables of the environment.
    """
    bucket = store.make_bucket()
    objects = {"MILLRACE_OBJECTS_LEASE_S": "1", "MILLRACE_OBJECTS_RESERVE_BYTES": str(1 << 20)}
    environment = {**os.environ, **settings, **bucket.environment, **objects}
    first = Program(folder / "first", bucket.url, environment)
    try:
        first.serves()
        second = Program(folder / "second", bucket.url, environment)
        try:
            asyncio.run(until(lambda: second.problem().startswith("standing by: ")))
            yield first, second
        finally:
            second.kill()
    finally:
        first.kill()
