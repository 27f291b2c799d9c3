"""Accepting what a log in an object store has lost: the container is claimed, as by a server that starts elsewhere."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.local import local_environment
from millrace.server.container.log_loss import LogLoss
from millrace.server.container.repair import accept_loss
from millrace.server.container.startup import open_container
from millrace.server.container.state.container_state import ContainerState
from millrace.server.host.clock import Clock, SystemClock
from millrace.server.host.files import OsFileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.hosting.backend import Backend
from millrace.server.object_store import ObjectStore, StoreMonitor, StoreUrl
from millrace.server.options import ServerOptions
from millrace.server.settings import load_settings

CONTAINER: Final = 0
RELEASE_S: Final = 15.0


@contextmanager
def repairing_options(url: str) -> Iterator[ServerOptions]:
    """Lend the options of a server of a prefix whose folder is new and is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="millrace-repair-") as folder:
        options = load_settings({"data_dir": Path(folder) / "data"}).options
        yield replace(options, store=StoreUrl.parse(url), wal=replace(options.wal, place="object"))


def problems_of(loss: LogLoss | None, state: ContainerState) -> list[str]:
    """Return what a log has lost, and what it contradicts, as far as no operator has accepted it."""
    damages = [str(damage) for damage in state.quarantine if not damage.accepted]
    return damages if loss is None else [str(loss), *damages]


async def accept_loss_in_store(
    options: ServerOptions, *, store: ObjectStore | None = None, clock: Clock | None = None
) -> str:
    """Accept, durably, what the log of a container in a store has lost or contradicts; return it, a line for each.

    The text is empty if there is nothing to accept.

    Args:
        options: with a folder that is new.
        store: in place of the one that the options name.

    Raises:
        OwnedElsewhereError: a server has the container; it must be stopped.
        ServerError: nothing was accepted, or all of it: calling again tells.
    """
    clock, files, metrics = clock or SystemClock(), OsFileSystem(), Metrics()
    cache = PageCache(CacheOptions())
    failures: list[BaseException] = []
    backend = Backend(
        options.for_storage(),
        files=files,
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
        environment = await local_environment(
            CONTAINER,
            backend.folder.container(CONTAINER),
            files=files,
            storage=backend.storage,
            container_options=options.container,
            wal_options=options.wal,
            clock=clock,
            metrics=metrics,
            server_id=backend.folder.server_id,
            cache=cache,
            page_size_bytes=options.tier2.page_size_bytes,
            on_failure=failures.append,
            claim=partial(backend.claim, CONTAINER),
            store=backend.store,
        )
        opened = await open_container(environment)
        try:
            problems = problems_of(opened.container.loss, opened.container.state)
            if problems:
                await accept_loss(opened)
            return "\n".join(problems)
        finally:
            await opened.close(log_s=options.shutdown_s, flush_s=0.0)
    finally:
        await backend.close(release_s=RELEASE_S)
        await cache.close()
