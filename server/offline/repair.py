"""Accept that content of the log is lost or contradicts itself, so that a server stores again."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container import repair as container_repair
from millrace.server.container.ids import scope_of
from millrace.server.container.local import local_environment
from millrace.server.container.repair import AcceptancePlan, plan_acceptance, published_chunks
from millrace.server.container.startup import open_container
from millrace.server.errors import ConfigurationError, OwnedElsewhereError, ServerError, StorageError
from millrace.server.folder import CONTAINERS_FOLDER, read_identity
from millrace.server.host.clock import SystemClock
from millrace.server.host.files import OsFileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.options import ServerOptions
from millrace.server.ownership import (
    CopyRecord,
    Manifest,
    NewestCopy,
    OwnershipStatistics,
    RemoteLog,
    manifest_key,
    read_folder_claim,
    read_manifest,
)
from millrace.server.settings import load_settings
from millrace.server.tier2 import ScopedStorage
from millrace.server.wal import LogOwner

from .container import OfflineContainer, container_folders, log_capacity_bytes, opened_container, owned_folder, survey
from .remote_history import UnclaimedStorage, opened_store, opened_tier2, remote_history, store_of
from .store_repair import CONTAINER, accept_loss_in_store, repairing_options


def repair_folder(data_dir: Path, *, accept_loss: bool) -> list[dict[str, Any]]:
    """Return what each container of a folder has lost or contradicts, and accept it if that is asked for."""
    with owned_folder(data_dir):
        found = [_examined(folder, data_dir) for folder in container_folders(data_dir)]
        if accept_loss:
            for each in filter(is_lost, found):
                asyncio.run(_accept(data_dir, each["container"], store=store_of(data_dir)))
                each["accepted"] = True
    return found


def repair_store(url: str, *, accept_loss: bool) -> list[dict[str, Any]]:
    """Return what the log in a store has lost or contradicts, and accept it if that is asked for."""
    with remote_history(url) as history:
        folder = history.folder / CONTAINERS_FOLDER / f"{CONTAINER:04x}"
        manifest = history.manifest(CONTAINER)
        if (manifest is None and CONTAINER not in history.logs) or (manifest is not None and manifest.log is None):
            raise ConfigurationError("no log is in this store; name the data folder of its server", subject=url)
        if manifest is None:
            error = history.manifests.get(CONTAINER)
            assert not isinstance(error, Manifest)
            # Without the manifest, nothing shows which objects of the log are needed.
            found = _report(CONTAINER) | {
                "manifest": f"{manifest_key(CONTAINER)} {error.message if error else 'is missing'}"
            }
        else:
            opened = opened_container(folder, history=history, has_folder=False, capacity_bytes=log_capacity_bytes())
            with survey(opened) as container:
                found = _findings(container, None, store=url)
    if accept_loss and is_lost(found):
        with repairing_options(url) as options:
            asyncio.run(accept_loss_in_store(options))
        found["accepted"] = True
    return [found]


def _examined(folder: Path, data_dir: Path) -> dict[str, Any]:
    """Return what a container of a folder has lost, and what accepting it changes; changes nothing."""
    owner = LogOwner(container_id=int(folder.name, 16), server_id=read_identity(OsFileSystem(), data_dir).server_id)
    with ExitStack() as stack:
        history = stack.enter_context(remote_history(store)) if (store := store_of(data_dir)) else None
        if history is not None:
            manifest = history.manifest(int(folder.name, 16))
            refuse_remote_log(manifest, subject=str(data_dir))
            check_claimed(folder, manifest)
        container = stack.enter_context(
            survey(opened_container(folder, owner=owner, history=history, capacity_bytes=log_capacity_bytes(data_dir)))
        )
        return _findings(container, data_dir, store=store)


def _findings(container: OfflineContainer, data_dir: Path | None, *, store: str) -> dict[str, Any]:
    """Return the report of a container that was read.

    Args:
        data_dir: None if all of the container is in the store.
        store: URL of the store that has its chunks; empty if these are in the folder.
    """
    if container.log_error:
        raise StorageError(f"the log cannot be read: {container.log_error}", subject=store or str(container.log_folder))
    report = _report(container.number)
    if container.loss is not None:
        report["loss"] = asdict(container.loss) | {"since": container.loss.since, "text": str(container.loss)}
    plan = asyncio.run(_plan(container, data_dir, store=store))
    if container.loss is not None or plan.damages:
        report["damages"] = [damage._asdict() | {"text": str(damage)} for damage in plan.damages]
        report["plan"] = {
            "sealed": [asdict(part) for parts in plan.sealed.values() for part in parts],
            "holes": [asdict(hole) for hole in plan.holes],
            "transactions": plan.transactions,
            "writers": len(plan.writers),
            "deleted": plan.deleted,
        }
    return report


def _report(container: int) -> dict[str, Any]:
    """Return the report of a container that has lost nothing: the keys of all reports (docs/operations.md)."""
    return {"container": container, "manifest": None, "loss": None, "damages": [], "plan": None, "accepted": False}


def is_lost(report: dict[str, Any]) -> bool:
    """Return whether a report has anything for an operator to accept."""
    return report["manifest"] is not None or report["plan"] is not None


def refuse_remote_log(manifest: Manifest | None, *, subject: str) -> None:
    """Raise if the log of a container is in the object store: its folder has nothing to be repaired.

    Raises:
        ConfigurationError: says what to do.
    """
    if manifest is not None and manifest.log is not None:
        raise ConfigurationError(
            "its log is in the object store: run `millrace repair --store URL` in place of this",
            subject=subject,
        )


def check_claimed(folder: Path, manifest: Manifest | None) -> None:
    """Raise if another server has had a container since its folder was used: what is in that was superseded.

    A copy of the other server would be taken as newer, and the log of the folder replayed over it.

    Raises:
        OwnedElsewhereError: names the other server.
        ConfigurationError: the folder does not tell what it has claimed.
    """
    if manifest is None:
        return
    claim = read_folder_claim(OsFileSystem(), folder)
    if claim is None or not claim.knows(manifest.claim_id):
        raise OwnedElsewhereError(
            f"was claimed by {manifest.claimant} at {manifest.claimant.since}: what is in this folder has been "
            "superseded, and is left as it is",
            subject=str(folder),
        )


def _options(data_dir: Path | None) -> ServerOptions:
    return load_settings({} if data_dir is None else {"data_dir": data_dir.absolute()}).options


async def _plan(container: OfflineContainer, data_dir: Path | None, *, store: str) -> AcceptancePlan:
    if container.loss is None and not container.state.quarantine:
        return plan_acceptance(container.state, None, [])
    async with opened_tier2(data_dir, store=store, options=_options(data_dir).tier2) as storage:
        chunks = await published_chunks(ScopedStorage(storage, scope_of(container.number)))
    return plan_acceptance(container.state, container.loss, chunks)


async def _accept(data_dir: Path, number: int, *, store: str) -> None:
    manifest = None
    if store:
        async with opened_store(store) as opened:
            found = await read_manifest(opened, number, url=store)
        manifest = found.manifest if found else None
    check_claimed(data_dir / CONTAINERS_FOLDER / f"{number:04x}", manifest)
    await recover_and_accept(data_dir, number, store=store, manifest=manifest)


async def recover_and_accept(
    data_dir: Path, number: int, *, store: str, manifest: Manifest | None = None
) -> dict[str, Any]:
    """Recover a container as a starting server would, accept what its log has lost, and return what was recovered.

    Nothing is changed in an object store whose containers have manifests: the folder may not own them.

    Args:
        store: URL of the object store that has the history; empty if the folder has it.
        manifest: of the container, None if it has none.

    Raises:
        ServerError, OSError: it could not be done; calling again tells what is left to do.
    """
    options, files = _options(data_dir), OsFileSystem()
    cache = PageCache(CacheOptions())
    failures: list[ServerError] = []
    try:
        async with opened_tier2(data_dir, store=store, options=options.tier2) as storage:
            environment = await local_environment(
                number,
                data_dir / CONTAINERS_FOLDER / f"{number:04x}",
                files=files,
                storage=UnclaimedStorage(storage) if manifest else storage,
                container_options=options.container,
                wal_options=options.wal,
                clock=SystemClock(),
                metrics=Metrics(),
                server_id=read_identity(files, data_dir).server_id,
                cache=cache,
                page_size_bytes=options.tier2.page_size_bytes,
                on_failure=failures.append,
                claim=partial(_unclaimed, manifest) if manifest else None,
            )
            opened = await open_container(environment)
            try:
                loss, state = opened.container.loss, opened.container.state
                recovered = {
                    "container": number,
                    "segments": state.user_segment_count,
                    "streams": len(state.streams),
                    "sequence": state.sequence,
                    "loss": "" if loss is None else str(loss),
                }
                if loss is not None or state.quarantine:
                    await container_repair.accept_loss(opened)
                return recovered
            finally:
                await opened.close(log_s=options.shutdown_s, flush_s=0.0)
    finally:
        await cache.close()


class UnclaimedOwnership:
    """The `Ownership` of a command that brings the folder of a container in order, and changes nothing in its store.

    Args:
        epoch: above those of all earlier starts that are known in the folder.
        copy: the one that counts.
        copy_before: the one that counted before it.
    """

    def __init__(self, epoch: int, *, copy: CopyRecord | None, copy_before: CopyRecord | None) -> None:
        self.epoch = epoch
        self.is_shared = True
        self.is_stalled = False
        self.is_lapsed = False
        self.store = ""
        self.copy = copy
        self.copy_before = copy_before
        self.log: RemoteLog | None = None

    def copy_unusable(self, name: str) -> None:
        """Do nothing: the manifest stays as it is."""

    def log_began(self, epoch_ends: Mapping[int, int], *, acknowledged: Callable[[], int]) -> None:
        """Do nothing: the log is in the folder."""

    async def record_copy(self, copy: CopyRecord) -> None:
        """Refuse: the server that claims the container next makes a copy."""
        raise StorageError("only the server that has claimed the container lets a copy count", subject=copy.name)

    async def raise_epoch(self) -> int:
        """Continue under the next epoch, see `Ownership`."""
        self.epoch += 1
        return self.epoch

    def statistics(self) -> OwnershipStatistics:
        """Return how the right is, see `Ownership`."""
        return OwnershipStatistics(epoch=self.epoch)

    async def release(self) -> None:
        """Do nothing: nothing was claimed."""


async def _unclaimed(
    manifest: Manifest, next_epoch: int, *, discard: Callable[[], None], newest_copy: NewestCopy
) -> UnclaimedOwnership:
    del discard, newest_copy  # a folder whose log is its own is never without it, nor without its manifest
    epoch = max(next_epoch, manifest.epoch + 1)
    return UnclaimedOwnership(epoch, copy=manifest.checkpoint, copy_before=manifest.checkpoint_before)
