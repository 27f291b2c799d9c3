"""S2 lite, whose log is in an object store, too: one append at a time, beside Millrace over the same store.

Both are servers of their own, both acknowledge what the store has confirmed, and a raw client asks each. S2 lite
gathers appends for a while before each PUT (50 ms with a store, by its own default). Millrace makes at most 20 PUTs a
second by default, which comes to the same; without that bound it waits for the PUT alone.
"""

import contextlib
import http.client
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.latency_client import LoneAppender
from benchmarks.processes import LOOPBACK, find_program, free_port, running
from benchmarks.report import Bound, Quantity, Row, SyncRate, Target, Unit
from benchmarks.rounds import interleaved, median_of, spread
from benchmarks.s3_gateway import Gateway, s3_gateway
from benchmarks.server import millrace_server
from benchmarks.session import AbsentError, Session
from benchmarks.timing import Latencies, repeat
from loadtests.protocol import ProtocolClient

from .figures import EVENT_SIZE_BYTES

_LIFETIME_S: Final = 600.0
_START_TIMEOUT_S: Final = 60.0
_BASIN: Final = "benchmarks-basin"
_STREAM: Final = "one"
_HEADERS: Final = {"content-type": "application/json", "s2-basin": _BASIN}
_NO_SYNCS: Final = SyncRate(0.0, "none made")
_BY_DEFAULT: Final = "20"
_UNBOUNDED: Final = "0"
_FORMS: Final = {_BY_DEFAULT: "at most 20 PUTs a second", _UNBOUNDED: "PUTs without a bound"}


class S2Client:
    """A connection to S2 lite that makes a basin and a stream, and appends one record at a time."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_START_TIMEOUT_S)
        self._ask("/v1/basins", {"basin": _BASIN})
        self._ask("/v1/streams", {"stream": _STREAM})
        self._body = json.dumps({"records": [{"body": "x" * EVENT_SIZE_BYTES}]})

    def append(self, _: int = 0) -> None:
        """Append one record and wait for the answer."""
        self._post(f"/v1/streams/{_STREAM}/records", self._body)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, path: str, body: dict[str, str]) -> None:
        self._post(path, json.dumps(body))

    def _post(self, path: str, body: str) -> None:
        self._connection.request("POST", path, body, _HEADERS)
        with self._connection.getresponse() as answer:
            said = answer.read()
        assert answer.status < http.client.BAD_REQUEST, said


def measure(session: Session) -> Iterator[Row]:
    """Yield the latency of a lone append to S2 lite, and of Millrace with its log in the same store.

    Raises:
        AbsentError: S2 lite, or a store, is not installed.
    """
    program = find_program("s2", str(Path.home() / ".cargo" / "bin"))
    if program is None:
        raise AbsentError("cargo install s2-cli")
    says = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10.0, check=True).stdout
    version = found[0] if (found := re.search(r"\d+\.[\d.]+", says)) else "?"
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(s3_gateway(session.directory, lifetime_s=_LIFETIME_S))
        s2 = stack.enter_context(_s2_lite(session.directory, program, gateway))
        work: dict[str, Callable[[], Latencies]] = {"s2": partial(_repeated, session, s2.append)}
        for bound in _FORMS:
            appender = stack.enter_context(_millrace(session, gateway, bound))
            work[bound] = partial(_repeated, session, appender.append)
        results = interleaved(work)
    rival_s = median_of(results["s2"], _p50_s)
    yield Row(
        name=f"S2 lite {version}: durable append of {EVENT_SIZE_BYTES} B, one at a time: p50",
        figure=Quantity(rival_s, Unit.SECONDS),
        syncs=_NO_SYNCS,
        conditions=_conditions(results["s2"], gateway, "its default settings; raw HTTP, JSON"),
    )
    for bound, form in _FORMS.items():
        yield Row(
            name=f"Millrace, log in the same store, {form}: the same",
            figure=Quantity(median_of(results[bound], _p50_s), Unit.SECONDS),
            reference_name=f"S2 lite {version}",
            reference=Quantity(rival_s, Unit.SECONDS),
            target=Target(Bound.AT_MOST, 1.0) if bound == _UNBOUNDED else None,
            syncs=_NO_SYNCS,
            conditions=_conditions(results[bound], gateway, "`--log object`; raw socket"),
        )


def _conditions(rounds: list[Latencies], gateway: Gateway, how: str) -> str:
    return f"{how}; {rounds[-1].tail()} in the last round; {gateway.program} on this machine; {spread(rounds, _p50_s)}"


def _repeated(session: Session, append: Callable[[int], None]) -> Latencies:
    return repeat(append, count=session.count(3_000), budget_s=session.seconds(6.0))


@contextlib.contextmanager
def _s2_lite(directory: Path, program: str, gateway: Gateway) -> Iterator[S2Client]:
    port = free_port()
    bucket, _, path = gateway.new_url().removeprefix("s3://").partition("/")
    arguments = [program, "lite", "--bucket", bucket, "--path", path, "--port", str(port), "--no-dashboard"]
    environment = {**gateway.environment, "AWS_ALLOW_HTTP": "true"}
    with tempfile.TemporaryDirectory(dir=directory, prefix="s2-") as name:
        with running(arguments, output=Path(name) / "output", lifetime_s=_LIFETIME_S, environment=environment) as child:
            child.wait_for_port(port, timeout_s=_START_TIMEOUT_S)
            with contextlib.closing(S2Client(port)) as client:
                yield client


@contextlib.contextmanager
def _millrace(session: Session, gateway: Gateway, puts_per_s_max: str) -> Iterator[LoneAppender]:
    settings = {
        **gateway.environment,
        "MILLRACE_STORE": gateway.new_url(),
        "MILLRACE_WAL_PLACE": "object",
        "MILLRACE_WAL_PUTS_PER_S_MAX": puts_per_s_max,
    }
    with (
        millrace_server(session.directory, settings=settings, lifetime_s=_LIFETIME_S) as server,
        ProtocolClient(server.address) as client,
    ):
        yield LoneAppender(client, "raw/lone", payload_size=EVENT_SIZE_BYTES)


def _p50_s(latencies: Latencies) -> float:
    return latencies.p50_s
