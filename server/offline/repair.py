"""Repair of a log: its losses and contradictions, and the effect of accepting them."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.server.container.ids import scope_of
from millrace.server.container.log_loss import LogLoss
from millrace.server.container.repair import AcceptancePlan, plan_acceptance, published_chunks
from millrace.server.errors import ConfigurationError, OwnedElsewhereError, StorageError
from millrace.server.folder import CONTAINERS_FOLDER, read_identity
from millrace.server.host.files import OsFileSystem
from millrace.server.ownership import Manifest, manifest_key, read_folder_claim, read_manifest
from millrace.server.tier2 import ScopedStorage

from .acceptance import CONTAINER, accept_loss_in_folder, accept_loss_in_store, options_of, repairing_options
from .container import (
    OfflineContainer,
    container_folders,
    container_of_store,
    containers_of_folder,
    log_capacity_bytes,
    owned_folder,
    survey,
)
from .remote_history import opened_store, opened_tier2, remote_history, store_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRepair:
    """Losses and contradictions of the log of one container.

    Attributes:
        manifest: why its manifest cannot be used, None if it can; otherwise the rest is unknown.
        loss: what the log has lost.
        plan: the changes of accepting the loss, None if there is nothing to accept; names the contradictions of the
            log.
        is_accepted: whether the loss has just been accepted.
    """

    container: int
    manifest: str | None = None
    loss: LogLoss | None = None
    plan: AcceptancePlan | None = None
    is_accepted: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether an operator has anything to accept."""
        return self.manifest is not None or self.plan is not None


def repair(folder: Path | None = None, *, store: str = "", accept_loss: bool = False) -> Iterator[ContainerRepair]:
    """Yield the losses and contradictions of each container's log, after accepting them if requested. Blocks.

    Args:
        folder: of a server that is not running; None if the log is in the store.
        store: URL of the store with the log; not for a folder, which names its own.
        accept_loss: accept the loss, so that the container is writable again. Without it, nothing is changed.

    Raises:
        ConfigurationError: the log is elsewhere.
        OwnedElsewhereError: another server has claimed the container.
        ServerError: accepting failed; calling again shows the remaining losses.
    """
    if folder is None:
        found = _examine_store(store)
        if accept_loss and found.is_lost:
            with repairing_options(store) as options:
                asyncio.run(accept_loss_in_store(options))
            found = replace(found, is_accepted=True)
        yield found
        return
    with owned_folder(folder):
        for found in list(_examine_folder(folder)):
            if accept_loss and found.is_lost:
                asyncio.run(_accept(folder, found.container, store=store_of(folder)))
                found = replace(found, is_accepted=True)
            yield found


def _examine_folder(data_dir: Path) -> Iterator[ContainerRepair]:
    """Yield the losses of the containers of a folder, and the changes of accepting them; changes nothing."""
    server_id, store = read_identity(OsFileSystem(), data_dir).server_id, store_of(data_dir)
    with ExitStack() as stack:
        history = stack.enter_context(remote_history(store)) if store else None
        for path in container_folders(data_dir):
            manifest = history.manifest(int(path.name, 16)) if history is not None else None
            _refuse_remote_log(manifest, subject=str(data_dir))
            _check_claimed(path, manifest)
        capacity_bytes = log_capacity_bytes(data_dir)
        for opened in containers_of_folder(
            data_dir, server_id=server_id, history=history, capacity_bytes=capacity_bytes
        ):
            with survey(opened) as container:
                yield _examine(container, store=store)


def _examine_store(url: str) -> ContainerRepair:
    """Return the loss of the log in a store, and the changes of accepting it; changes nothing."""
    with remote_history(url) as history:
        manifest = history.manifest(CONTAINER)
        if (manifest is None and CONTAINER not in history.logs) or (manifest is not None and manifest.log is None):
            raise ConfigurationError("this store has no log; pass the data folder of its server", subject=url)
        if manifest is None:
            error = history.manifests.get(CONTAINER)
            assert not isinstance(error, Manifest)
            # Without the manifest it is unknown which objects of the log are needed.
            what = f"{manifest_key(CONTAINER)} {error.message if error else 'is missing'}"
            return ContainerRepair(container=CONTAINER, manifest=what)
        with survey(container_of_store(history, CONTAINER)) as container:
            return _examine(container, store=url)


def _examine(container: OfflineContainer, *, store: str) -> ContainerRepair:
    """Return the loss of the log of a container.

    Args:
        store: URL of the store with its chunks; empty if they are in the folder.
    """
    if container.log_error:
        raise StorageError(f"the log cannot be read: {container.log_error}", subject=store or str(container.log_folder))
    loss = container.loss
    if loss is None and not container.state.quarantine:
        return ContainerRepair(container=container.number)
    plan = asyncio.run(_plan(container, store=store))
    is_lost = loss is not None or plan.damages
    return ContainerRepair(container=container.number, loss=loss, plan=plan if is_lost else None)


async def _plan(container: OfflineContainer, *, store: str) -> AcceptancePlan:
    data_dir = container.data_dir if container.has_folder else None
    async with opened_tier2(data_dir, store=store, options=options_of(data_dir).tier2) as storage:
        chunks = await published_chunks(ScopedStorage(storage, scope_of(container.number)))
    return plan_acceptance(container.state, container.loss, chunks)


async def _accept(data_dir: Path, number: int, *, store: str) -> None:
    """Accept the loss of a container's log in a folder, if the folder still owns the container."""
    manifest = None
    if store:
        async with opened_store(store) as opened:
            found = await read_manifest(opened, number, url=store)
        manifest = found.manifest if found else None
    _check_claimed(data_dir / CONTAINERS_FOLDER / f"{number:04x}", manifest)
    await accept_loss_in_folder(data_dir, number, store=store, manifest=manifest)


def _refuse_remote_log(manifest: Manifest | None, *, subject: str) -> None:
    """Raise if the log of a container is in the object store: its folder has nothing to repair.

    Raises:
        ConfigurationError: says what to do.
    """
    if manifest is not None and manifest.log is not None:
        raise ConfigurationError(
            "its log is in the object store: run `millrace repair --store URL` in place of this",
            subject=subject,
        )


def _check_claimed(folder: Path, manifest: Manifest | None) -> None:
    """Raise if another server has owned a container since its folder was used: the data in it are superseded.

    A copy of the other server would be treated as newer, and the log of the folder replayed over it.

    Raises:
        OwnedElsewhereError: names the other server.
        ConfigurationError: the folder does not show what it has claimed.
    """
    if manifest is None:
        return
    claim = read_folder_claim(OsFileSystem(), folder)
    if claim is None or not claim.knows(manifest.claim_id):
        raise OwnedElsewhereError(
            f"was claimed by {manifest.claimant} at {manifest.claimant.since}: the data in this folder are "
            "superseded, and stay unchanged",
            subject=str(folder),
        )
