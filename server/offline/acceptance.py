"""Accepts a loss or contradiction of a log durably: recovers the container like a server that starts."""

import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.local import LocalContainer, local_container
from millrace.server.container.repair import accept_loss
from millrace.server.container.startup import open_container
from millrace.server.errors import OwnerFencedError, StorageError
from millrace.server.folder import CONTAINERS_FOLDER, read_identity
from millrace.server.host.clock import Clock, SystemClock
from millrace.server.host.files import OsFileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.hosting.backend import Backend
from millrace.server.kinds.registry import KINDS
from millrace.server.object_store import ObjectStore, StoreMonitor, StoreUrl
from millrace.server.options import ServerOptions
from millrace.server.ownership import CopyRecord, FolderOwnership, Manifest, Ownership, OwnershipStatistics, RemoteLog
from millrace.server.settings import load_settings
from millrace.server.tier2 import ChunkStorage

from .remote_history import UnclaimedStorage, opened_tier2

CONTAINER: Final = 0
RELEASE_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredContainer:
    """A container after its recovery.

    Attributes:
        sequence: the last batch of the log that it contains.
        loss: what the log has lost, now accepted; empty if nothing.
        damages: what the log contradicts, now accepted.
    """

    container: int
    segments: int
    streams: int
    sequence: int
    loss: str
    damages: tuple[str, ...]


def options_of(data_dir: Path | None) -> ServerOptions:
    """Return the options of the server of a folder, from the environment and the folder."""
    return load_settings({} if data_dir is None else {"data_dir": data_dir.absolute()}).options


@contextmanager
def repairing_options(url: str) -> Iterator[ServerOptions]:
    """Yield the options of a server of a prefix, with a new folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="millrace-repair-") as folder:
        options = options_of(Path(folder) / "data")
        yield replace(options, store=StoreUrl.parse(url), wal=replace(options.wal, place="object"))


async def accept_loss_in_folder(
    data_dir: Path, number: int, *, store: str, manifest: Manifest | None = None
) -> RecoveredContainer:
    """Recover a container of a folder, and accept losses and contradictions of its log.

    If the containers have manifests in an object store, nothing is changed there: the folder may not own them.

    Args:
        store: URL of the object store with the history; empty if the folder has it.
        manifest: of the container, None if it has none.

    Raises:
        ServerError, OSError: accepting failed; calling again shows the remaining losses.
    """
    options = options_of(data_dir)
    async with opened_tier2(data_dir, store=store, options=options.tier2) as storage:
        return await _recover_and_accept(
            number,
            data_dir / CONTAINERS_FOLDER / f"{number:04x}",
            options=options,
            server_id=read_identity(OsFileSystem(), data_dir).server_id,
            storage=UnclaimedStorage(storage) if manifest else storage,
            claim=_in_folder if manifest is None else partial(_unclaimed, manifest),
        )


async def accept_loss_in_store(
    options: ServerOptions, *, store: ObjectStore | None = None, clock: Clock | None = None
) -> RecoveredContainer:
    """Claim the container of a store like a server that starts elsewhere, and accept the losses of its log.

    Args:
        options: with a new folder.
        store: used instead of the one that the options name.

    Raises:
        OwnedElsewhereError: a server owns the container; stop it first.
        ServerError: all of the loss or nothing was accepted: calling again shows which.
    """
    clock, metrics = clock or SystemClock(), Metrics()
    failures: list[BaseException] = []
    backend = Backend(
        options.for_storage(),
        files=OsFileSystem(),
        clock=clock,
        metrics=metrics,
        monitor=StoreMonitor(metrics, clock),
        on_fenced=failures.append,
        on_failure=lambda _, error: failures.append(error),
        store=store,
        is_repair=True,
    )
    try:
        await backend.open()
        return await _recover_and_accept(
            CONTAINER,
            backend.folder.container(CONTAINER),
            options=options,
            server_id=backend.folder.server_id,
            storage=backend.storage,
            claim=backend.claim,
            store=backend.store,
            clock=clock,
        )
    finally:
        is_fenced = any(isinstance(failure, OwnerFencedError) for failure in failures)
        await backend.close(release_s=None if is_fenced else RELEASE_S)


async def _recover_and_accept(
    number: int,
    folder: Path,
    *,
    options: ServerOptions,
    server_id: UUID,
    storage: ChunkStorage,
    claim: Callable[[LocalContainer], Awaitable[Ownership]],
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> RecoveredContainer:
    """Recover a container as a starting server would, and accept losses and contradictions of its log."""
    cache = PageCache(CacheOptions())
    failures: list[BaseException] = []
    try:
        local = await local_container(
            number,
            folder,
            files=OsFileSystem(),
            storage=storage,
            kinds=KINDS,
            server_id=server_id,
            options=options.container,
        )
        environment = local.environment(
            await claim(local),
            container_options=options.container,
            wal_options=options.wal,
            clock=clock or SystemClock(),
            metrics=Metrics(),
            cache=cache,
            page_size_bytes=options.tier2.page_size_bytes,
            on_failure=failures.append,
            store=store,
        )
        opened = await open_container(environment)
        try:
            loss, state = opened.container.loss, opened.container.state
            recovered = RecoveredContainer(
                container=number,
                segments=state.user_segment_count,
                streams=len(state.streams),
                sequence=state.sequence,
                loss="" if loss is None else str(loss),
                damages=tuple(str(damage) for damage in state.quarantine if not damage.accepted),
            )
            if recovered.loss or recovered.damages:
                await accept_loss(opened)
            return recovered
        finally:
            await opened.close(log_s=options.shutdown_s, flush_s=0.0)
    finally:
        await cache.close()


class UnclaimedOwnership:
    """The `Ownership` of a command that repairs the folder of a container, and changes nothing in its store.

    Args:
        epoch: above those of all earlier starts that the folder knows.
        copy: the current copy.
        copy_before: the previous one.
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
        """Do nothing: the manifest stays unchanged."""

    def log_began(self, epoch_ends: Mapping[int, int], *, acknowledged: Callable[[], int]) -> None:
        """Do nothing: the log is in the folder."""

    async def record_copy(self, copy: CopyRecord) -> None:
        """Refuse: the server that claims the container next makes a copy."""
        raise StorageError("only the server that has claimed the container may record a copy", subject=copy.name)

    async def raise_epoch(self) -> int:
        """Continue under the next epoch, see `Ownership`."""
        self.epoch += 1
        return self.epoch

    def statistics(self) -> OwnershipStatistics:
        """Return the state of the ownership, see `Ownership`."""
        return OwnershipStatistics(epoch=self.epoch)

    async def release(self) -> None:
        """Do nothing: nothing was claimed."""


async def _in_folder(local: LocalContainer) -> FolderOwnership:
    return FolderOwnership(local.next_epoch)


async def _unclaimed(manifest: Manifest, local: LocalContainer) -> UnclaimedOwnership:
    epoch = max(local.next_epoch, manifest.epoch + 1)
    return UnclaimedOwnership(epoch, copy=manifest.checkpoint, copy_before=manifest.checkpoint_before)
