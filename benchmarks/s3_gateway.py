"""A server of S3 on this machine for a benchmark: versitygw where it is installed, else moto, which is slower."""

import contextlib
import http.client
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .processes import LOOPBACK, find_program, free_port, running
from .session import AbsentError

VERSITYGW: Final = "versitygw"
MOTO: Final = "moto"
_BUCKET: Final = "benchmarks"
_KEY_PAIR: Final = ("millrace", "known-to-all")
_START_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running server of S3 with one bucket."""

    program: str
    port: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to reach it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{self.port}",
            "AWS_ACCESS_KEY_ID": _KEY_PAIR[0],
            "AWS_SECRET_ACCESS_KEY": _KEY_PAIR[1],
            "AWS_REGION": "us-east-1",
        }

    def new_url(self) -> str:
        """Return the URL of a prefix that nobody else uses."""
        return f"s3://{_BUCKET}/run-{next(self._numbers)}"


def find_gateway() -> str:
    """Return the path of versitygw, or the name of moto.

    Raises:
        AbsentError: there is neither, or nothing to talk to them.
    """
    if importlib.util.find_spec("obstore") is None:
        raise AbsentError("pip install obstore")
    # `make s3` installs it beside the interpreter.
    if (found := find_program(VERSITYGW, str(Path(sys.executable).parent))) is not None:
        return found
    if importlib.util.find_spec("moto") is None:
        raise AbsentError("make s3 (versitygw), or pip install 'moto[s3,server]'")
    return MOTO


@contextlib.contextmanager
def s3_gateway(directory: Path, *, lifetime_s: float) -> Iterator[Gateway]:
    """Run a server of S3 until the end of the block, with its objects below `directory`; moto has them in memory.

    Args:
        lifetime_s: it is killed after this long, whatever happens.

    Raises:
        AbsentError: there is none to run.
    """
    program = find_gateway()
    port = free_port()
    with tempfile.TemporaryDirectory(dir=directory, prefix="millrace-s3-") as name:
        root = Path(name) / "root"
        (root / _BUCKET).mkdir(parents=True)  # for versitygw, a folder is a bucket
        arguments = [program, "--port", f"{LOOPBACK}:{port}", "posix", str(root)]
        if program == MOTO:
            arguments = [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)]
        keys = {"ROOT_ACCESS_KEY_ID": _KEY_PAIR[0], "ROOT_SECRET_ACCESS_KEY": _KEY_PAIR[1]}
        with running(arguments, output=Path(name) / "output", lifetime_s=lifetime_s, environment=keys) as child:
            child.wait_for_port(port, timeout_s=_START_TIMEOUT_S)
            if program == MOTO:
                _make_bucket(port)
            yield Gateway(Path(program).name, port)


def _make_bucket(port: int) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_START_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("PUT", f"/{_BUCKET}", headers={"Content-Length": "0"})
        status = connection.getresponse().status
    assert status == 200, status
