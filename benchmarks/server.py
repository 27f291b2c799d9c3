"""A Millrace server of its own process and folder, for as long as a benchmark needs it."""

import contextlib
import json
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from .processes import Child, NotReadyError, running
from .report import SyncRate

_START_TIMEOUT_S: Final = 60.0
_LIFETIME_S: Final = 240.0
_POLL_S: Final = 0.002
_SETTLE_POLL_S: Final = 0.3
_SETTLE_TIMEOUT_S: Final = 10.0
_SYNCS: Final = re.compile(r"^millrace_wal_sync_seconds_count ([\d.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MillraceServer:
    """A running server."""

    address: str
    console: str
    child: Child
    # From the start of the process to the line that says it serves.
    start_s: float

    @property
    def process(self) -> psutil.Process:
        """The process of the server."""
        return psutil.Process(self.child.process.pid)

    def metrics(self) -> str:
        """Return what Prometheus would be told."""
        with urllib.request.urlopen(f"http://{self.console}/metrics", timeout=10.0) as answer:
            text: str = answer.read().decode()
            return text

    def syncs_total(self) -> float:
        """Return how many times the log was synced since the start."""
        found = _SYNCS.search(self.metrics())
        assert found is not None
        return float(found[1])

    def cpu_s(self) -> float:
        """Return the processor time that the server has used."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return the numbers of all parts, by part and name."""
        with urllib.request.urlopen(f"http://{self.console}/api/v1/server", timeout=10.0) as answer:
            parts: dict[str, dict[str, float]] = json.load(answer)["statistics"]
            return parts

    def settle(self) -> None:
        """Return when the server has stopped to move bytes to tier 2, or after a while."""
        deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
        before = -1.0
        while (tail := self.statistics()["server"]["tail_bytes"]) != before and time.monotonic() < deadline_s:
            before = tail
            time.sleep(_SETTLE_POLL_S)

    @contextlib.contextmanager
    def usage(self) -> Iterator["Usage"]:
        """Count syncs and processor time during a block; read them after it."""
        usage = Usage(self)
        yield usage
        usage.stop()


class Usage:
    """What a server did between two moments; read after `stop`.

    A load generator has to start and to warm up, so the time of a block is not the time of its load. What counts is
    what an append cost, times the appends per second while they were measured.
    """

    def __init__(self, server: MillraceServer) -> None:
        self._server = server
        self.syncs, self.cpu_s, self.appends = self._counts()
        self._begin_s = time.perf_counter()
        self.elapsed_s = 0.0

    def stop(self) -> None:
        """Turn the totals into those of the time since this was made."""
        self.elapsed_s = time.perf_counter() - self._begin_s
        syncs, cpu_s, appends = self._counts()
        self.syncs, self.cpu_s, self.appends = syncs - self.syncs, cpu_s - self.cpu_s, appends - self.appends

    def sync_rate(self, appends_per_s: float | None = None) -> SyncRate:
        """Return the syncs per second at a rate of appends, or over the whole time."""
        return SyncRate(self._at(self.syncs, appends_per_s), "own count")

    def cpu_share(self, appends_per_s: float | None = None) -> float:
        """Return how many processors were busy at a rate of appends, or over the whole time."""
        return self._at(self.cpu_s, appends_per_s)

    def _at(self, count: float, appends_per_s: float | None) -> float:
        if appends_per_s is None:
            return count / self.elapsed_s
        return count / self.appends * appends_per_s if self.appends else 0.0

    def _counts(self) -> tuple[float, float, float]:
        server = self._server
        return server.syncs_total(), server.cpu_s(), server.statistics()["front"]["appends_total"]


@contextlib.contextmanager
def millrace_server(
    directory: Path,
    *,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    lifetime_s: float = _LIFETIME_S,
    module: str = "millrace.server",
) -> Iterator[MillraceServer]:
    """Run a server until the end of the block.

    Args:
        directory: on the disk to measure; holds the folder of the server unless `folder` names one to keep.
        settings: its environment, `MILLRACE_<PART>_<OPTION>`.
        lifetime_s: it is killed after this long, whatever happens.
        module: what is run, with the arguments of `millrace.server`.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="millrace-") as name:
        data_folder = folder or Path(name) / "data"
        output = Path(name) / "output"
        arguments = [sys.executable, "-m", module, str(data_folder), "--console", "127.0.0.1:0"]
        begin_s = time.perf_counter()
        with running(arguments, output=output, lifetime_s=lifetime_s, environment=settings) as child:
            said = _first_line(child)
            yield MillraceServer(said["address"], said["console"], child, time.perf_counter() - begin_s)


def _first_line(child: Child) -> dict[str, str]:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        for line in child.output.read_text().splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                said: dict[str, str] = json.loads(line)
                return said
        if child.process.poll() is not None:
            break
        time.sleep(_POLL_S)
    raise NotReadyError(f"the server did not start: {child.last_output()}")
