"""`millrace restore`: create a data folder from an object store, for a server whose machine is lost."""

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
    data_dir: Annotated[Path, typer.Argument(help="The data folder to create; it must not exist, or must be empty.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a data folder from an object store, so that a server whose disk is lost can continue.

    The current copy of the checkpoint is fetched; chunks stay in the store, which is not changed. Events acknowledged
    after that copy are lost, and the loss is accepted as by `millrace repair --accept-loss`: open segments of streams
    are sealed at their current end and get successors, open transactions are aborted, and every epoch of a writer ends.
    Then start the server with the same --store.

    That start takes over the history, so this command shows its last owner. If that server still runs, the start fails:
    stop it, remove the new folder, and restore again, because its stop may change the history. If it is silent, the
    start waits for its lease to expire. If it returns later, it is fenced, and exits: it deletes nothing in the store,
    and objects that it adds are ignored. Its folder cannot be used any more.

    Settings of the server come from the environment, as for `millrace serve`.
    """
    if store is None:
        raise typer.BadParameter("pass the object store with --store")
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
            print_note(f"lost: {each.loss}")
        if owner := owners.get(each.container):
            print_note(f"it was claimed by {owner.claimed_by} at {owner.since}: {owner.life.value}")
    print_done(f"restored; start the server with `millrace serve --data-dir {data_dir} --store {url}`")


def _document(container: RecoveredContainer, owner: LastOwner | None) -> dict[str, Any]:
    """Return a restored container in its JSON form."""
    document = asdict(container)
    del document["damages"]
    return document | {"owner": owner and asdict(owner) | {"life": owner.life.name}}
