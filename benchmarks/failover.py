"""From the end of a server to the first acknowledgement of its standby, as a client of both sees it."""

import contextlib
import json
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from millrace import blocking

from .processes import LOOPBACK, Child, NotReadyError, free_port, running
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .rounds import interleaved, median_of
from .s3_gateway import Gateway, s3_gateway
from .session import Session

LIMITS_S: Final = {"kill": 5.0, "term": 1.0, "stop": 5.0, "silence": 5.0, "connect": 5.0}
"""The longest failover that is promised, by the way in which a server ends."""
_NAMES: Final = {
    "kill": "kill -9 of",
    "term": "orderly stop of",
    "stop": "SIGSTOP of",
    "silence": "network lost without a reset, of",
    "connect": "a new client connects after SIGSTOP of",
}
_ROUNDS: Final = 7
_EVENTS_COUNT: Final = 20_000
"""Of 1,000 bytes: what the next owner has to read."""
_BATCH_COUNT: Final = 500
_LIFETIME_S: Final = 1800.0
_START_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02
_STREAM: Final = "benchmarks/failover"


@dataclass(frozen=True, slots=True)
class _Node:
    """One of the two servers."""

    address: str
    console: str
    child: Child

    def until(self, said: str) -> None:
        """Return when /health says something, or that all is well for an empty text."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s and self.child.process.poll() is None:
            problem = self._problem()
            if problem is not None and problem.startswith(said) and bool(problem) == bool(said):
                return
            time.sleep(_POLL_S)
        raise NotReadyError(f"a server does not say {said or 'that it is healthy'!r}: {self.child.last_output()}")

    def _problem(self) -> str | None:
        try:
            with urllib.request.urlopen(f"http://{self.console}/health", timeout=10.0) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                found = json.load(error)
        except OSError:
            return None
        problem: str = found["problem"]
        return problem


def measure(session: Session) -> Iterator[Row]:
    """Yield the time without acknowledgements after each way in which a server ends."""
    rounds = max(3, session.count(_ROUNDS))
    with s3_gateway(session.directory, lifetime_s=_LIFETIME_S) as gateway:
        work = {end: lambda end=end: _fail_over(session, gateway, end) for end in LIMITS_S}
        results = interleaved(work, rounds=rounds)
    for end, elapsed_s in results.items():
        yield Row(
            name=f"{_NAMES[end]} a server with a standby: until the next acknowledgement",
            figure=Quantity(median_of(elapsed_s, float), Unit.SECONDS),
            reference_name="the design",
            reference=Quantity(LIMITS_S[end], Unit.SECONDS),
            target=Target(Bound.AT_MOST, 1.0),
            syncs=SyncRate(0.0, "none made"),
            conditions=(
                f"{rounds} rounds, {Quantity(min(elapsed_s), Unit.SECONDS)} to "
                f"{Quantity(max(elapsed_s), Unit.SECONDS)}; lease 3 s; {_EVENTS_COUNT * 1000 / 1e6:.0f} MB were "
                f"written before; a client of both with its default options; {gateway.program} on this machine"
            ),
        )


def _fail_over(session: Session, gateway: Gateway, end: str) -> float:
    """Return how long one append takes whose server is ended right before it."""
    url = gateway.new_url()
    with contextlib.ExitStack() as stack:
        folder = session.directory / url.rpartition("/")[2]
        serving = stack.enter_context(_node(folder / "first", url, gateway))
        serving.until("")
        waiting = stack.enter_context(_node(folder / "second", url, gateway))
        waiting.until("standing by: ")
        wire = stack.enter_context(_Wire(serving.address))
        client = stack.enter_context(blocking.connect(f"{wire.address},{waiting.address}"))
        client.create_stream(_STREAM)
        writer = stack.enter_context(client.writer(_STREAM, writer_id="benchmark"))
        for _ in range(_EVENTS_COUNT // _BATCH_COUNT):
            writer.write_many([bytes(1000)] * _BATCH_COUNT).result()
        begun_s = time.perf_counter()
        process = serving.child.process
        if end == "term":
            process.terminate()
            process.wait(_START_TIMEOUT_S)  # until then it acknowledges
            begun_s = time.perf_counter()
        elif end == "kill":
            process.kill()
        else:
            if end == "silence":
                wire.is_dead = True
            process.send_signal(signal.SIGSTOP)  # it reaches its store no more
            stack.callback(process.kill)
        if end == "connect":
            client = stack.enter_context(blocking.connect(f"{wire.address},{waiting.address}"))
            writer = stack.enter_context(client.writer(_STREAM, writer_id="next"))
        writer.write(b"next").result()
        return time.perf_counter() - begun_s


class _Wire:
    """A relay to a server that can go dead: it passes nothing on any more, closes nothing, and accepts nothing."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server((LOOPBACK, 0))
        self._sockets = [self._listener]
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self.is_dead = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near = self._listener.accept()[0]
                self._sockets.append(near)
                if self.is_dead:
                    continue
                try:
                    far = socket.create_connection(self._server)
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                for source, target in ((near, far), (far, near)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.is_dead:
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _node(folder: Path, url: str, gateway: Gateway) -> Iterator[_Node]:
    folder.mkdir(parents=True)
    address, console = (f"{LOOPBACK}:{free_port()}" for _ in range(2))
    arguments = [
        sys.executable, "-m", "millrace.server", str(folder / "data"), "--listen", address, "--console", console,
        "--store", url, "--log", "object", "--standby",
    ]  # fmt: skip
    with running(arguments, output=folder / "output", lifetime_s=_LIFETIME_S, environment=gateway.environment) as child:
        yield _Node(address, console, child)
