"""`millrace segment`: create, append to, read, show, seal, truncate and delete raw segments."""

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from millrace.client.admin.segments import SegmentInfo
from millrace.model.figures import count_text, size_text, time_text
from millrace.wire.limits import MIB

from .connecting import JsonOption, ServerTarget
from .option_groups import Commands
from .output import print_done, print_facts, print_json, print_note, print_table, progress

app = Commands(no_args_is_help=True)

APPEND_BYTES = 1 * MIB

SegmentArgument = Annotated[str, typer.Argument(metavar="SEGMENT", help="Name of the segment: SCOPE/NAME.")]


@app.command()
def create(server: ServerTarget, segment: SegmentArgument) -> None:
    """Create a segment."""
    with server.connect() as client:
        client.segments.create(segment)
    print_done(f"created {segment}")


@app.command()
def append(
    server: ServerTarget,
    segment: SegmentArgument,
    text: Annotated[str | None, typer.Argument(help="The text to append; without it, all of standard input.")] = None,
    expected_offset: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Append only if the segment has this length.")
    ] = None,
) -> None:
    """Append bytes and print the offset of the first one. Once it is printed, they are durable.

    Standard input is appended in pieces of 1 MiB, each atomically.
    """
    if text is not None:
        with server.connect() as client:
            print(client.segments.append(segment, text.encode(), expected_offset=expected_offset))
        return
    first = None
    with (
        progress(f"appending to {segment}", total=None, in_bytes=True) as update,
        server.connect(on_waiting=update.show_waiting) as client,
    ):
        while data := sys.stdin.buffer.read(APPEND_BYTES):
            offset = client.segments.append(segment, data, expected_offset=expected_offset)
            first = offset if first is None else first
            expected_offset = offset + len(data) if expected_offset is not None else None
            update(advance=len(data))
    if first is None:
        print_note("standard input was empty; nothing was appended")
    else:
        print(first)


@app.command()
def read(
    server: ServerTarget,
    segment: SegmentArgument,
    offset: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="Where to start.", show_default="the start")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How much to read.", show_default="to the tail")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new bytes and print them.")] = False,
) -> None:
    """Write the bytes of a segment to standard output."""
    with server.connect() as client:
        found = client.segments.info(segment)
        position = found.start_offset if offset is None else offset
        available = None if follow else found.length - position
        left = min((most for most in (max_bytes, available) if most is not None), default=None)
        if left == 0:
            return
        for result in client.segments.tail(segment, position):
            sys.stdout.buffer.write(result.data[:left])
            sys.stdout.buffer.flush()
            if left is not None and (left := left - len(result.data)) <= 0:
                return


@app.command()
def info(server: ServerTarget, segment: SegmentArgument, as_json: JsonOption = False) -> None:
    """Show a segment."""
    with server.connect() as client:
        found = client.segments.info(segment)
    if as_json:
        print_json(asdict(found))
        return
    print_facts({**dict(zip(_COLUMNS, _row(found), strict=True)), "size": size_text(found.length - found.start_offset)})


@app.command("list")
def list_segments(
    server: ServerTarget,
    prefix: Annotated[str, typer.Argument(help="Only names that start with this.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List segments, including those of streams (whose names contain a `#`)."""
    with server.connect() as client:
        found = list(client.segments.list(prefix))
    if as_json:
        print_json([asdict(segment) for segment in found])
        return
    print_table(_COLUMNS, [_row(segment) for segment in found])


@app.command()
def seal(server: ServerTarget, segment: SegmentArgument) -> None:
    """Seal a segment: it accepts no more appends, forever."""
    with server.connect() as client:
        found = client.segments.seal(segment)
    print_done(f"sealed {segment} at {count_text(found.length, 'byte')}")


@app.command()
def truncate(
    server: ServerTarget,
    segment: SegmentArgument,
    offset: Annotated[int, typer.Argument(min=0, help="Delete everything before this offset.")],
) -> None:
    """Delete the bytes before an offset, forever. The rest keeps its offsets."""
    with server.connect() as client:
        found = client.segments.truncate(segment, offset)
    print_done(f"truncated {segment}: it now has [{found.start_offset}, {found.length})")


@app.command()
def delete(server: ServerTarget, segment: SegmentArgument) -> None:
    """Delete a segment with everything in it."""
    with server.connect() as client:
        if client.segments.delete(segment):
            print_done(f"deleted {segment}")
        else:
            print_note(f"segment {segment} does not exist; nothing was changed")


_COLUMNS = ("segment", "id", "start", "length", "events", "created", "state")


def _row(segment: SegmentInfo) -> tuple[Any, ...]:
    return (
        segment.name,
        segment.segment_id,
        segment.start_offset,
        segment.length,
        segment.event_count,
        time_text(segment.created_us),
        "sealed" if segment.sealed else "open",
    )
