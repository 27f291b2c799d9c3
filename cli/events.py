"""`millrace write`, `read` and `tail`: events in from lines, events out to lines."""

import os
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final

import typer

from millrace.client import blocking
from millrace.client.write.events import Stored
from millrace.client.write.options import WriterOptions
from millrace.model.cut import CHOICE_FORMS, parse_choice
from millrace.model.event import Event
from millrace.model.event_json import event_json
from millrace.model.limits import EVENT_SIZE_BYTES_MAX
from millrace.model.selection import is_pattern
from millrace.model.slice import Slice, is_slice
from millrace.wire.limits import MIB

from .connecting import Server, StreamArgument
from .figures import count_text, duration_text, rate_text, size_text
from .key_fields import KeyFieldError, KeyOf, key_reader
from .output import print_done, print_json_line, print_note, progress

INPUT_BYTES: Final = 1 * MIB
BLOCKS_IN_FLIGHT_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Printing:
    """How events are printed, and how many of them."""

    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many events.", show_default="all")
    ] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: value, key, timestamp and position.")
    ] = False
    with_keys: Annotated[bool, typer.Option("--keys", help="Print the key and a tab before each value.")] = False
    with_names: Annotated[
        bool, typer.Option("--names", help="Print the stream and a tab before each value, where there are several.")
    ] = False

    def print(
        self, events: Iterable[Event], *, at_once: bool = False, stream_of: Callable[[Event], str] | None = None
    ) -> int:
        """Print events up to the limit; return how many.

        Args:
            at_once: print each before the next one is waited for.
            stream_of: returns the stream of an event, where there are several.
        """
        count = 0
        try:
            for event in islice(events, self.limit):
                stream = stream_of(event) if stream_of is not None else None
                if self.as_json:
                    print_json_line(event_json(event) | ({"stream": stream} if stream is not None else {}))
                else:
                    prefix = f"{stream}\t" if self.with_names and stream is not None else ""
                    prefix += f"{event.key or ''}\t" if self.with_keys else ""
                    sys.stdout.buffer.write(prefix.encode() + event.value + b"\n")
                count += 1
                if at_once:
                    sys.stdout.flush()
        finally:
            sys.stdout.flush()
        return count


def write(
    server: Server,
    stream: StreamArgument,
    key_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Route by this field of JSON lines, or by this column of CSV: its number from 1, or its name "
            "(then the first line is the header, and is not written).",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="One key for all events.")] = None,
    writer_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Resume: the same input, given again from its first line under the same ID, is continued where it "
            "ended, and each line is stored once.",
        ),
    ] = None,
) -> None:
    """Write each line of standard input as an event; every one is durable when this returns.

    Lines are sent as they come, so `tail -f log | millrace write app/log` works. Empty lines are left out.
    """
    if key_field is not None and key is not None:
        raise typer.BadParameter("give either --key-field or --key")
    started_s = time.monotonic()
    count = size = 0
    options = WriterOptions(delivery_timeout_s=server.outage_timeout_s)
    with (
        # A progress bar would disturb typing.
        progress(f"writing to {stream}", total=None, is_shown=not sys.stdin.isatty()) as update,
        server.connect(on_waiting=update.show_waiting) as client,
        client.writer(stream, writer_id=writer_id, options=options) as writer,
    ):
        stored_through = writer.stored_through
        in_flight: deque[Future[Stored]] = deque()
        key_of: KeyOf | None = None
        for group in _line_groups():
            if key_field is not None and key_of is None:
                key_of, is_header = key_reader(key_field, group.lines[0])
                if is_header:
                    group = group.after(group.numbers[0])
            group = group.after(stored_through)
            # The number of a line is the sequence of its event; so those of an append follow without a gap.
            for part in group.runs() if writer_id is not None else [group]:
                if part.lines:
                    keys = _keys(key_of, part) if key_of else None
                    first_sequence = part.numbers[0] if writer_id is not None else None
                    in_flight.append(writer.write_many(part.lines, key=key, keys=keys, first_sequence=first_sequence))
                while in_flight and (in_flight[0].done() or len(in_flight) > BLOCKS_IN_FLIGHT_MAX):
                    in_flight.popleft().result()
            count += len(group.lines)
            size += sum(map(len, group.lines))
            update(advance=len(group.lines))
        while in_flight:
            in_flight.popleft().result()
    elapsed_s = max(time.monotonic() - started_s, 1e-9)
    resumed = f", after line {stored_through:,}, through which all was stored" if stored_through > 0 else ""
    print_done(
        f"wrote {count_text(count, 'event')} ({size_text(size)}) to {stream} in {duration_text(elapsed_s)}, "
        f"{rate_text(count / elapsed_s)}{resumed}"
    )


StreamsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="STREAM...",
        help="Streams, patterns like `plant/sensor-*`, and slices like `shop/orders@head..tail#customer-3`, which have "
        "start, end and key in them.",
    ),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only the events of this key.", show_default="all")
]


def read(
    server: Server,
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
            help=f"Where to stop: {CHOICE_FORMS}; the tail is that of now.",
            show_default="tail",
        ),
    ] = None,
    key: KeyOption = None,
    *,
    printing: Printing,
) -> None:
    """Print the events between two cuts, a line each; those of one key in the order written."""
    asked = _Asked(streams, start=start, end=end, key=key, start_default="head", end_default="tail")
    with server.connect() as client, asked.open(client) as reader:
        count = _print(printing, reader)
        if count == printing.limit and sys.stderr.isatty():
            _print_position(reader)


def tail(
    server: Server,
    streams: StreamsArgument,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help=f"Where to start: {CHOICE_FORMS}.", show_default="tail"),
    ] = None,
    key: KeyOption = None,
    *,
    printing: Printing,
) -> None:
    """Print events as they become durable, until Ctrl-C or the end of a sealed stream.

    Streams that come to match a pattern join from their heads on.
    """
    asked = _Asked(streams, start=start, end=None, key=key, start_default="tail", end_default=None)
    with server.connect() as client, asked.open(client) as reader:
        try:
            _print(printing, reader, at_once=True)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                _print_position(reader)


AnyReader = blocking.Reader | blocking.StreamsReader


class _Asked:
    """What is to be read, as it was given on the command line: checked before the server is asked.

    Raises:
        typer.BadParameter, InvalidArgumentError: it is nothing that can be read.
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
            raise typer.BadParameter("a slice has a start, an end and a key of its own")
        self._start = parse_choice(start or start_default)
        last = end or end_default
        self._end = parse_choice(last) if last else None
        self._key = key

    def open(self, client: blocking.Client) -> AnyReader:
        """Return a reader of it."""
        first, *others = self._parts
        if isinstance(first, Slice) and not others:
            return client.reader(first)
        if isinstance(first, str) and not others and not is_pattern(first):
            return client.reader(first, start=self._start, end=self._end, key=self._key)
        return client.reader(self._parts, start=self._start, end=self._end, key=self._key)


def _print(printing: Printing, reader: AnyReader, *, at_once: bool = False) -> int:
    stream_of = reader.stream_of if isinstance(reader, blocking.StreamsReader) else None
    return printing.print(reader, at_once=at_once, stream_of=stream_of)


def _print_position(reader: AnyReader) -> None:
    cuts = reader.positions().values() if isinstance(reader, blocking.StreamsReader) else [reader.position()]
    for cut in cuts:
        print_note(f"read on with --from '{cut}'")


@dataclass(frozen=True, slots=True)
class _Group:
    """Some lines of the input that are not empty, and their numbers, counted from 1."""

    numbers: Sequence[int]
    lines: list[bytes]

    def after(self, number: int) -> "_Group":
        """Return the lines of higher numbers."""
        start = bisect_right(self.numbers, number)
        return self if start == 0 else _Group(self.numbers[start:], self.lines[start:])

    def runs(self) -> "Iterator[_Group]":
        """Yield the lines in parts of which each has no empty line in it."""
        start = 0
        for end in range(1, len(self.lines) + 1):
            if end == len(self.lines) or self.numbers[end] != self.numbers[end - 1] + 1:
                yield _Group(self.numbers[start:end], self.lines[start:end])
                start = end


def _line_groups() -> Iterator[_Group]:
    """Yield the lines of standard input, as many at a time as there are, without their ends.

    Raises:
        typer.BadParameter: a line is longer than an event may be.
    """
    descriptor = sys.stdin.fileno()
    rest = b""
    number = 1
    while data := os.read(descriptor, INPUT_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        if group := _group(number, whole):
            yield group
        number += len(whole)
        if len(rest) > EVENT_SIZE_BYTES_MAX:
            raise typer.BadParameter(f"a line is longer than {size_text(EVENT_SIZE_BYTES_MAX)}, the most of an event")
    if group := _group(number, [rest]):
        yield group


def _group(number: int, lines: list[bytes]) -> _Group | None:
    """Return the lines from a number on that are not empty, None if all are."""
    lines = [line.removesuffix(b"\r") for line in lines]
    if all(lines):
        return _Group(range(number, number + len(lines)), lines) if lines else None
    kept = [(each, line) for each, line in enumerate(lines, start=number) if line]
    return _Group([each for each, _ in kept], [line for _, line in kept]) if kept else None


def _keys(key_of: KeyOf, group: _Group) -> list[str]:
    keys = []
    for number, line in zip(group.numbers, group.lines, strict=True):
        try:
            keys.append(key_of(line))
        except KeyFieldError as error:
            raise KeyFieldError(f"line {number}: {error}") from None
    return keys
