"""Servers of S3 for tests: moto in this process, with faults on the way, and versitygw as a process of its own.

The fixtures `moto` and `versitygw` of conftest start one of each for all tests of a worker; each test makes its bucket.
"""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol

ACCESS_KEY: Final = "millrace"
SECRET_KEY: Final = "not-a-secret"
REGION: Final = "us-east-1"
VERSITYGW: Final = "versitygw"
START_S_MAX: Final = 120.0
NO_VERSITYGW: Final = "versitygw is not installed: `make s3` does that, with Go"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket that nobody else uses."""

    name: str
    endpoint: str

    @property
    def url(self) -> str:
        """As `--store` takes it."""
        return f"s3://{self.name}/history"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
        }


class S3Server(Protocol):
    """Something that makes buckets."""

    def make_bucket(self) -> Bucket:
        """Return a new bucket, empty."""
        ...


class HttpFault(Enum):
    """What happens to a request on its way."""

    UNAVAILABLE = "503 Slow Down"
    CONFLICT = "409 Conflict"
    LOST_ANSWER = "it happens, and the connection ends"
    CUT_BODY = "half of the body arrives, and the connection ends"


_CODES: Final = {HttpFault.UNAVAILABLE: "SlowDown", HttpFault.CONFLICT: "ConditionalRequestConflict"}

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class FaultyGate:
    """Passes requests on to an application of WSGI, but for those that meet a fault."""

    def __init__(self, application: Application) -> None:
        self._application = application
        # moto compares and then swaps: between the two, another thread may have done so, too.
        self._putting = threading.Lock()
        self._lock = threading.Lock()
        self._script: dict[str, deque[HttpFault]] = {}
        # The faults that there were, with the methods of their requests.
        self.met: list[tuple[str, HttpFault]] = []
        # How many requests there were, by method; a GET that lists is a LIST.
        self.counts: Counter[str] = Counter()
        # Called with the path of each GET before it is carried out, in the thread of the request.
        self.before_get: Callable[[str], None] | None = None

    def fail(self, method: str, *faults: HttpFault) -> None:
        """Let the next requests of a method meet these faults, one each."""
        with self._lock:
            self._script.setdefault(method, deque()).extend(faults)

    def clear(self) -> None:
        """Forget the faults that have not been met, those that were, and the counts."""
        with self._lock:
            self._script.clear()
            self.met.clear()
            self.counts.clear()
            self.before_get = None

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        method: str = environ["REQUEST_METHOD"]
        with self._lock:
            self.counts["LIST" if "list-type" in environ.get("QUERY_STRING", "") else method] += 1
            script = self._script.get(method)
            fault = script.popleft() if script else None
            if fault is not None:
                self.met.append((method, fault))
        if fault is None:
            if method == "GET" and self.before_get is not None:
                self.before_get(environ["PATH_INFO"])
            return self._carried_out(environ, start_response)
        if (code := _CODES.get(fault)) is not None:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = f"<Error><Code>{code}</Code><Message>{fault.value}</Message></Error>".encode()
            start_response(fault.value, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]
        return self._cut(fault, environ, start_response)

    def _carried_out(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            return self._application(environ, start_response)
        with self._putting:
            return list(self._application(environ, start_response))

    def _cut(self, fault: HttpFault, environ: dict[str, Any], start_response: StartResponse) -> Iterator[bytes]:
        if fault is HttpFault.LOST_ANSWER:
            self._carried_out(environ, lambda *_: None)
        else:
            body = b"".join(self._application(environ, start_response))
            yield body[: len(body) // 2]
        connection: socket.socket = environ["werkzeug.socket"]
        connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError(fault.value)  # which the server does not report


@dataclass(slots=True)
class MotoServer:
    """moto, in threads of this process."""

    endpoint: str
    gate: FaultyGate

    def make_bucket(self) -> Bucket:
        """Return a new bucket; faults of tests before are forgotten."""
        self.gate.clear()
        bucket = Bucket(f"b-{uuid.uuid4().hex}", self.endpoint)
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"), timeout=START_S_MAX)
        with closing(connection):
            connection.request("PUT", f"/{bucket.name}", headers={"Content-Length": "0"})
            assert connection.getresponse().status == 200
        return bucket


@contextmanager
def moto_server() -> Iterator[MotoServer]:
    """Lend a server of moto on a port of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its packages say of one another
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):
        """Keeps connections, as real servers do, and says nothing."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002  # its name in the base
            pass

    gate = FaultyGate(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, gate, threaded=True, request_handler=Handler)
    thread = threading.Thread(target=server.serve_forever, name="moto", daemon=True)
    thread.start()
    try:
        yield MotoServer(f"http://127.0.0.1:{server.server_port}", gate)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def find_versitygw() -> Path | None:
    """Return the program: that of `make s3`, or one on the path; None where there is none."""
    beside = Path(sys.executable).parent
    found = shutil.which(VERSITYGW, path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    return Path(found) if found else None


class Versitygw:
    """versitygw over a folder: a gateway that can be killed and started again at the same address.

    Args:
        hosts: where it listens, each time at the same port.
        command: what starts a program where it is to run, such as in a network of its own.
    """

    def __init__(
        self, program: Path, folder: Path, *, hosts: Sequence[str] = ("127.0.0.1",), command: Sequence[str] = ()
    ) -> None:
        self._program = program
        self._folder = folder
        self._hosts = tuple(hosts)
        self._command = tuple(command)
        folder.mkdir(parents=True, exist_ok=True)
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            self._port: int = listener.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where it is, now or when it is started again."""
        return self.endpoints[0]

    @property
    def endpoints(self) -> list[str]:
        """The same, of each host."""
        return [f"http://{host}:{self._port}" for host in self._hosts]

    def make_bucket(self) -> Bucket:
        """Return a new bucket: a folder of the root is one."""
        bucket = Bucket(f"b-{uuid.uuid4().hex}", self.endpoint)
        (self._folder / bucket.name).mkdir()
        return bucket

    def start(self) -> None:
        """Start it, and return when it listens."""
        ports = [word for host in self._hosts for word in ("--port", f"{host}:{self._port}")]
        log = self._folder.with_suffix(".log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*self._command, self._program, *ports, "posix", self._folder],
                env=os.environ | {"ROOT_ACCESS_KEY_ID": ACCESS_KEY, "ROOT_SECRET_ACCESS_KEY": SECRET_KEY},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline_s = time.monotonic() + START_S_MAX
        while self._process.poll() is None and time.monotonic() < deadline_s:
            with suppress(OSError), socket.create_connection((self._hosts[0], self._port), timeout=1):
                return
            time.sleep(0.01)
        raise AssertionError(f"versitygw did not start: {self._folder.with_suffix('.log').read_text()}")

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def versitygw_server(program: Path, folder: Path) -> Iterator[Versitygw]:
    """Lend a gateway over a folder, running."""
    gateway = Versitygw(program, folder)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.kill()
