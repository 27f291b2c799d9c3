"""Redis Streams with `appendfsync always`: synced before the answer, one sync per turn of its event loop."""

import contextlib
import csv
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.flushes import counted_flushes
from benchmarks.processes import LOOPBACK, free_port, running
from benchmarks.report import Row
from benchmarks.session import AbsentError, Session
from benchmarks.timing import Latencies, repeat

from .figures import EVENT_SIZE_BYTES, Rate, RivalFigures

_LIFETIME_S: Final = 90.0
_CLIENTS: Final = 16
_PIPELINE: Final = 256
_VALUE: Final = b"x" * EVENT_SIZE_BYTES


def redis_streams(session: Session) -> RivalFigures:
    """Measure Redis in a temporary folder.

    Raises:
        AbsentError: redis-server, redis-benchmark or redis-py is not installed.
    """
    server, benchmark = shutil.which("redis-server"), shutil.which("redis-benchmark")
    if server is None or benchmark is None:
        raise AbsentError("apt-get install redis-server")
    says = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10.0, check=True).stdout
    version = re.search(r"v=([\d.]+)", says)
    with _running_server(session.directory, server) as (port, folder):
        with counted_flushes(folder) as flushes:
            latencies = _one_at_a_time(session, port)
        return RivalFigures(
            name=f"Redis {version[1] if version else '?'} Streams",
            acknowledges="appendfsync always: synced before the answer; raw socket client",
            one_at_a_time=latencies,
            one_at_a_time_syncs=flushes.rate,
            best=_benchmark(session, port, folder, benchmark),
            python_client=_python_client(session, port, folder),
        )


def measure(session: Session) -> Iterator[Row]:
    """Yield the rows of Redis."""
    yield from session.once(redis_streams).rows()


@contextlib.contextmanager
def _running_server(directory: Path, server: str) -> Iterator[tuple[int, Path]]:
    port = free_port()
    with tempfile.TemporaryDirectory(dir=directory, prefix="redis-") as name:
        folder = Path(name)
        options = {
            "port": port,
            "bind": LOOPBACK,
            "dir": name,
            "appendonly": "yes",
            "appendfsync": "always",
            # Nothing but the log of appends is written: no snapshots, no rewriting while we measure.
            "save": "",
            "auto-aof-rewrite-percentage": 0,
        }
        arguments = [server, *(part for key, value in options.items() for part in (f"--{key}", str(value)))]
        with running(arguments, output=folder / "output", lifetime_s=_LIFETIME_S) as child:
            child.wait_for_port(port, timeout_s=10.0)
            yield port, folder


def _one_at_a_time(session: Session, port: int) -> Latencies:
    """Time XADD through a bare socket, with no client library in the way."""
    words = (b"XADD", b"one", b"*", b"v", _VALUE)
    command = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    with socket.create_connection((LOOPBACK, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def append(_: int) -> None:
            connection.sendall(command)
            answer = connection.recv(256)
            # "$15\r\n1700000000000-0\r\n": an id, in one piece on the loopback.
            assert answer.startswith(b"$"), answer
            assert answer.endswith(b"\r\n"), answer

        return repeat(append, count=session.count(4_000), budget_s=session.seconds(1.5))


def _benchmark(session: Session, port: int, folder: Path, benchmark: str) -> Rate:
    """Run its own C benchmark: the better of two rounds."""
    arguments = [benchmark, "-h", LOOPBACK, "-p", str(port), "-c", str(_CLIENTS), "-P", str(_PIPELINE), "--csv"]
    arguments += ["-n", str(session.count(1_000_000)), "XADD", "many", "*", "v", _VALUE.decode()]
    rates = []
    for _ in range(2):
        with counted_flushes(folder) as flushes:
            finished = subprocess.run(arguments, capture_output=True, text=True, timeout=_LIFETIME_S / 3, check=True)
        # "test","rps","avg_latency_ms",... and one line of figures.
        line = list(csv.reader(finished.stdout.splitlines()))[-1]
        rates.append((float(line[1]), flushes.rate, line))
    events_per_s, syncs, line = max(rates, key=lambda rate: rate[0])
    return Rate(
        events_per_s=events_per_s,
        syncs=syncs,
        conditions=f"redis-benchmark, {_CLIENTS} clients x {_PIPELINE} pipelined, p50 {line[4]} ms, p99 {line[6]} ms",
    )


def _python_client(session: Session, port: int, folder: Path) -> Rate:
    """Append through redis-py, in pipelines of 1,000."""
    try:
        import redis
    except ImportError as error:
        raise AbsentError("pip install '.[rivals]'") from error
    pipelines = session.count(150)
    with redis.Redis(host=LOOPBACK, port=port) as client, counted_flushes(folder) as flushes:
        begin_s = time.perf_counter()
        for _ in range(pipelines):
            with client.pipeline(transaction=False) as pipeline:
                for _ in range(1_000):
                    pipeline.xadd("python", {"v": _VALUE})
                pipeline.execute()
        elapsed_s = time.perf_counter() - begin_s
    return Rate(
        events_per_s=pipelines * 1_000 / elapsed_s,
        syncs=flushes.rate,
        conditions=f"redis-py {redis.__version__}, one client, pipelines of 1,000 XADD",
    )
