"""A million idle streams: how fast they are created, what they cost in memory, how long a start with them takes.

    python -m benchmarks.million_streams --streams 1000000

Each stream is created by a request of its own and is one durable record. Memory is the resident set of the server
process; a start lasts from the process to the line that says that it serves. It is measured after an orderly stop and
after a kill.
"""

import argparse
import asyncio
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path

import millrace
from millrace.client.client import Client
from millrace.client.testing import TestServer

OUTSTANDING = 512


def resident_mb(pid: int) -> float:
    """Return the resident set of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


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


def started(server: TestServer) -> float:
    """Start the server; return how long that took, in seconds."""
    started_s = time.perf_counter()
    server.start()
    return time.perf_counter() - started_s


def measure(folder: Path, count: int) -> dict[str, float]:
    """Return everything measured, by name."""
    server = TestServer(folder, settings={})
    found: dict[str, float] = {"streams": count, "empty_start_s": started(server)}
    try:
        found["empty_resident_mb"] = resident_mb(server.pid)
        started_s = time.perf_counter()
        asyncio.run(create(server.address, count))
        found["created_per_s"] = count / (time.perf_counter() - started_s)
        found["resident_mb"] = resident_mb(server.pid)
        server.kill()
        found["start_after_kill_s"] = started(server)
        found["resident_after_kill_mb"] = resident_mb(server.pid)
        started_s = time.perf_counter()
        server.stop()
        found["stop_s"] = time.perf_counter() - started_s
        found["start_s"] = started(server)
        found["resident_after_start_mb"] = resident_mb(server.pid)
        found.update(asyncio.run(use(server.address, count)))
        found["folder_mb"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        found["checkpoint_mb"] = sum(path.stat().st_size for path in folder.rglob("checkpoint.db*")) / 1e6
    finally:
        server.stop()
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
