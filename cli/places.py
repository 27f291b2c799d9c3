"""Places in a stream as they are named on the command line.

`head`, `tail`, a cut as `stream info` prints it, `bookmark:NAME`, `cursor:NAME`, a time (`2026-01-31T18:00:00Z`), or a
time ago (`15m ago`).
"""

import time
from dataclasses import dataclass
from typing import Final

import typer

from millrace.client import blocking
from millrace.model.cut import Cut, parse_cut

from .quantities import parse_time

PLACES_HELP: Final = "head, tail, a cut, bookmark:NAME, cursor:NAME, a time, or `15m ago`"
KINDS: Final = ("bookmark", "cursor")


@dataclass(frozen=True, slots=True)
class SavedName:
    """A place that the server keeps under a name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Moment:
    """The place of the first event at or after a time, in Unix microseconds."""

    unix_us: int


Place = Cut | SavedName | Moment


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
        return SavedName(kind, name)
    if "@" in text or text.lower() in ("head", "tail"):
        return parse_cut(text)
    try:
        return Moment(parse_time(text, now_us=time.time_ns() // 1000))
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{text!r} is no place in a stream ({PLACES_HELP}): {error}") from None


def resolved(client: blocking.Client, stream: str, place: Place) -> Cut:
    """Return the cut of a place; the server is asked only where a name or a time needs it.

    Raises:
        typer.BadParameter: the stream has no bookmark or cursor of that name.
        StreamNotFoundError: there is no such stream.
    """
    if isinstance(place, Moment):
        return client.stream_cut(stream, at_time=place.unix_us)
    if not isinstance(place, SavedName):
        return place
    saved = client.bookmarks(stream) if place.kind == "bookmark" else client.cursors(stream)
    cut = saved.get(place.name)
    if cut is None:
        raise typer.BadParameter(f"{stream} has no {place.kind} {place.name!r}; `millrace cut list` shows what it has")
    return cut
