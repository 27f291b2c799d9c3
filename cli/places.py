"""Places in a stream as they are named on the command line.

`head`, `tail`, a cut as `stream info` prints it, `bookmark:NAME`, `cursor:NAME`, a time (`2026-01-31T18:00:00Z`), or a
time ago (`15m ago`).
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import typer

from millrace.client import blocking
from millrace.model.cut import CutChoice, StreamCut, TimeCut, parse_cut
from millrace.model.errors import InvalidArgumentError
from millrace.model.quantities import parse_time

PLACES_HELP: Final = "head, tail, a cut, bookmark:NAME, cursor:NAME, a time, or `15m ago`"
KINDS: Final = ("bookmark", "cursor")


Place = Callable[[blocking.Client, str], CutChoice]
"""Returns the place in a stream; the server is asked only where a name needs it.

Raises:
    typer.BadParameter: the stream has no bookmark or cursor of that name.
    StreamNotFoundError: there is no such stream.
"""


def parse_place(text: str) -> Place:
    """Return what a text names, without asking a server.

    Raises:
        CutInvalidError: it has the form of a cut, and is none.
        typer.BadParameter: it names nothing.
    """
    text = text.strip()
    kind, colon, name = text.partition(":")
    if colon and kind in KINDS:
        if not name:
            raise typer.BadParameter(f"{text!r} lacks the name of the {kind}")
        return partial(_saved_cut, kind=kind, name=name)
    if "@" in text or text.lower() in ("head", "tail"):
        cut = parse_cut(text)
        return lambda _client, _stream: cut
    try:
        unix_us = parse_time(text, now_us=time.time_ns() // 1000)
    except InvalidArgumentError as error:
        raise typer.BadParameter(f"{text!r} is no place in a stream ({PLACES_HELP}): {error}") from None
    return lambda _client, _stream: TimeCut(unix_us)


def _saved_cut(client: blocking.Client, stream: str, *, kind: str, name: str) -> StreamCut:
    saved = client.bookmarks(stream) if kind == "bookmark" else client.cursors(stream)
    cut = saved.get(name)
    if cut is None:
        raise typer.BadParameter(f"{stream} has no {kind} {name!r}; `millrace cut list` shows what it has")
    return cut
