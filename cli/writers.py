"""`millrace writer`: progress of a persistent writer, and reset of a rejected one."""

from typing import Annotated

import typer

from millrace.client.write.writer_info import EventOutcome, WriterInfo
from millrace.model.errors import InvalidArgumentError
from millrace.model.figures import time_text

from .connecting import JsonOption, ServerTarget, StreamArgument
from .option_groups import Commands
from .output import picked, print_done, print_error, print_facts, print_json, print_note, print_table

app = Commands(no_args_is_help=True)

FAILED = 1


@app.command()
def info(
    server: ServerTarget,
    stream: StreamArgument,
    writer_id: Annotated[str, typer.Argument(metavar="WRITER_ID", help="Id of the writer.")],
    event: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Show whether the event with this number is stored; the exit code is 1 unless it is.",
        ),
    ] = None,
    segment: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="ID", help="The segment that the event was written to; needed if the stream has several."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a writer with an id: when it was active, its epoch, and its last stored event in each segment."""
    if segment is not None and event is None:
        raise typer.BadParameter("--segment needs --event")
    with server.connect() as client:
        found = client.writer_info(stream, writer_id)
    if found is None:
        print_error(f"writer {writer_id} was never opened, or expired so long ago that it was forgotten")
        raise typer.Exit(FAILED)
    outcome = None if event is None else _outcome(found, event, segment)
    if as_json:
        _print_json(found, event, outcome)
    else:
        _print_facts(found, event, outcome)
    if outcome not in (None, EventOutcome.STORED):
        raise typer.Exit(FAILED)


@app.command()
def reset(
    server: ServerTarget,
    stream: StreamArgument,
    writer_id: Annotated[str, typer.Argument(metavar="WRITER_ID", help="Id of the writer.")],
    stored_through: Annotated[
        int,
        typer.Option(
            min=-1,
            metavar="SEQUENCE",
            help="The writer resumes after this sequence: everything up to it counts as stored, nothing above it.",
        ),
    ],
) -> None:
    """Reset the sequences of a rejected writer; the exit code is 1 if none was rejected."""
    with server.connect() as client:
        changed = client.reset_sequences(stream, writer_id, stored_through=stored_through)
    if not changed:
        print_error(f"no sequence of writer {writer_id} was rejected; nothing was changed")
        raise typer.Exit(FAILED)
    print_done(f"writer {writer_id} resumes on {stream} after sequence {stored_through}")


def _outcome(found: WriterInfo, event: int, segment_id: int | None) -> EventOutcome:
    if segment_id is None:
        segment_ids = list(found.last_event_numbers)
        if len(segment_ids) > 1:
            raise InvalidArgumentError(
                f"numbers start from 1 in each segment: add --segment, one of {', '.join(map(str, segment_ids))}"
            )
        segment_id = segment_ids[0] if segment_ids else 0  # any segment will do if the writer has expired
    return found.outcome(segment_id, event)


def _print_json(found: WriterInfo, event: int | None, outcome: EventOutcome | None) -> None:
    print_json(
        {
            **picked(found, "writer_id", "stream", "number", "epoch", "active_us", "expired_us", "stored_through"),
            "segments": [
                {"segment_id": segment_id, "last_event_number": last}
                for segment_id, last in found.last_event_numbers.items()
            ],
            "event": None if outcome is None else {"number": event, "outcome": outcome.value},
        }
    )


def _print_facts(found: WriterInfo, event: int | None, outcome: EventOutcome | None) -> None:
    facts = {
        "writer": found.writer_id,
        "number": found.number,
        "epoch": found.epoch,
        "last active": time_text(found.active_us),
        "state": "kept" if found.expired_us is None else f"expired at {time_text(found.expired_us)}",
    }
    if not found.sequences.is_empty:
        facts["stored through"] = f"sequence {found.stored_through:,}"
    if outcome is not None:
        text = "unknown: the writer has expired" if outcome is EventOutcome.EXPIRED else outcome.value
        facts[f"event {event}"] = text
    print_facts(facts)
    if found.expired_us is None:
        print_table(("segment", "last event"), found.last_event_numbers.items())
    else:
        print_note("read the stream to find out what it stored; open it with start_over_if_expired=True")
