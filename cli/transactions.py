"""`millrace txn`: open and prepared transactions, their outcomes, commit and abort; and producers."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from millrace.client.transactions.outcome import TransactionOutcome, TransactionState
from millrace.model.figures import duration_text, size_text, time_text
from millrace.model.quantities import unix_us_of

from .connecting import JsonOption, ServerTarget
from .option_groups import Commands
from .output import picked, print_done, print_error, print_facts, print_json, print_note, print_table

app = Commands(no_args_is_help=True)

FAILED = 1

WriterIdArgument = Annotated[str, typer.Argument(metavar="WRITER_ID", help="Writer id of the producer.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the transaction.")]


@app.command("list")
def list_transactions(server: ServerTarget, as_json: JsonOption = False) -> None:
    """List the transactions that are open or prepared, of all clients."""
    with server.connect() as client:
        found = list(client.list_transactions())
    if as_json:
        print_json(
            [
                {
                    **picked(each, "number", "name", "state", "lease_s", "part_count", "size_bytes"),
                    "begun_us": unix_us_of(each.begun_at),
                }
                for each in found
            ]
        )
        return
    print_table(
        ("number", "name", "state", "age", "lease", "parts", "size"),
        [
            (
                each.number,
                each.name,
                each.state.value,
                _age_text(each.begun_at),
                duration_text(each.lease_s) if each.state is TransactionState.OPEN else "",
                each.part_count,
                size_text(each.size_bytes),
            )
            for each in found
        ],
    )


@app.command()
def info(server: ServerTarget, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show the state of a transaction, or its outcome; the exit code is 1 if that is unknown."""
    with server.connect() as client:
        found = client.transaction_outcome(name)
    if found.state is TransactionState.UNKNOWN:
        print_error(f"transaction {name} does not exist, or was forgotten")
        raise typer.Exit(FAILED)
    begun_us, decided_us = (None if at is None else unix_us_of(at) for at in (found.begun_at, found.decided_at))
    if as_json:
        print_json(
            {
                **picked(found, "number", "name", "state", "has_expired", "event_count", "size_bytes", "lease_s"),
                "streams": list(found.streams),
                "branches": [{"branch": branch, "events": count} for branch, count in found.branch_counts.items()],
                "begun_us": begun_us,
                "decided_us": decided_us,
                "cuts": {stream: str(cut) for stream, cut in found.cuts.items()},
            }
        )
        return
    facts = {"transaction": found.name, "number": found.number, "state": _state_text(found)}
    if found.begun_at is not None:
        age = f", {_age_text(found.begun_at)} ago" if decided_us is None else ""
        facts["begun"] = f"{time_text(begun_us)}{age}"
    if found.streams:
        facts["streams"] = ", ".join(found.streams)
    if decided_us is None:
        facts["events"] = f"{found.event_count:,} in {size_text(found.size_bytes)}"
        if found.branch_counts.keys() - {0}:
            facts["branches"] = ", ".join(f"{branch}: {count:,}" for branch, count in found.branch_counts.items())
    else:
        facts["decided"] = time_text(decided_us)
    if found.state is TransactionState.OPEN:
        facts["lease"] = duration_text(found.lease_s)
    print_facts(facts)


@app.command()
def commit(server: ServerTarget, name: NameArgument) -> None:
    """Commit a prepared transaction; idempotent."""
    with server.connect() as client:
        found = client.commit_transaction(name)
    at = "" if found.decided_at is None else f" at {time_text(unix_us_of(found.decided_at))}"
    print_done(f"transaction {name} is committed{at}")


@app.command()
def abort(
    server: ServerTarget,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the transaction.")] = None,
    number: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of the transaction, as `millrace txn list` shows it.")
    ] = None,
) -> None:
    """Abort an open or prepared transaction, by its name or its number. Its events are deleted."""
    if (name is None) == (number is None):
        raise typer.BadParameter("pass the name of a transaction, or --number N")
    with server.connect() as client:
        changed = client.abort_transaction(name, number=number)
    subject = name or number
    if changed:
        print_done(f"aborted transaction {subject}")
    else:
        print_note(f"transaction {subject} was already aborted; nothing was changed")


@app.command()
def producer(server: ServerTarget, writer_id: WriterIdArgument, as_json: JsonOption = False) -> None:
    """Show who uses the writer id of a producer, and its last committed sequence."""
    with server.connect() as client:
        found = client.producer_info(writer_id)
    if as_json:
        print_json(picked(found, "writer_id", "holder", "run", "last_sequence", "fenced_runs", "fingerprint"))
        return
    print_facts(
        {
            "producer": found.writer_id,
            "holder": found.holder or "none: the next program that begins",
            "run": found.run or "none",
            "last sequence": "none" if found.last_sequence is None else found.last_sequence,
            "fenced runs": ", ".join(found.fenced_runs) or "none",
            "fingerprint": found.fingerprint or "none",
        }
    )


@app.command()
def reset(
    server: ServerTarget,
    writer_id: WriterIdArgument,
    holder: Annotated[
        str | None,
        typer.Option(
            metavar="HOLDER", help="The program that gets the writer id; by default, the next one that begins."
        ),
    ] = None,
) -> None:
    """Assign the writer id of a producer to another program, if its holder is gone. Its sequences start over."""
    with server.connect() as client:
        changed = client.reset_producer(writer_id, holder=holder)
    whose = f"producer {writer_id} belongs to {holder or 'the next one that begins'}"
    if changed:
        print_done(f"{whose}; its sequences start over")
    else:
        print_note(f"{whose} already; nothing was changed")


@app.command("delete-producer")
def delete_producer(
    server: ServerTarget,
    writer_id: WriterIdArgument,
    last_sequence: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="The last committed sequence. Needed if there is one: N could be committed again."
        ),
    ] = None,
) -> None:
    """Delete a producer that no program uses any more. Its open transactions are aborted."""
    with server.connect() as client:
        changed = client.delete_producer(writer_id, last_sequence=last_sequence)
    if changed:
        print_done(f"deleted producer {writer_id}")
    else:
        print_note(f"producer {writer_id} does not exist; nothing was changed")


def _age_text(begun_at: datetime) -> str:
    """Return how long ago a transaction began, by the clocks of the server and of this machine."""
    return duration_text(max(0.0, (datetime.now(UTC) - begun_at).total_seconds()))


def _state_text(found: TransactionOutcome) -> str:
    return "aborted: its lease expired" if found.has_expired else found.state.value
