"""`millrace bench`: quick measurements of this machine and this server, beside the bare disk in the same run."""

import asyncio
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvloop

from millrace.cli.connecting import JsonOption
from millrace.cli.output import UpdateBar, print_json, print_note, print_table, progress
from millrace.client.client import Client, connect
from millrace.client.testing import server
from millrace.examples.running import ended_by_sigterm
from millrace.model.figures import duration_text, rate_text, size_text
from millrace.model.policy import StreamConfig
from millrace.server.offline.disk import SyncedWrites, measure_synced_writes, percentile, probe_file
from millrace.wire.limits import MIB

from .rows import (
    LARGE_OUTSTANDING,
    OUTSTANDING,
    SMALL_BYTES,
    Row,
    Unit,
    appends_one_by_one,
    bytes_back,
    events_back,
    events_back_as_arrow,
    events_in_blocks,
    events_one_by_one,
    pipelined_appends,
    round_trips,
)

STEPS: Final = 12
DISK_WRITES_MAX: Final = 100_000


def bench(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="[ADDRESS]", help="HOST:PORT of a running server; without it, one is started.", show_default=False
        ),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Where the bare disk is measured, and the started server keeps its data.",
            exists=True,
            file_okay=False,
        ),
    ] = Path(),
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="How long each row is measured.")] = 1.5,
    as_json: JsonOption = False,
) -> None:
    """Append and read as fast as one client can, and compare it with the bare disk. Takes about 20 seconds.

    Everything counted is durable. What is written is deleted at the end.
    """
    with ended_by_sigterm(), _server_at(address, folder) as place, progress("measuring", total=STEPS) as update:
        rows = uvloop.run(measure(place, folder=folder, duration_s=seconds, update=update))
    if as_json:
        print_json({"address": address or "", "folder": str(folder.resolve()), "rows": [_json(row) for row in rows]})
        return
    print_table(
        ("one client, one server", "measured", "beside it", "bare", "ratio"),
        [
            (
                row.name,
                _text(row, row.value),
                row.bare_name,
                _text(row, row.bare),
                f"{row.ratio:.2f}" if row.ratio else "",
            )
            for row in rows
        ],
        right=("measured", "bare", "ratio"),
    )
    if address is not None:
        print_note(f"bare figures are of this machine, in {folder.resolve()}")


async def measure(address: str, *, folder: Path, duration_s: float, update: UpdateBar) -> list[Row]:
    """Measure all rows against the server at `address`, and the disk under `folder`."""
    small, large = await asyncio.to_thread(_measure_disk, folder, duration_s, update)
    name = f"bench/{uuid.uuid4().hex[:12]}"
    async with connect(address) as client:
        await client.segments.create(f"{name}-small")
        await client.segments.create(f"{name}-large")
        await client.create_stream(f"{name}-events", StreamConfig())
        try:
            return await _measure_server(client, name, small, large, duration_s=duration_s, update=update)
        finally:
            await client.segments.delete(f"{name}-small")
            await client.segments.delete(f"{name}-large")
            await client.seal_stream(f"{name}-events")
            await client.delete_stream(f"{name}-events")


async def _measure_server(
    client: Client, name: str, small: SyncedWrites, large: SyncedWrites, *, duration_s: float, update: UpdateBar
) -> list[Row]:
    segment, large_segment, stream = f"{name}-small", f"{name}-large", f"{name}-events"
    rows: list[Row] = []

    def add(name: str, value: float, unit: Unit, bare: float | None = None, bare_name: str = "") -> None:
        rows.append(Row(name=name, value=value, unit=unit, bare=bare, bare_name=bare_name))
        update(advance=1)

    write, large_rate = f"write + sync of {SMALL_BYTES} B", large.rate * MIB
    round_trip_s = await round_trips(client, duration_s / 3)
    add("round trip without the disk, p50", round_trip_s, "s")
    times_s = await appends_one_by_one(client, segment, duration_s)
    floor_s = small.percentile_s(50) + round_trip_s
    add("append of 100 B, one at a time, p50", percentile(times_s, 50), "s", floor_s, f"{write}, round trip")
    add("append of 100 B, one at a time, p99", percentile(times_s, 99), "s", small.percentile_s(99), f"{write}, p99")
    rate = await pipelined_appends(client, segment, duration_s, size_bytes=SMALL_BYTES, outstanding=OUTSTANDING)
    add(f"appends of 100 B, {OUTSTANDING} on their way", rate, "/s", small.rate, "one sync for each")
    rate = await pipelined_appends(client, large_segment, duration_s, size_bytes=MIB, outstanding=LARGE_OUTSTANDING)
    beside = "synced writes of 1 MiB"
    add(f"appends of 1 MiB, {LARGE_OUTSTANDING} on their way", rate * MIB, "B/s", large_rate, beside)
    events = large_rate / SMALL_BYTES
    add("events of 100 B, write_many", await events_in_blocks(client, stream, duration_s), "/s", events, beside)
    add("events of 100 B, write", await events_one_by_one(client, stream, duration_s), "/s", events, beside)
    add("bytes back", await bytes_back(client, large_segment, duration_s), "B/s")
    if find_spec("pyarrow") is not None:
        add("events back, arrow_batches", await events_back_as_arrow(client, stream, duration_s), "/s")
    add("events back, async for", await events_back(client, stream, duration_s), "/s")
    return rows


def _measure_disk(folder: Path, duration_s: float, update: UpdateBar) -> tuple[SyncedWrites, SyncedWrites]:
    with probe_file(folder) as file:
        small = measure_synced_writes(file, size_bytes=SMALL_BYTES, duration_s=duration_s, count_max=DISK_WRITES_MAX)
        update(advance=1)
        large = measure_synced_writes(file, size_bytes=MIB, duration_s=duration_s, count_max=DISK_WRITES_MAX)
        update(advance=1)
    return small, large


@contextmanager
def _server_at(address: str | None, folder: Path) -> Iterator[str]:
    """Lend the address of the server that was named, or of one made for the occasion."""
    if address is not None:
        yield address
        return
    with (
        tempfile.TemporaryDirectory(prefix=".millrace-bench-", dir=folder) as data,
        server(Path(data), settings={}) as made,
    ):
        yield made.address


def _text(row: Row, value: float | None) -> str:
    if value is None:
        return ""
    if row.unit == "s":
        return duration_text(value)
    return f"{size_text(value)}/s" if row.unit == "B/s" else rate_text(value)


def _json(row: Row) -> dict[str, Any]:
    return {"name": row.name, "value": row.value, "unit": row.unit, "bare": row.bare, "ratio": row.ratio}
