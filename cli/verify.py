"""`millrace verify`: check every byte of a data folder or an object store, and report damage."""

from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from millrace.model.figures import count_text, size_text
from millrace.server.offline.findings import Progress, Verification
from millrace.server.offline.remote_history import checked_store, store_of
from millrace.server.offline.verification import verify as verify_data

from .connecting import StoreOption
from .output import print_json, print_note, print_table, print_text, progress


def verify(
    data_dir: Annotated[
        Path | None, typer.Argument(help="The data folder of a server that is not running.", show_default=False)
    ] = None,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every byte of a data folder against its checksums, and that its files are consistent.

    Chunks and copies of checkpoints are read from the object store if the folder has its history there. With --store
    alone, check what could be restored from the store; a server may use it meanwhile.

    Exits with 1 if anything is damaged or missing, and names each file and offset. Changes nothing.
    """
    url = checked_store(store) if store else store_of(data_dir) if data_dir else ""
    if data_dir is None and not url:
        raise typer.BadParameter("pass a data folder, or an object store with --store")
    with progress("verifying", total=None, in_bytes=True) as update:

        def show(step: Progress) -> None:
            if step.total is not None:
                update(total=step.total)
            update(advance=step.size, description=f"verifying {step.what}".rstrip())

        result = Verification.of(verify_data(data_dir, store=url), on_progress=show)
    place = str(data_dir or url)
    if as_json:
        print_json({"path": place, "ok": not result.findings, **asdict(result)})
    else:
        _print(result, place)
    if result.findings:
        raise typer.Exit(1)


def _print(result: Verification, place: str) -> None:
    print_text(
        f"{place}: {count_text(result.segments, 'segment')}, "
        f"{count_text(result.batches, 'batch', 'batches')} of the log ({size_text(result.log_bytes)}), "
        f"{count_text(result.chunks, 'chunk')} ({size_text(result.chunk_bytes)})"
    )
    for note in result.notes:
        print_note(f"note: {note}")
    if not result.findings:
        print_text(Text("no damage found", style="green"))
        return
    print_table(
        ("file", "offset", "bytes", "what", "lost"),
        [astuple(finding) for finding in result.findings],
        title=f"{count_text(len(result.findings), 'problem')}",
    )
