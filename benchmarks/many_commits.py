"""Many small transactions to one segment: what they leave in memory and in the checkpoint, and what reading costs then.

    python -m benchmarks.many_commits --commits 100000

Of all that is measured after the first half and after all, but for the bytes themselves, nothing may grow: the limits
of the design are 5 MiB of resident set and 1 MiB of checkpoint for the second half of 100,000. Outcomes of transactions
are kept up to a bound (`--outcomes`), and are brought down to it once a minute; so each half is followed by a wait.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

import millrace

from .million_streams import Server, resident_mb

STREAM = "bench/commits"
OUTSTANDING = 64
EVENT = bytes(100)
FORGOTTEN_WITHIN_S = 180.0
LIMIT_RESIDENT_MB = 5 * 1.048576
LIMIT_CHECKPOINT_MB = 1.048576


async def commit(address: str, count: int) -> float:
    """Commit so many transactions of one event each, many at once; return how many a second."""
    numbers = iter(range(count))

    async def work(client: millrace.Client) -> None:
        for _ in numbers:
            async with client.transaction(STREAM) as transaction:
                _ = transaction.write(EVENT)

    async with millrace.connect(address) as client:
        await client.create_stream(STREAM)
        started_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(OUTSTANDING):
                group.create_task(work(client))
        return count / (time.perf_counter() - started_s)


async def read_s(address: str) -> float:
    """Return how long it takes to read the last thousand events, from a cut by their number."""
    async with millrace.connect(address) as client:
        info = await client.stream_info(STREAM)
        count = sum(segment.event_count for segment in info.segments)
        started_s = time.perf_counter()
        start = await client.stream_cut(STREAM, after_events=max(0, count - 1000))
        async with client.reader(STREAM, start=start, end=millrace.TAIL) as reader:
            events = [event async for event in reader]
        assert len(events) == min(count, 1000)
        return time.perf_counter() - started_s


def rows_of(checkpoint: Path) -> dict[str, int]:
    """Return how many rows some tables of a checkpoint have."""
    with closing(sqlite3.connect(f"{checkpoint.as_uri()}?mode=ro", uri=True)) as connection:
        tables = ("transactions", "segments", "links", "chunks")
        return {table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables}  # noqa: S608  # our own names


def measure(folder: Path, count: int, *, outcomes: int) -> list[dict[str, float]]:
    """Return what is measured after the first half of the commits, and after all."""
    server = Server(folder, {"MILLRACE_TRANSACTIONS_OUTCOMES_COUNT_MAX": str(outcomes)})
    checkpoint = folder / "containers" / "0000" / "checkpoint.db"
    found: list[dict[str, float]] = []
    done = 0
    server.start()
    try:
        for _ in range(2):
            commits_per_s = asyncio.run(commit(server.address, count // 2))
            deadline_s = time.monotonic() + FORGOTTEN_WITHIN_S
            done += count // 2
            while (rows := rows_of(checkpoint))["transactions"] != min(done, outcomes) or rows["links"]:
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"left in the checkpoint after {FORGOTTEN_WITHIN_S:g} s: {rows}")
                time.sleep(1.0)
            found.append(
                {
                    "commits_per_s": round(commits_per_s, 1),
                    "read_of_the_last_ms": round(asyncio.run(read_s(server.address)) * 1e3, 1),
                    "resident_mb": round(resident_mb(server.pid), 2),
                    "checkpoint_mb": round(checkpoint.stat().st_size / 1e6, 2),
                    **rows,
                }
            )
    finally:
        server.end(signal.SIGTERM)
    return found


def as_table(first: dict[str, float], second: dict[str, float], *, count: int) -> Table:
    """Return what was measured for people, with ratios to the limits: 1 or less is within."""
    table = Table(title=f"{count:,} commits of one event to one segment", title_justify="left")
    for column in ("what", "after half", "after all", "of the limit"):
        table.add_column(column, justify="left" if column == "what" else "right")
    limits = {"resident_mb": LIMIT_RESIDENT_MB, "checkpoint_mb": LIMIT_CHECKPOINT_MB}
    for name, value in second.items():
        ratio = f"{(value - first[name]) / limits[name]:.2f}" if name in limits else ""
        table.add_row(name, f"{first[name]:,}", f"{value:,}", ratio)
    return table


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--outcomes", type=int, default=10_000, help="so many outcomes are kept (default: 10,000)")
    parser.add_argument("--folder", type=Path, help="where the data goes (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="millrace-commits-"))
    try:
        first, second = measure(folder, arguments.commits, outcomes=arguments.outcomes)
        if arguments.json:
            print(json.dumps({"after_half": first, "after_all": second}, indent=2))
        else:
            Console().print(as_table(first, second, count=arguments.commits))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
