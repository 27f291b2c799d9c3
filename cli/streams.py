"""`millrace stream`: create, list, show, update, seal, truncate and delete streams."""

import json
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Final

import typer

from millrace.model.cut import CHOICE_FORMS, parse_choice
from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.figures import count_text, size_text, time_text
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.policy import ScalingPolicy, StreamConfig
from millrace.model.stream import StreamInfo

from .connecting import JsonOption, ServerTarget, StreamArgument
from .explanation import explain
from .history import history
from .option_groups import Commands
from .output import picked, print_done, print_facts, print_json, print_note, print_table, print_text
from .policies import PolicyOptions, TagOption, retention_text, scaling_text, times_text
from .scaling import scale

app = Commands(no_args_is_help=True)

LISTED_MAX: Final = 1000
"""Streams listed with their sizes: each costs a request, and there may be a million."""


@app.command()
def create(
    policies: PolicyOptions,
    server: ServerTarget,
    stream: StreamArgument,
    segments: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=SEGMENTS_PER_STREAM_MAX,
            help="How many segments the stream has, until it is scaled.",
            show_default="1",
        ),
    ] = None,
    tags: TagOption = None,
    cursors: Annotated[
        list[str] | None,
        typer.Option(
            "--cursor",
            metavar="NAME",
            help="Register a consumer at the head: retention by consumption waits for it from the start. Repeat it for "
            "others.",
        ),
    ] = None,
) -> None:
    """Create a stream. An existing stream stays unchanged."""
    configuration = StreamConfig(
        scaling=policies.scaling(segments=segments) or ScalingPolicy.fixed(1),
        retention=policies.retention(),
        tags=tuple(tags or ()),
        event_times=policies.times(),
    )
    with server.connect() as client:
        if client.create_stream(stream, configuration, cursors=cursors or ()):
            print_done(f"created {stream} with {count_text(configuration.scaling.segment_count, 'segment')}")
        else:
            count = len(client.stream_info(stream).open_segments)
            print_note(f"{stream} exists, with {count_text(count, 'segment')}; nothing was changed")


@app.command()
def update(
    policies: PolicyOptions,
    server: ServerTarget,
    stream: StreamArgument,
    is_fixed: Annotated[
        bool, typer.Option("--fixed", help="Stop scaling by policy.", rich_help_panel="Policies")
    ] = False,
    segments: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=SEGMENTS_PER_STREAM_MAX,
            metavar="N",
            help="Split or merge it into this number of segments now, and stop scaling by policy.",
            rich_help_panel="Policies",
        ),
    ] = None,
    retain_all: Annotated[
        bool, typer.Option("--retain-all", help="Delete nothing by policy.", rich_help_panel="Policies")
    ] = False,
    tags: TagOption = None,
    untags: Annotated[list[str] | None, typer.Option("--untag", metavar="TAG", help="Remove a tag.")] = None,
) -> None:
    """Change the policies and tags of a stream. Policies without an option stay unchanged, and so do the events."""
    retention = policies.retention()
    if retain_all and retention is not None:
        raise typer.BadParameter("--retain-all excludes the other --retain options")
    if is_fixed and segments is not None:
        raise typer.BadParameter("--fixed keeps the current segments; --segments sets their number")
    with server.connect() as client:
        found = client.stream_info(stream)
        current = found.configuration
        count = len(found.open_segments)
        scaling = policies.scaling(segments=count if is_fixed else segments, current=current.scaling)
        wanted = replace(
            current,
            scaling=scaling or current.scaling,
            retention=None if retain_all else retention or current.retention,
            tags=tuple(({*current.tags} | {*(tags or ())}) - {*(untags or ())}),
            event_times=policies.times(current.event_times),
        )
        if wanted == current and segments in (None, count):
            print_note(f"{stream} already has this configuration; nothing was changed")
            return
        updated = client.update_stream(stream, wanted)
    changes = _differences(current, wanted)
    if len(updated.open_segments) != count:
        changes += [f"{count_text(len(updated.open_segments), 'segment')} instead of {count}"]
    print_done(f"updated {stream}: {'; '.join(changes)}")


@app.command("list")
def list_streams(
    server: ServerTarget,
    prefix: Annotated[str, typer.Argument(help="Only names that start with this.")] = "",
    tag: Annotated[str, typer.Option("--tag", help="Only streams with this tag.")] = "",
    names_only: Annotated[
        bool, typer.Option("--names", help="Print only names, one per line, without a limit.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Stop after this number; 0 shows all.")] = LISTED_MAX,
    as_json: JsonOption = False,
) -> None:
    """List streams with their sizes."""
    with server.connect() as client:
        if names_only:
            for name in client.list_streams(prefix, tag=tag):
                print_text(name)
            return
        # One more than is shown reveals whether there are more.
        names = list(islice(client.list_streams(prefix, tag=tag), limit + 1 if limit else None))
        found = [client.stream_info(name) for name in names[: limit or None]]
        if len(found) < len(names):
            print_note(f"there are more than {limit:,} (--limit 0 shows all, --names is quick)")
    if as_json:
        print_json([_json(info) for info in found])
        return
    print_table(
        ("stream", "segments", "events", "size", "created", "state"),
        [
            (
                info.name,
                len(info.open_segments),
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
def info(server: ServerTarget, stream: StreamArgument, as_json: JsonOption = False) -> None:
    """Show a stream, its segments, and the cuts at its head and tail."""
    with server.connect() as client:
        found = client.stream_info(stream)
    if as_json:
        print_json(_json(found))
        return
    print_facts(
        {
            "stream": found.name,
            "created": time_text(found.created_us),
            "state": "sealed" if found.sealed else "open",
            "segments": f"{len(found.open_segments):,} open, after {count_text(found.epoch, 'scaling')}",
            "scaling": scaling_text(found.configuration.scaling),
            "retention": retention_text(found.configuration.retention),
            **({"event times": times_text(bounds)} if (bounds := found.configuration.event_times) else {}),
            **({"tags": ", ".join(found.configuration.tags)} if found.configuration.tags else {}),
            **({"exclusive writer": _exclusive_text(holder)} if (holder := found.exclusive_writer) else {}),
            "size": size_text(found.size_bytes),
            "head": str(found.head()),
            "tail": str(found.tail()),
        }
    )
    print_text("")
    print_table(
        ("segment", "keys from", "to", "epoch", "start", "length", "events", "state"),
        [
            (
                segment.segment_id,
                f"{segment.low:.4f}",
                f"{segment.high:.4f}",
                segment.epoch,
                f"{segment.start_offset}.{segment.start_index}" if segment.start_index else segment.start_offset,
                segment.length,
                segment.event_count,
                f"replaced in epoch {segment.sealed_epoch}"
                if segment.sealed_epoch
                else "sealed"
                if segment.sealed
                else "open",
            )
            for segment in found.segments
        ],
    )


@app.command()
def seal(
    server: ServerTarget,
    stream: StreamArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Abort prepared transactions over it, which otherwise prevent sealing.")
    ] = False,
) -> None:
    """Seal a stream: it accepts no more events, forever. Its open transactions are aborted."""
    with server.connect() as client:
        client.seal_stream(stream, force=force)
    print_done(f"sealed {stream}")


@app.command()
def release(server: ServerTarget, stream: StreamArgument) -> None:
    """Release a stream from its exclusive writer, which is fenced from then on. All writers may write again."""
    with server.connect() as client:
        holder = client.stream_info(stream).exclusive_writer
        if client.release_stream(stream):
            print_done(f"released {stream}" + (f" from {holder}" if holder else ""))
        else:
            print_note(f"{stream} has no exclusive writer; nothing was changed")


@app.command()
def truncate(
    server: ServerTarget,
    stream: StreamArgument,
    cut: Annotated[str, typer.Argument(help=f"Delete everything before this place: {CHOICE_FORMS}.")],
) -> None:
    """Delete the events before a place, forever."""
    place = parse_choice(cut)
    with server.connect() as client:
        before = client.stream_info(stream).size_bytes
        after = client.truncate_stream(stream, place).size_bytes
    print_done(f"truncated {stream}: {size_text(before)} before, {size_text(after)} now")


@app.command()
def delete(
    server: ServerTarget,
    stream: StreamArgument,
    is_sealed_first: Annotated[bool, typer.Option("--seal", help="Seal it first, if it is not sealed.")] = False,
) -> None:
    """Delete a sealed stream with everything in it."""
    with server.connect() as client:
        if is_sealed_first:
            client.seal_stream(stream)
        if client.delete_stream(stream):
            print_done(f"deleted {stream}")
        else:
            print_note(f"stream {stream} does not exist; nothing was changed")


app.command()(scale)
app.command()(history)
app.command()(explain)


def _exclusive_text(writer: ExclusiveWriter) -> str:
    return f"{writer}, since {time_text(writer.since_us)}"


def _differences(before: StreamConfig, after: StreamConfig) -> list[str]:
    """Describe the changes of an update."""
    said: list[str] = []
    if after.scaling != before.scaling:
        said.append(f"scaling {scaling_text(after.scaling)}")
    if after.retention != before.retention:
        said.append(f"retention {retention_text(after.retention)}")
    if after.event_times != before.event_times:
        said.append(f"event times {times_text(after.event_times)}")
    if after.tags != before.tags:
        said.append(f"tags {', '.join(after.tags) or 'none'}")
    return said


def _json(info: StreamInfo) -> dict[str, Any]:
    return {
        **picked(info, "name", "stream_id", "created_us", "sealed", "size_bytes", "epoch"),
        "tags": [],
        **json.loads(info.configuration.to_json()),
        "head": str(info.head()),
        "tail": str(info.tail()),
        "exclusive_writer": None if info.exclusive_writer is None else info.exclusive_writer._asdict(),
        "segments": [picked(segment, *_SEGMENT_NAMES) for segment in info.segments],
    }


_SEGMENT_NAMES: Final = (
    "segment_id", "low", "high", "epoch", "sealed_epoch", "start_offset", "start_index", "length", "event_count",
    "sealed",
)  # fmt: skip
