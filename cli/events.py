"""`millrace write`, `read` and `tail`: events in from lines, events out to lines."""

import base64
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Annotated, Any, Final

import typer

from millrace.client.write.accumulator import Stored
from millrace.model.event import Event
from millrace.model.limits import EVENT_SIZE_BYTES_MAX
from millrace.wire.limits import MIB

from .connecting import DEFAULT_ADDRESS, AddressOption, StreamArgument, TokenOption, connected
from .figures import count_text, duration_text, rate_text, size_text
from .key_fields import KeyFieldError, KeyOf, key_reader
from .output import print_done, print_json_line, print_note, progress
from .places import PLACES_HELP, parse_place, resolved

INPUT_BYTES: Final = 1 * MIB
BLOCKS_IN_FLIGHT_MAX: Final = 32

EventJsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object a line: value, key, timestamp and position.")
]
LimitOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Stop after so many events.", show_default="all")
]
KeysOption = Annotated[bool, typer.Option("--keys", help="Print the key and a tab before each value.")]


def write(
    stream: StreamArgument,
    key_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Route by this field of JSON lines, or by this column of CSV: its number from 1, or its name "
            "(then the first line is the header, and is not written).",
            show_default=False,
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="One key for all events.", show_default=False)] = None,
    address: AddressOption = DEFAULT_ADDRESS,
    token_file: TokenOption = None,
) -> None:
    """Write each line of standard input as an event; every one is durable when this returns.

    Lines are sent as they come, so `tail -f log | millrace write app/log` works. Empty lines are left out.
    """
    if key_field is not None and key is not None:
        raise typer.BadParameter("give either --key-field or --key")
    started_s = time.monotonic()
    count = size = 0
    with connected(address, token_file) as client, client.writer(stream) as writer:
        in_flight: deque[Future[Stored]] = deque()
        key_of: KeyOf | None = None
        line_number = 0
        # A progress bar would disturb typing.
        with progress(f"writing to {stream}", total=None, is_shown=not sys.stdin.isatty()) as steps:
            for lines in _line_groups():
                if key_field is not None and key_of is None and lines:
                    key_of, is_header = _key_reader(key_field, lines[0])
                    if is_header:
                        lines, line_number = lines[1:], 1
                keys = _keys(key_of, lines, line_number) if key_of else None
                line_number += len(lines)
                if lines:
                    in_flight.append(writer.write_many(lines, key=key, keys=keys))
                while in_flight and (in_flight[0].done() or len(in_flight) > BLOCKS_IN_FLIGHT_MAX):
                    in_flight.popleft().result()
                count += len(lines)
                size += sum(map(len, lines))
                steps.advance(len(lines))
        while in_flight:
            in_flight.popleft().result()
        writer.flush()
    elapsed_s = max(time.monotonic() - started_s, 1e-9)
    print_done(
        f"wrote {count_text(count, 'event')} ({size_text(size)}) to {stream} in {duration_text(elapsed_s)}, "
        f"{rate_text(count / elapsed_s)}"
    )


def read(
    stream: StreamArgument,
    start: Annotated[str, typer.Option("--from", metavar="PLACE", help=f"Where to start: {PLACES_HELP}.")] = "head",
    end: Annotated[
        str, typer.Option("--to", metavar="PLACE", help=f"Where to stop: {PLACES_HELP}; the tail is that of now.")
    ] = "tail",
    limit: LimitOption = None,
    as_json: EventJsonOption = False,
    with_keys: KeysOption = False,
    address: AddressOption = DEFAULT_ADDRESS,
    token_file: TokenOption = None,
) -> None:
    """Print the events between two cuts, a line each; those of one key in the order written."""
    first_place, last_place = parse_place(start), parse_place(end)
    with (
        connected(address, token_file) as client,
        client.reader(
            stream, start=resolved(client, stream, first_place), end=resolved(client, stream, last_place)
        ) as reader,
    ):
        count = _print_events(iter(reader), limit=limit, as_json=as_json, with_keys=with_keys)
        if count == limit and sys.stderr.isatty():
            print_note(f"read on with --from '{reader.position()}'")


def tail(
    stream: StreamArgument,
    start: Annotated[str, typer.Option("--from", metavar="PLACE", help=f"Where to start: {PLACES_HELP}.")] = "tail",
    limit: LimitOption = None,
    as_json: EventJsonOption = False,
    with_keys: KeysOption = False,
    address: AddressOption = DEFAULT_ADDRESS,
    token_file: TokenOption = None,
) -> None:
    """Print events as they become durable, until Ctrl-C or the end of a sealed stream."""
    place = parse_place(start)
    with (
        connected(address, token_file) as client,
        client.reader(stream, start=resolved(client, stream, place)) as reader,
    ):
        try:
            _print_events(iter(reader), limit=limit, as_json=as_json, with_keys=with_keys, at_once=True)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                print_note(f"\nread on with --from '{reader.position()}'")


def event_json(event: Event) -> dict[str, Any]:
    """Return an event as JSON knows it: a value that is not UTF-8 is given in base 64."""
    try:
        value = {"value": event.value.decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(event.value).decode()}
    return {
        **value,
        "key": event.key,
        "timestamp_us": event.timestamp_us,
        "segment": event.segment,
        "offset": event.offset,
        "index": event.index,
        "headers": {name: _header_json(header) for name, header in event.headers.items()},
    }


def _header_json(value: bytes) -> Any:
    """Return the value of a header: text, or an object with base 64 where it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _print_events(
    events: Iterator[Event], *, limit: int | None, as_json: bool, with_keys: bool, at_once: bool = False
) -> int:
    output = sys.stdout.buffer
    count = 0
    try:
        for event in events:
            if as_json:
                print_json_line(event_json(event))
            else:
                prefix = f"{event.key or ''}\t".encode() if with_keys else b""
                output.write(prefix + event.value + b"\n")
            count += 1
            if at_once:
                sys.stdout.flush()
            if count == limit:
                break
    finally:
        sys.stdout.flush()
    return count


def _line_groups() -> Iterator[list[bytes]]:
    """Yield the lines of standard input, as many at a time as there are, without their ends; empty ones are left out.

    Raises:
        typer.BadParameter: a line is longer than an event may be.
    """
    descriptor = sys.stdin.fileno()
    rest: list[bytes] = []
    rest_size = 0
    while data := os.read(descriptor, INPUT_BYTES):
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            rest.append(data)
            rest_size += len(data)
        else:
            whole = b"".join((*rest, head))
            yield [line for raw in whole.split(b"\n") if (line := raw.removesuffix(b"\r"))]
            rest, rest_size = [tail], len(tail)
        if rest_size > EVENT_SIZE_BYTES_MAX:
            raise typer.BadParameter(f"a line is longer than {size_text(EVENT_SIZE_BYTES_MAX)}, the most of an event")
    if last := b"".join(rest).removesuffix(b"\r"):
        yield [last]


def _key_reader(field: str, first_line: bytes) -> tuple[KeyOf, bool]:
    try:
        return key_reader(field, first_line)
    except KeyFieldError as error:
        raise typer.BadParameter(str(error), param_hint="--key-field") from None


def _keys(key_of: KeyOf, lines: list[bytes], line_number: int) -> list[str]:
    keys = []
    for index, line in enumerate(lines, start=1):
        try:
            keys.append(key_of(line))
        except KeyFieldError as error:
            raise typer.BadParameter(f"line {line_number + index}: {error}", param_hint="--key-field") from None
    return keys
