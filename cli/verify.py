"""`millrace verify`: go through a data folder and name what is not as it was written."""

from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from .figures import count_text, size_text
from .output import print_json, print_note, print_table, print_text, progress
from .verification import Verification, bytes_to_read, owned_folder, verify_folder


def verify(
    data_dir: Annotated[Path, typer.Argument(help="The data folder of a server that is not running.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every byte of a data folder against its checksums, and that its files fit together.

    Exits with 1 when anything is damaged or missing, and names each file and offset. Changes nothing.
    """
    with owned_folder(data_dir), progress("verifying", total=bytes_to_read(data_dir), in_bytes=True) as update:

        def on_step(what: str, size: int) -> None:
            update(advance=size, description=f"verifying {what}")

        result = verify_folder(data_dir, on_step=on_step)
    if as_json:
        print_json({"path": str(data_dir), "ok": not result.findings, **asdict(result)})
    else:
        _print(result, data_dir)
    if result.findings:
        raise typer.Exit(1)


def _print(result: Verification, data_dir: Path) -> None:
    print_text(
        f"{data_dir}: {count_text(result.segments, 'segment')}, "
        f"{count_text(result.batches, 'batch', 'batches')} of the log ({size_text(result.log_bytes)}), "
        f"{count_text(result.chunks, 'chunk')} ({size_text(result.chunk_bytes)})"
    )
    for note in result.notes:
        print_note(f"note: {note}")
    if not result.findings:
        print_text(Text("everything is as it was written", style="green"))
        return
    print_table(
        ("file", "offset", "bytes", "what", "lost"),
        [astuple(finding) for finding in result.findings],
        title=f"{count_text(len(result.findings), 'problem')}",
    )
