"""`millrace inspect`: decode any file of a server, or all of them, for people. Offline."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from millrace.model.errors import InvalidArgumentError
from millrace.server.offline.inspect_path import DEFAULT_LIMIT, inspect_path, inspect_store
from millrace.server.offline.remote_history import checked_store
from millrace.server.offline.report import Report, shown

from .connecting import StoreOption
from .output import print_facts, print_json, print_table, print_text


def inspect(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A log file, a chunk, a checkpoint or a part of its copy, or a data folder; an object in the --store.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    with_hex: Annotated[bool, typer.Option("--hex", help="Show every field with its offset and bytes.")] = False,
    at: Annotated[
        int,
        typer.Option(
            min=0, metavar="OFFSET", help="Start at this byte of a log file, or this segment offset of a chunk."
        ),
    ] = 0,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many rows of each table to show; 0 for all.")
    ] = DEFAULT_LIMIT,
) -> None:
    """Show the decoded content of a server's file.

    With --store alone, list the chunks and copies of checkpoints in an object store, and the owners of its containers;
    with the name of an object, fetch and show it.

    Reads only, and needs no server. Exits with 1 if anything does not match its checksum.
    """
    if store:
        report = inspect_store(checked_store(store), path, with_hex=with_hex, at=at, limit=limit)
    elif path is not None and path.exists():
        try:
            report = inspect_path(path, with_hex=with_hex, at=at, limit=limit)
        except InvalidArgumentError as error:
            raise typer.BadParameter(str(error)) from None
    else:
        raise typer.BadParameter(f"{path} does not exist" if path else "pass a file, a folder, or a store with --store")
    print_report(report, as_json=as_json)
    if report.problems:
        raise typer.Exit(1)


def print_report(report: Report, *, as_json: bool) -> None:
    """Print a report."""
    if as_json:
        print_json(report.to_json())
        return
    print_text(Text.assemble((report.kind, "bold"), f"  {report.path}"))
    print_facts({name: shown(name, value) for name, value in report.facts.items()})
    for section in report.sections:
        print_text("")
        rows = [
            [shown(column, value) for column, value in zip(section.columns, row, strict=True)] for row in section.rows
        ]
        print_table(section.columns, rows, title=section.title)
        if section.omitted:
            print_text(Text(f"... and {section.omitted:,} more (--limit 0 shows all)", style="dim"))
    if report.notes or report.problems:
        print_text("")
    for note in report.notes:
        print_text(Text(note, style="dim"))
    for problem in report.problems:
        print_text(Text.assemble(("problem: ", "bold red"), problem))
