"""Creates a new data folder for a server whose machine is lost and whose history is in an object store."""

import asyncio
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from millrace.server.container.checkpoint.backup import PART_HEADER_SIZE_BYTES, decode_part_header
from millrace.server.errors import ConfigurationError, ManifestUnreadableError, ServerError, StorageError
from millrace.server.folder import CONTAINERS_FOLDER, IDENTITY_NAME, IGNORED_NAMES, open_folder, read_identity
from millrace.server.host.clock import SystemClock
from millrace.server.host.files import OsFileSystem
from millrace.server.ownership import FolderClaim, Manifest, write_folder_claim
from millrace.wire.schema.checkpoint_copy import CopyPartHeader

from .acceptance import RecoveredContainer, accept_loss_in_folder
from .container import OfflineContainer, checkpoint_copies
from .declared import read_fields, values_of
from .owners import Life, life_of
from .remote_history import RemoteHistory, opened_store, remote_history


@dataclass(frozen=True, slots=True)
class Restoration:
    """A data folder that was created from a store.

    Attributes:
        manifests: of its containers, by number, for those that have one.
    """

    server_id: UUID
    containers: tuple[RecoveredContainer, ...]
    manifests: Mapping[int, Manifest]


@dataclass(frozen=True, slots=True)
class LastOwner:
    """The last owner of a container, and whether it is alive."""

    claimed_by: str
    since: str
    epoch: int
    life: Life


def restore(data_dir: Path, url: str) -> Restoration:
    """Create a data folder from a store, and accept the loss of events that were only in the log. Blocks.

    The store is not changed.

    Raises:
        ConfigurationError: the folder is in use, or the store has nothing to restore.
        ServerError, OSError: restoring failed; the folder is left as it was.
    """
    if data_dir.exists() and (not data_dir.is_dir() or _contents(data_dir)):
        raise ConfigurationError("is not empty; restore into a folder of its own", subject=str(data_dir))
    with remote_history(url) as history:
        for number in history.manifests:
            _refuse_remote_log(history.manifest(number), data_dir, url=url)
        server_id = _owner(history)
        restored = _restore(data_dir, history, server_id)
        manifests = {number: manifest for number in history.manifests if (manifest := history.manifest(number))}
        return Restoration(server_id, tuple(restored), manifests)


def _refuse_remote_log(manifest: Manifest | None, data_dir: Path, *, url: str) -> None:
    """Raise if the log is in the store, too: then nothing has to be restored."""
    if manifest is not None and manifest.log is not None:
        raise ConfigurationError(
            "its log is in the store, too, so nothing has to be restored: start a server in a new folder with "
            f"`millrace serve --data-dir {data_dir} --store {url} --log object`",
            subject=f"container {manifest.container} of {url}",
        )


def last_owner(url: str, manifest: Manifest) -> LastOwner:
    """Return the claimant of a container, and whether it is alive; takes up to the length of its lease. Blocks."""

    async def life() -> Life:
        async with opened_store(url) as store:
            return await life_of(store, manifest, url=url, clock=SystemClock())

    try:
        found = asyncio.run(life())
    except StorageError:
        found = Life.UNKNOWN  # the folder is complete, and the next start checks again
    return LastOwner(str(manifest.claimant), manifest.claimant.since, manifest.epoch, found)


def _owner(history: RemoteHistory) -> UUID:
    """Return the server that owns a history, from a manifest, or from the newest sound copy of a checkpoint.

    Raises:
        ManifestUnreadableError: no manifest shows which copy is current.
        ConfigurationError: there is no copy.
    """
    for found in history.manifests.values():
        if isinstance(found, ManifestUnreadableError):
            raise found
    for number in history.copies:
        if (manifest := history.manifest(number)) is not None:
            return manifest.server_id
        container = OfflineContainer(history.folder / f"{number:04x}", history=history)
        for copy in checkpoint_copies(container.tier2):
            name = copy.parts[0].name
            header = (container.tier2 / name).read_bytes()[:PART_HEADER_SIZE_BYTES]
            try:
                decode_part_header(header, name=name, owner=None)
            except ServerError:
                continue  # the server falls back to an older one, too
            return UUID(bytes=values_of(read_fields(CopyPartHeader, header, offset=0))["server_id"])
    raise ConfigurationError("has no copy of a checkpoint, so nothing can be restored from it", subject=history.url)


def _contents(data_dir: Path) -> list[Path]:
    """Return the entries of a folder, without those of a fresh file system."""
    return [path for path in data_dir.iterdir() if path.name not in IGNORED_NAMES]


def _restore(data_dir: Path, history: RemoteHistory, server_id: UUID) -> list[RecoveredContainer]:
    was_there = data_dir.exists()
    files = OsFileSystem()
    # The folder was empty before the download, which takes a while: a server may have started in it since.
    if files.exists(data_dir / IDENTITY_NAME):
        user = read_identity(files, data_dir).server_id
        raise ConfigurationError(
            f"was used by server {user} meanwhile; restore into another folder", subject=str(data_dir)
        )
    with closing(open_folder(files, data_dir, store=history.url, server_id=server_id).lock):
        try:
            return [_restore_container(data_dir, history, number) for number in history.containers]
        except BaseException:
            _remove(data_dir, was_there=was_there)
            raise


def _restore_container(data_dir: Path, history: RemoteHistory, number: int) -> RecoveredContainer:
    manifest = history.manifest(number)
    restored = asyncio.run(accept_loss_in_folder(data_dir, number, store=history.url, manifest=manifest))
    if manifest is not None:
        # The last step: without it no server starts on a folder that is not whole.
        copy = manifest.checkpoint
        claim = FolderClaim(manifest.claim_id, restored_from=copy.name if copy else "")
        write_folder_claim(OsFileSystem(), data_dir / CONTAINERS_FOLDER / f"{number:04x}", claim)
    return restored


def _remove(data_dir: Path, *, was_there: bool) -> None:
    """Remove what was created in an empty folder, and the folder if it was created, too."""
    if not was_there:
        shutil.rmtree(data_dir, ignore_errors=True)
        return
    for path in _contents(data_dir):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
