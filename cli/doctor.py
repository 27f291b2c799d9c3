"""`millrace doctor`: check whether this machine is suitable for a server."""

import asyncio
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from millrace.server.object_store import StoreUrl
from millrace.server.offline.disk import measure_synced_writes, probe_file
from millrace.server.offline.machine_checks import Check, disk_checks, machine_checks, store_checks
from millrace.server.offline.owners import OWNER_COLUMNS, OwnerRow
from millrace.server.offline.remote_history import checked_store
from millrace.wire.limits import KIB, MIB

from .connecting import JsonOption
from .output import print_json, print_table, progress

SYNCS_MAX: Final = 2000
_STYLES: Final = {"good": "green", "warning": "yellow", "bad": "bold red", "": ""}


def doctor(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder with the data, now or later.", exists=True, file_okay=False),
    ] = Path(),
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="How long to measure syncs.")] = 3.0,
    store: Annotated[
        str,
        typer.Option(metavar="URL", help="An object store to probe: s3://BUCKET/PREFIX.", show_default="none"),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Measure the sync latency of the disk, and check what else a server needs. Takes some seconds.

    With --store, also check whether an object store keeps its guarantees, and show who owns its containers; objects
    stored for the check are deleted again.

    Exits with 1 if a check is bad: data could be lost, or a server could not run.
    """
    url = StoreUrl.parse(checked_store(store)) if store else None
    with progress("measuring syncs", total=None) as update, probe_file(folder) as file:
        measure = partial(measure_synced_writes, file, count_max=SYNCS_MAX, on_write=partial(update, advance=1))
        small = measure(size_bytes=4 * KIB, duration_s=seconds)
        update(description="measuring large writes")
        large = measure(size_bytes=MIB, duration_s=seconds / 2)
        stored: list[Check] = []
        containers: list[OwnerRow] = []
        if url is not None:
            update(description="probing the object store")
            stored, containers = asyncio.run(store_checks(url))
    checks = [*disk_checks(folder, small, large), *stored, *machine_checks()]
    if as_json:
        document = {"folder": str(folder.resolve()), "checks": [asdict(check) for check in checks]}
        print_json(document | ({"containers": [asdict(owner) for owner in containers]} if url is not None else {}))
    else:
        print_table(
            ("", "what", "found", "advice"),
            [
                (Text(check.verdict, style=_STYLES[check.verdict]), check.name, check.found, check.advice)
                for check in checks
            ],
        )
        if containers:
            print_table(OWNER_COLUMNS, [owner.columns() for owner in containers], title="who owns the containers")
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)
