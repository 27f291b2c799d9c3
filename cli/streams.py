"""`millrace stream`: create, list, look at, seal, truncate and delete streams."""

from typing import Annotated, Any

import typer

from millrace.client.cuts import parse_cut
from millrace.client.streams import ScalingPolicy, StreamConfig, StreamInfo
from millrace.wire.limits import SEGMENTS_PER_STREAM_MAX

from .connecting import DEFAULT_ADDRESS, AddressOption, JsonOption, TokenOption, connected
from .figures import count_text, size_text, time_text
from .output import print_done, print_facts, print_json, print_note, print_table, print_text

app = typer.Typer(no_args_is_help=True)

StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="Name of the stream: SCOPE/NAME.", show_default=False)
]


@app.command()
def create(
    stream: StreamArgument,
    segments: Annotated[
        int, typer.Option(min=1, max=SEGMENTS_PER_STREAM_MAX, help="How many segments share the keys out.")
    ] = 1,
    address: AddressOption = DEFAULT_ADDRESS,
    token_file: TokenOption = None,
) -> None:
    """Create a stream. One that exists is left as it is."""
    with connected(address, token_file) as client:
        configuration = StreamConfig(scaling=ScalingPolicy.fixed(segments))
        if client.create_stream(stream, configuration):
            print_done(f"created {stream} with {count_text(segments, 'segment')}")
        else:
            count = len(client.stream_info(stream).segments)
            print_note(f"{stream} exists, with {count_text(count, 'segment')}; nothing was changed")


@app.command("list")
def list_streams(
    prefix: Annotated[str, typer.Argument(help="Only names that start with this.", show_default=False)] = "",
    as_json: JsonOption = False,
    address: AddressOption = DEFAULT_ADDRESS,
    token_file: TokenOption = None,
) -> None:
    """List streams with their sizes."""
    with connected(address, token_file) as client:
        found = [client.stream_info(name) for name in client.list_streams(prefix)]
    if as_json:
        print_json([_json(info) for info in found])
        return
    print_table(
        ("stream", "segments", "events", "size", "created", "state"),
        [
            (
                info.name,
                len(info.segments),
                sum(segment.event_count for segment in info.segments),
                size_text(info.size_bytes),
                time_text(info.created_us),
                "sealed" if info.sealed else "open",
            )
            for info in found
        ],
        right=("size",),
    )


@app.command()
def info(
    stream: StreamArgument,
    as_json: JsonOption = False,
    address: AddressOption = DEFAULT_ADDRESS,
    token_file: TokenOption = None,
) -> None:
    """Show a stream, its segments, and the cuts at its head and tail."""
    with connected(address, token_file) as client:
        found = client.stream_info(stream)
    if as_json:
        print_json(_json(found))
        return
    print_facts(
        {
            "stream": found.name,
            "created": time_text(found.created_us),
            "state": "sealed" if found.sealed else "open",
            "scaling": f"{found.configuration.scaling.kind}, {count_text(len(found.segments), 'segment')}",
            "size": size_text(found.size_bytes),
            "head": str(found.head()),
            "tail": str(found.tail()),
        }
    )
    print_text("")
    print_table(
        ("segment", "keys from", "to", "start", "length", "events"),
        [
            (
                segment.segment_id,
                f"{segment.low:.4f}",
                f"{segment.high:.4f}",
                segment.start_offset,
                segment.length,
                segment.event_count,
            )
            for segment in found.segments
        ],
    )


@app.command()
def seal(stream: StreamArgument, address: AddressOption = DEFAULT_ADDRESS, token_file: TokenOption = None) -> None:
    """Let a stream take no more events, for ever."""
    with connected(address, token_file) as client:
        client.seal_stream(stream)
    print_done(f"sealed {stream}")


@app.command()
def truncate(
    stream: StreamArgument,
    cut: Annotated[
        str,
        typer.Argument(
            help="Where the stream is to start: head, tail, or a cut as `info` prints it.", show_default=False
        ),
    ],
    address: AddressOption = DEFAULT_ADDRESS,
    token_file: TokenOption = None,
) -> None:
    """Drop the events in front of a cut, for ever."""
    with connected(address, token_file) as client:
        before = client.stream_info(stream).size_bytes
        after = client.truncate_stream(stream, parse_cut(cut)).size_bytes
    print_done(f"truncated {stream}: {size_text(before)} before, {size_text(after)} now")


@app.command()
def delete(
    stream: StreamArgument,
    is_sealed_first: Annotated[bool, typer.Option("--seal", help="Seal it first, if it is not.")] = False,
    address: AddressOption = DEFAULT_ADDRESS,
    token_file: TokenOption = None,
) -> None:
    """Delete a sealed stream with everything in it."""
    with connected(address, token_file) as client:
        if is_sealed_first:
            client.seal_stream(stream)
        if client.delete_stream(stream):
            print_done(f"deleted {stream}")
        else:
            print_note(f"there is no stream {stream}; nothing was changed")


def _json(info: StreamInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "stream_id": info.stream_id,
        "created_us": info.created_us,
        "sealed": info.sealed,
        "size_bytes": info.size_bytes,
        "scaling": {"kind": info.configuration.scaling.kind, "segment_count": info.configuration.scaling.segment_count},
        "head": str(info.head()),
        "tail": str(info.tail()),
        "segments": [
            {
                "segment_id": segment.segment_id,
                "low": segment.low,
                "high": segment.high,
                "start_offset": segment.start_offset,
                "length": segment.length,
                "event_count": segment.event_count,
                "sealed": segment.sealed,
            }
            for segment in info.segments
        ],
    }
