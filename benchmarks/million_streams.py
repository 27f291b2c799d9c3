"""A million idle streams: how fast they are created, what they cost in memory, how long a start with them takes.

    python -m benchmarks.million_streams --streams 1000000

Each stream is created by a request of its own and is one durable record. Memory is the resident set of the server
process; a start lasts from the process to the line that says that it serves. Both are measured after the creation (with
the largest resident set that the process ever had), after a kill and after an orderly stop, and put beside the limits
of the design: 400 MB and 10 s for a million. With `--events` the first so many streams get an event each, so that they
also have a segment with a chunk in tier 2.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import millrace
from millrace.client.client import Client

OUTSTANDING = 512
LIMIT_RESIDENT_MB = 400.0
LIMIT_START_S = 10.0


def resident_mb(pid: int) -> float:
    """Return the resident set of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_resident_mb(pid: int) -> float:
    """Return the largest resident set that a process ever had in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError("the system does not tell the largest resident set")


def stream_name(number: int) -> str:
    """Return the name of a stream."""
    return f"scope-{number % 100}/stream-{number:07d}"


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far: what a start costs on a machine that others use too."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def create(address: str, count: int, *, progress: Progress) -> None:
    """Create streams, many requests under way at once."""
    numbers = iter(range(count))
    task = progress.add_task("streams", total=count)

    async def work(client: Client) -> None:
        for number in numbers:
            await client.create_stream(stream_name(number))
            progress.advance(task)

    async with millrace.connect(address) as client, asyncio.TaskGroup() as group:
        for _ in range(OUTSTANDING):
            group.create_task(work(client))


async def write(address: str, count: int, *, progress: Progress) -> None:
    """Write an event to each of so many streams."""
    task = progress.add_task("events", total=count)
    async with millrace.connect(address) as client:
        for number in range(count):
            async with client.writer(stream_name(number)) as writer:
                await writer.write(b"event", key="key")
            progress.advance(task)


async def use(address: str, count: int) -> dict[str, float]:
    """Return how long a page of the list takes, and one durable event of one stream among all."""
    async with millrace.connect(address) as client:
        await client.ping()
        started_s = time.perf_counter()
        names = client.list_streams("scope-42/")
        async for _ in names:
            break
        await names.aclose()
        listed_s = time.perf_counter()
        async with client.writer(stream_name(count - 1)) as writer:
            await writer.write(b"event", key="key")
            opened_s = time.perf_counter()
            for _ in range(20):
                await writer.write(b"event", key="key")
        written_s = time.perf_counter()
    return {
        "list_page_ms": (listed_s - started_s) * 1e3,
        "first_write_ms": (opened_s - listed_s) * 1e3,
        "write_ms": (written_s - opened_s) / 20 * 1e3,
    }


class Server:
    """A server process with some settings, waited for as long as it takes."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = {**os.environ, **(settings or {})}
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start it; return after how many seconds it served."""
        started_s = time.perf_counter()
        arguments = [sys.executable, "-m", "millrace.server", str(self._folder)]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=self._environment)
        assert self._process.stdout is not None
        self.address = json.loads(self._process.stdout.readline())["address"]
        return time.perf_counter() - started_s

    def end(self, number: signal.Signals) -> float:
        """End it by a signal; return after how many seconds it had ended."""
        if self._process is None:
            return 0.0
        started_s = time.perf_counter()
        self._process.send_signal(number)
        self._process.communicate()
        self._process = None
        return time.perf_counter() - started_s


def measure(folder: Path, count: int, *, events: int, progress: Progress) -> dict[str, float]:
    """Return everything measured, by name."""
    server = Server(folder)
    found: dict[str, float] = {"streams": count, "events": events, "empty_start_s": server.start()}
    try:
        found["empty_resident_mb"] = resident_mb(server.pid)
        started_s = time.perf_counter()
        asyncio.run(create(server.address, count, progress=progress))
        found["created_per_s"] = count / (time.perf_counter() - started_s)
        if events:
            asyncio.run(write(server.address, events, progress=progress))
        found["resident_mb"] = resident_mb(server.pid)
        found["resident_peak_mb"] = peak_resident_mb(server.pid)
        server.end(signal.SIGKILL)
        found["start_after_kill_s"] = server.start()
        found["resident_after_kill_mb"] = resident_mb(server.pid)
        found["stop_s"] = server.end(signal.SIGTERM)
        found["start_s"] = server.start()
        found["start_processor_s"] = processor_s(server.pid)
        found["resident_after_start_mb"] = resident_mb(server.pid)
        found.update(asyncio.run(use(server.address, count)))
        found["folder_mb"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        found["checkpoint_mb"] = (folder / "containers" / "0000" / "checkpoint.db").stat().st_size / 1e6
    finally:
        server.end(signal.SIGTERM)
    return {name: round(value, 2) for name, value in found.items()}


def as_table(found: dict[str, float]) -> Table:
    """Return what was measured for people, with ratios to the limits: 1 or less is within."""
    table = Table(title=f"{found['streams']:,.0f} idle streams", title_justify="left")
    for column in ("what", "measured", "of the limit"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, value in found.items():
        limit = LIMIT_RESIDENT_MB if "resident" in name else LIMIT_START_S if name.startswith("start_") else None
        if name in ("empty_resident_mb", "start_processor_s"):
            limit = None
        table.add_row(name, f"{value:,.2f}", "" if limit is None else f"{value / limit:.2f}")
    return table


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=0, help="so many of them get an event each (default: none)")
    parser.add_argument("--folder", type=Path, help="where the data goes (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="millrace-million-"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            found = measure(folder, arguments.streams, events=arguments.events, progress=progress)
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            Console().print(as_table(found))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
