"""`millrace restore`: a new data folder for a server whose history is in an object store, and whose machine is gone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.model.figures import count_text
from millrace.server.offline.acceptance import RecoveredContainer
from millrace.server.offline.remote_history import checked_store
from millrace.server.offline.restore import LastOwner, last_owner
from millrace.server.offline.restore import restore as restore_data

from .connecting import JsonOption, StoreOption
from .output import print_done, print_json, print_note, print_text, progress


def restore(
    data_dir: Annotated[Path, typer.Argument(help="The data folder to make; it must not exist, or be empty.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a data folder from an object store, so that a server whose disk is lost can continue.

    The copy of the checkpoint that counts is fetched; chunks stay in the store, where nothing is changed. What was
    acknowledged after that copy is given up, as `millrace repair --accept-loss` does: open segments of streams are
    sealed where they end now and get successors, open transactions are aborted, and every epoch of a writer ends. Then
    start the server with the same --store.

    That start takes the history over, so this command tells who had it last. If that server still runs, the start is
    refused: stop it, remove the new folder, and restore again, as its stop may change the history. If it is silent, the
    start waits for the length of its lease. Should it come back, it is fenced, and ends: it deletes nothing in the
    store, and what it adds there counts for nothing. Its folder cannot be used any more.

    Settings of the server come from the environment, as for `millrace serve`.
    """
    if store is None:
        raise typer.BadParameter("name the object store with --store")
    url = checked_store(store)
    restored = restore_data(data_dir, url)
    owners = {}
    for number, manifest in restored.manifests.items():
        with progress(f"watching the lease of {manifest.claimant}", total=None):
            owners[number] = last_owner(url, manifest)
    if as_json:
        containers = [_document(each, owners.get(each.container)) for each in restored.containers]
        print_json(
            {"path": str(data_dir), "store": url, "server_id": str(restored.server_id), "containers": containers}
        )
        return
    for each in restored.containers:
        counts = f"{count_text(each.segments, 'segment')}, {count_text(each.streams, 'stream')}"
        print_text(f"container {each.container}: {counts}, as of batch {each.sequence} of the log")
        if each.loss:
            print_note(f"given up: {each.loss}")
        if owner := owners.get(each.container):
            print_note(f"it was claimed by {owner.claimed_by} at {owner.since}: {owner.life.value}")
    print_done(f"restored; start the server with `millrace serve --data-dir {data_dir} --store {url}`")


def _document(container: RecoveredContainer, owner: LastOwner | None) -> dict[str, Any]:
    """Return a restored container as JSON has it."""
    document = asdict(container)
    del document["damages"]
    return document | {"owner": owner and asdict(owner) | {"life": owner.life.name}}
