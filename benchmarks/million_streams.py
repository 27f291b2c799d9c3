"""A million idle streams: how fast they are created, what they cost in memory, how long a start with them takes.

    python -m benchmarks.million_streams --streams 1000000

Each stream is created by a request of its own and is one durable record. Memory is the resident set of the server
process; a start lasts from the process to the line that says that it serves. It is measured after an orderly stop and
after a kill.
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
from pathlib import Path

import millrace
from millrace.client.client import Client

OUTSTANDING = 512


def resident_mb(pid: int) -> float:
    """Return the resident set of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far: what a start costs on a machine that others use too."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def create(address: str, count: int) -> None:
    """Create streams, many requests under way at once."""
    numbers = iter(range(count))

    async def work(client: Client) -> None:
        for number in numbers:
            await client.create_stream(f"scope-{number % 100}/stream-{number:07d}")

    async with millrace.connect(address) as client, asyncio.TaskGroup() as group:
        for _ in range(OUTSTANDING):
            group.create_task(work(client))


async def use(address: str, count: int) -> dict[str, float]:
    """Return how long a page of the list takes, and one durable event of one stream among all."""
    async with millrace.connect(address) as client:
        await client.ping()
        started_s = time.perf_counter()
        names = client.list_streams("scope-42/")
        async for _ in names:
            break
        await names.aclose()  # type: ignore[attr-defined]  # it is a generator
        listed_s = time.perf_counter()
        async with client.writer(f"scope-{(count - 1) % 100}/stream-{count - 1:07d}") as writer:
            for _ in range(20):
                await writer.write(b"event", key="key")
        written_s = time.perf_counter()
    return {"list_page_ms": (listed_s - started_s) * 1e3, "write_ms": (written_s - listed_s) / 20 * 1e3}


class Server:
    """A server process, waited for as long as it takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = json.loads(self._process.stdout.readline())["address"]
        return time.perf_counter() - started_s

    def end(self, number: signal.Signals) -> float:
        """End it by a signal; return after how many seconds it was gone."""
        if self._process is None:
            return 0.0
        started_s = time.perf_counter()
        self._process.send_signal(number)
        self._process.communicate()
        self._process = None
        return time.perf_counter() - started_s


def measure(folder: Path, count: int) -> dict[str, float]:
    """Return everything measured, by name."""
    server = Server(folder)
    found: dict[str, float] = {"streams": count, "empty_start_s": server.start()}
    try:
        found["empty_resident_mb"] = resident_mb(server.pid)
        started_s = time.perf_counter()
        asyncio.run(create(server.address, count))
        found["created_per_s"] = count / (time.perf_counter() - started_s)
        found["resident_mb"] = resident_mb(server.pid)
        server.end(signal.SIGKILL)
        found["start_after_kill_s"] = server.start()
        found["resident_after_kill_mb"] = resident_mb(server.pid)
        found["stop_s"] = server.end(signal.SIGTERM)
        found["start_s"] = server.start()
        found["start_processor_s"] = processor_s(server.pid)
        found["resident_after_start_mb"] = resident_mb(server.pid)
        found.update(asyncio.run(use(server.address, count)))
        found["folder_mb"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        found["checkpoint_mb"] = sum(path.stat().st_size for path in folder.rglob("checkpoint.db*")) / 1e6
    finally:
        server.end(signal.SIGTERM)
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the data goes (default: a temporary folder)")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="millrace-million-"))
    try:
        print(json.dumps(measure(folder, arguments.streams), indent=2))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
