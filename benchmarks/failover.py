"""From the end of a server to the first acknowledgement of its standby, as a client of both sees it."""

import contextlib
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace import blocking

from .processes import LOOPBACK, Child, NotReadyError, free_port, running
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .rounds import interleaved, median_of
from .s3_gateway import Gateway, s3_gateway
from .session import Session

LIMITS_S: Final = {signal.SIGKILL: 5.0, signal.SIGTERM: 1.0}
"""What is promised after a crash, and after an orderly stop."""
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
    """Yield the time without acknowledgements after a kill, and after an orderly stop."""
    rounds = max(3, session.count(_ROUNDS))
    with s3_gateway(session.directory, lifetime_s=_LIFETIME_S) as gateway:
        work = {number: lambda number=number: _fail_over(session, gateway, number) for number in LIMITS_S}
        results = interleaved(work, rounds=rounds)
    names = {signal.SIGKILL: "kill -9 of", signal.SIGTERM: "orderly stop of"}
    for number, elapsed_s in results.items():
        yield Row(
            name=f"{names[number]} a server with a standby: until the next acknowledgement",
            figure=Quantity(median_of(elapsed_s, float), Unit.SECONDS),
            reference_name="the design",
            reference=Quantity(LIMITS_S[number], Unit.SECONDS),
            target=Target(Bound.AT_MOST, 1.0),
            syncs=SyncRate(0.0, "none made"),
            conditions=(
                f"{rounds} rounds, {Quantity(min(elapsed_s), Unit.SECONDS)} to "
                f"{Quantity(max(elapsed_s), Unit.SECONDS)}; lease 3 s; {_EVENTS_COUNT * 1000 / 1e6:.0f} MB were "
                f"written before; a client of both with its default options; {gateway.program} on this machine"
            ),
        )


def _fail_over(session: Session, gateway: Gateway, number: signal.Signals) -> float:
    """Return how long one append takes whose server is ended right before it."""
    url = gateway.new_url()
    with contextlib.ExitStack() as stack:
        folder = session.directory / url.rpartition("/")[2]
        serving = stack.enter_context(_node(folder / "first", url, gateway))
        serving.until("")
        waiting = stack.enter_context(_node(folder / "second", url, gateway))
        waiting.until("standing by: ")
        client = stack.enter_context(blocking.connect(f"{serving.address},{waiting.address}"))
        client.create_stream(_STREAM)
        writer = stack.enter_context(client.writer(_STREAM, writer_id="benchmark"))
        for _ in range(_EVENTS_COUNT // _BATCH_COUNT):
            writer.write_many([bytes(1000)] * _BATCH_COUNT).result()
        begun_s = time.perf_counter()
        serving.child.process.send_signal(number)
        if number == signal.SIGTERM:
            serving.child.process.wait(_START_TIMEOUT_S)  # until then it acknowledges
            begun_s = time.perf_counter()
        writer.write(b"next").result()
        return time.perf_counter() - begun_s


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
