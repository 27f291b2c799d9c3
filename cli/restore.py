"""`millrace restore`: a new data folder for a server whose history is in an object store, and whose machine is gone."""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from millrace.server.container.checkpoint.backup import PART_HEADER_SIZE_BYTES, decode_part_header
from millrace.server.errors import ConfigurationError, FolderLockedError, ServerError
from millrace.server.folder import IGNORED_NAMES, open_folder
from millrace.server.host.files import OsFileSystem
from millrace.wire.schema.checkpoint_copy import CopyPartHeader

from .connecting import JsonOption
from .declared import read_fields, values_of
from .figures import count_text
from .output import print_done, print_json, print_note, print_text
from .repair import recover_and_accept
from .survey import Container, checkpoint_copies
from .tier2 import RemoteHistory, StoreOption, checked_store, remote_history


def restore(
    data_dir: Annotated[Path, typer.Argument(help="The data folder to make; it must not exist, or be empty.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a data folder from an object store, so that a server whose disk is lost can continue.

    The newest good copy of the checkpoint is fetched; chunks stay in the store. What was acknowledged and not flushed
    when the disk was lost is given up, as `millrace repair --accept-loss` does: open segments of streams are sealed
    where they end now and get successors, open transactions are aborted, and every epoch of a writer ends. Then start
    the server with the same --store.

    The old server must never run again: two servers with one history delete each other's chunks.

    Settings of the server come from the environment, as for `millrace serve`.
    """
    if store is None:
        raise typer.BadParameter("name the object store with --store")
    url = checked_store(store)
    if data_dir.exists() and (not data_dir.is_dir() or _contents(data_dir)):
        raise ConfigurationError("is not empty; restore into a folder of its own", subject=str(data_dir))
    with remote_history(url) as history:
        server_id = _owner(history)
        restored = _restore(data_dir, history, server_id)
    if as_json:
        print_json({"path": str(data_dir), "store": url, "server_id": str(server_id), "containers": restored})
        return
    for each in restored:
        counts = f"{count_text(each['segments'], 'segment')}, {count_text(each['streams'], 'stream')}"
        print_text(f"container {each['container']}: {counts}, as of batch {each['sequence']} of the log")
        if each["loss"]:
            print_note(f"given up: {each['loss']}")
    print_done(f"restored; start the server with `millrace serve --data-dir {data_dir} --store {url}`")


def _owner(history: RemoteHistory) -> UUID:
    """Return the id of the server that a history is of, as the newest good copy of a checkpoint says.

    Raises:
        ConfigurationError: there is none.
    """
    for number in history.containers:
        container = Container(history.folder / f"{number:04x}", history=history)
        for copy in checkpoint_copies(container.tier2):
            name = copy.parts[0].name
            header = (container.tier2 / name).read_bytes()[:PART_HEADER_SIZE_BYTES]
            try:
                decode_part_header(header, name=name, owner=None)
            except ServerError:
                continue  # the server takes an older one, too
            return UUID(bytes=values_of(read_fields(CopyPartHeader, header, offset=0))["server_id"])
    raise ConfigurationError("has no copy of a checkpoint, so nothing can be restored from it", subject=history.url)


def _contents(data_dir: Path) -> list[Path]:
    """Return what is in a folder besides what a fresh file system has."""
    return [path for path in data_dir.iterdir() if path.name not in IGNORED_NAMES]


def _restore(data_dir: Path, history: RemoteHistory, server_id: UUID) -> list[dict[str, Any]]:
    was_there = data_dir.exists()
    try:
        folder = open_folder(OsFileSystem(), data_dir, store=history.url, server_id=server_id)
        with closing(folder.lock):
            return [
                asyncio.run(recover_and_accept(data_dir, number, store=history.url)) for number in history.containers
            ]
    except FolderLockedError:
        raise  # somebody else has begun in it
    except BaseException:
        _remove(data_dir, was_there=was_there)
        raise


def _remove(data_dir: Path, *, was_there: bool) -> None:
    """Remove what was made in a folder that was empty, and the folder if it was made, too."""
    if not was_there:
        shutil.rmtree(data_dir, ignore_errors=True)
        return
    for path in _contents(data_dir):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
