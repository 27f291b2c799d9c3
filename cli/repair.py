"""`millrace repair`: accept the loss or contradiction of log content, so that the container is writable again."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from millrace.model.figures import count_text, size_text
from millrace.server.offline.remote_history import checked_store
from millrace.server.offline.repair import ContainerRepair
from millrace.server.offline.repair import repair as repair_data

from .connecting import JsonOption, StoreOption
from .output import print_done, print_json, print_note, print_table, print_text

LISTED_COUNT_MAX: Final = 20


def repair(
    data_dir: Annotated[Path | None, typer.Argument(help="The data folder of a server that is not running.")] = None,
    store: StoreOption = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Accept for good what the log has lost or contradicts. Without this, nothing is changed.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the log has lost or contradicts, and the effect of accepting that; accept it with --accept-loss.

    If a part of the log is missing, the server still answers reads of the rest, but is read-only: otherwise it could
    reuse the positions of lost events. Restore the missing files if you can. Otherwise accept the loss: open segments
    of streams are sealed at their current end and get successors, open raw segments continue after a hole, open
    transactions are aborted, and writers have to be opened again. Then the server accepts writes again.

    With --store instead of a folder, the log is the one in the object store. To accept its loss, this command claims
    the container like a server that starts: stop the server that owns it. A manifest that is missing or damaged is
    rebuilt from the log, and cluster.json, too: stop all servers of the prefix first.

    If a record of the log contradicts other records, a server rejects changes of the damaged segment, stream, writer or
    transaction, and serves everything else. Accepting that changes only the damaged entity, in the same way.

    Settings of the server come from the environment, as for `millrace serve`. Exits with 1 if a loss or damage was not
    accepted.
    """
    if (data_dir is None) == (store is None):
        raise typer.BadParameter("pass a data folder, or an object store with --store")
    url = checked_store(store) if store is not None else ""
    place = url or str(data_dir)
    found = list(repair_data(data_dir, store=url, accept_loss=accept_loss))
    is_ok = not any(each.is_lost and not each.is_accepted for each in found)
    if as_json:
        print_json({"path": place, "ok": is_ok, "containers": [_document(each) for each in found]})
    else:
        lost = [_document(each) for each in found if each.is_lost]
        _print(place, lost, is_accepted=accept_loss, is_store=store is not None)
    if not is_ok:
        raise typer.Exit(1)


def _document(found: ContainerRepair) -> dict[str, Any]:
    """Return a container in the JSON form of docs/operations.md."""
    loss, plan = found.loss, found.plan
    return {
        "container": found.container,
        "manifest": found.manifest,
        "loss": None if loss is None else asdict(loss) | {"since": loss.since, "text": str(loss)},
        "damages": [damage._asdict() | {"text": str(damage)} for damage in plan.damages] if plan else [],
        "plan": None
        if plan is None
        else {
            "sealed": [asdict(part) for parts in plan.sealed.values() for part in parts],
            "holes": [asdict(hole) for hole in plan.holes],
            "transactions": plan.transactions,
            "writers": len(plan.writers),
            "deleted": plan.deleted,
        },
        "accepted": found.is_accepted,
    }


def _print(place: str, lost: list[dict[str, Any]], *, is_accepted: bool, is_store: bool) -> None:
    if not lost:
        print_text(Text(f"{place}: no missing or damaged part of the log was found", style="green"))
        return
    for each in lost:
        loss, plan = each["loss"], each["plan"]
        if each["manifest"] is not None:
            print_text(f"container {each['container']}: {each['manifest']}")
        if loss is not None:
            print_text(f"container {each['container']}: {loss['text']}")
            print_text(f"the loss may be up to {size_text(loss['size_bytes'])} acknowledged since {loss['since']}")
        for damage in each["damages"][:LISTED_COUNT_MAX]:
            print_text(f"container {each['container']}: {damage['text']}")
        if len(each["damages"]) > LISTED_COUNT_MAX:
            print_note(f"and {len(each['damages']) - LISTED_COUNT_MAX} more; --json names all")
        if plan is not None:
            _print_plan(plan, is_accepted=is_accepted)
    if is_accepted:
        print_done("the loss is accepted; start the server to write again")
        return
    is_missing = any(each["loss"] is not None or each["manifest"] is not None for each in lost)
    can_put_back = f"restore the {'objects' if is_store else 'files'}, or " if is_missing else ""
    print_note(f"nothing was changed: {can_put_back}accept the loss with --accept-loss")


def _print_plan(plan: dict[str, Any], *, is_accepted: bool) -> None:
    """Print the effect of accepting the loss."""
    sealed, holes = plan["sealed"], plan["holes"]
    rows = [(part["name"], part["length"], "sealed here, and replaced by a new segment") for part in sealed]
    rows += [(hole["name"], hole["start"], f"continues at {hole['end']}, the rest is damaged") for hole in holes]
    if rows:
        print_table(
            ("segment", "ends at", "accepted" if is_accepted else "if the loss is accepted"),
            rows[:LISTED_COUNT_MAX],
            title=count_text(len(rows), "open segment"),
        )
    if len(rows) > LISTED_COUNT_MAX:
        print_note(f"and {len(rows) - LISTED_COUNT_MAX} more; --json names all")
    if plan["writers"]:
        print_note(f"{count_text(plan['writers'], 'writer')} of older epochs: fenced")
    if plan["transactions"]:
        print_note(f"{count_text(len(plan['transactions']), 'open transaction')}: aborted")
    if plan["deleted"]:
        print_note(f"{count_text(len(plan['deleted']), 'part')} of unknown transactions: deleted")
