"""`millrace read` and `tail`: events out to lines."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.client import blocking
from millrace.model.cut import CHOICE_FORMS, StreamCut, parse_choice
from millrace.model.position import Position
from millrace.model.selection import is_pattern
from millrace.model.slice import Slice, is_slice

from .connecting import ServerTarget, complete_stream
from .output import print_note

if TYPE_CHECKING:
    import pyarrow as pa

AnyReader = blocking.Reader | blocking.StreamsReader


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """Output format, and number of events."""

    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this number of events.", show_default="all")
    ] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line: value, key, time, position, headers.")
    ] = False
    with_keys: Annotated[
        bool,
        typer.Option("--keys", help="Print the key and a tab before each value; a tab in a key is printed as \\t."),
    ] = False
    with_names: Annotated[
        bool, typer.Option("--names", help="With several streams, print the name and a tab before each value.")
    ] = False

    def print(self, reader: AnyReader, *, at_once: bool = False) -> "pa.RecordBatch | None":
        """Print events up to the limit; return the rest of the last batch, None without a limit or below it.

        Args:
            at_once: print each batch before waiting for the next one.
        """
        from .batch_lines import json_lines, plain_lines

        left = sys.maxsize if self.limit is None else self.limit
        out = sys.stdout.buffer
        sys.stdout.flush()
        for batch in reader.arrow_batches():
            shown = batch.slice(0, left)
            if self.as_json:
                out.write(json_lines(shown))
            else:
                out.write(plain_lines(shown, with_keys=self.with_keys, with_names=self.with_names))
            left -= shown.num_rows
            if at_once:
                out.flush()
            if not left:
                return batch.slice(shown.num_rows)
        return None


StreamsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="STREAM...",
        help="Names of streams, patterns like `plant/sensor-*`, or slices like `shop/orders@head..tail#customer-3`, "
        "which contain start, end and key.",
        autocompletion=complete_stream,
    ),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only the events of this key.", show_default="all")
]


def read(
    server: ServerTarget,
    streams: StreamsArgument,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help=f"Where to start: {CHOICE_FORMS}.", show_default="head"),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help=f"Where to stop: {CHOICE_FORMS}. The tail is as it is now.",
            show_default="tail",
        ),
    ] = None,
    key: KeyOption = None,
    *,
    printing: PrintOptions,
) -> None:
    """Print the events between two places, one per line. Events of one key are in the order written."""
    asked = _ReadRequest(streams, start=start, end=end, key=key, start_default="head", end_default="tail")
    with server.connect() as client, asked.open(client) as reader:
        rest = printing.print(reader)
        if rest is not None and sys.stderr.isatty():
            _print_position(reader, rest)


def tail(
    server: ServerTarget,
    streams: StreamsArgument,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help=f"Where to start: {CHOICE_FORMS}.", show_default="tail"),
    ] = None,
    key: KeyOption = None,
    *,
    printing: PrintOptions,
) -> None:
    """Print events as they become durable, until Ctrl-C or the end of a sealed stream.

    New streams that match a pattern are added from their heads.
    """
    asked = _ReadRequest(streams, start=start, end=None, key=key, start_default="tail", end_default=None)
    with server.connect() as client, asked.open(client) as reader:
        try:
            printing.print(reader, at_once=True)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                _print_position(reader)


class _ReadRequest:
    """The streams and places of the command line, checked before the server is called.

    Raises:
        typer.BadParameter, InvalidArgumentError: they are invalid.
    """

    def __init__(
        self,
        streams: Sequence[str],
        *,
        start: str | None,
        end: str | None,
        key: str | None,
        start_default: str,
        end_default: str | None,
    ) -> None:
        self._parts = [Slice.parse(text) if is_slice(text) else text for text in streams]
        if isinstance(self._parts[0], Slice) and len(streams) == 1 and (start or end or key is not None):
            raise typer.BadParameter("a slice has its own start, end and key")
        self._start = parse_choice(start or start_default)
        last = end or end_default
        self._end = parse_choice(last) if last else None
        self._key = key

    def open(self, client: blocking.Client) -> AnyReader:
        """Return a reader for the request."""
        first, *others = self._parts
        if isinstance(first, Slice) and not others:
            return client.reader(first)
        if isinstance(first, str) and not others and not is_pattern(first):
            return client.reader(first, start=self._start, end=self._end, key=self._key)
        return client.reader(self._parts, start=self._start, end=self._end, key=self._key)


def _print_position(reader: AnyReader, rest: "pa.RecordBatch | None" = None) -> None:
    """Print where to continue reading.

    Args:
        rest: events that were read but not printed.
    """
    cuts = reader.positions().values() if isinstance(reader, blocking.StreamsReader) else [reader.position()]
    for cut in cuts:
        print_note(f"continue with --from '{cut if rest is None else before(cut, rest)}'")


def before(cut: StreamCut, rest: "pa.RecordBatch") -> StreamCut:
    """Return the cut before the events of the last batch, given the cut after them."""
    segments, offsets, indexes = (rest.column(name).to_pylist() for name in ("segment", "offset", "index"))
    places = dict(cut.positions)
    # Backwards, so that the first event of each segment remains. With several streams a batch is of one of them.
    for segment_id, offset, event_index in zip(reversed(segments), reversed(offsets), reversed(indexes), strict=True):
        if segment_id in places:
            places[segment_id] = Position(offset, event_index)
    return StreamCut.of(cut.stream, places)
