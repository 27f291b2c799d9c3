"""`millrace cut`: named places in a stream, kept by the server."""

from typing import Annotated

import typer

from millrace.model.cut import CHOICE_FORMS, parse_choice
from millrace.model.figures import duration_text, time_text

from .connecting import JsonOption, ServerTarget, StreamArgument
from .option_groups import Commands
from .output import picked, print_done, print_json, print_note, print_table, print_text

app = Commands(no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the bookmark or cursor.")]


@app.command()
def save(
    server: ServerTarget,
    stream: StreamArgument,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the bookmarks or cursors.")],
    at: Annotated[str, typer.Option(metavar="PLACE", help=f"The place: {CHOICE_FORMS}.")] = "tail",
    as_cursor: Annotated[
        bool,
        typer.Option(
            "--cursor",
            help="Save a cursor: how far a consumer has read. Retention by consumption keeps what is after it.",
        ),
    ] = False,
) -> None:
    """Save a place under one or more names, as bookmarks or cursors. Existing ones with the same names are replaced."""
    place = parse_choice(at)
    with server.connect() as client:
        cuts = dict.fromkeys(names, place)
        saved = client.cursors(stream).set_many(cuts) if as_cursor else client.bookmarks(stream).save_many(cuts)
    for name in saved:
        print_done(f"saved {'cursor' if as_cursor else 'bookmark'} {name} of {stream}")
    print_text(str(saved[names[0]]))


@app.command("list")
def list_cuts(server: ServerTarget, stream: StreamArgument, as_json: JsonOption = False) -> None:
    """List the saved places of a stream."""
    with server.connect() as client:
        found = [("bookmark", saved) for saved in client.bookmarks(stream).list()]
        found += [("cursor", saved) for saved in client.cursors(stream).list()]
    found.sort(key=lambda item: (item[1].name, item[0]))
    if as_json:
        print_json(
            [
                {"kind": kind, "cut": str(saved.cut), **picked(saved, "name", "saved_us", "hold_s")}
                for kind, saved in found
            ]
        )
        return
    print_table(
        ("name", "kind", "saved", "holds for", "cut"),
        [
            (
                saved.name,
                kind,
                time_text(saved.saved_us),
                duration_text(saved.hold_s) if saved.hold_s else "",
                str(saved.cut),
            )
            for kind, saved in found
        ],
    )


@app.command()
def forget(
    server: ServerTarget,
    stream: StreamArgument,
    name: NameArgument,
    is_cursor: Annotated[
        bool, typer.Option("--cursor", help="Forget the cursor of that name, not the bookmark.")
    ] = False,
) -> None:
    """Delete a saved place; the events stay."""
    kind = "cursor" if is_cursor else "bookmark"
    with server.connect() as client:
        saved = client.cursors(stream) if is_cursor else client.bookmarks(stream)
        if saved.forget(name):
            print_done(f"forgot {kind} {name} of {stream}")
        else:
            print_note(f"{stream} has no {kind} {name}; nothing was changed")
