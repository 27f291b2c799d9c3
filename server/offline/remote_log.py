"""The log of a container in an object store, read without claiming it: a server may write to it meanwhile."""

import asyncio
from typing import Final

from millrace.server.container.ids import scope_of
from millrace.server.ownership import Manifest, read_acknowledged, read_manifest
from millrace.server.wal import LOG_PREFIX, AcceptedLoss, Damage, LogOwner, ObjectRecovery, RecoveredBatch

from .remote_history import opened_store

PASSES_COUNT_MAX: Final = 5


def read_remote_log(
    url: str, manifest: Manifest, *, owner: LogOwner | None, from_sequence: int, accepted: AcceptedLoss
) -> tuple[ObjectRecovery, list[RecoveredBatch | Damage]]:
    """Return the current log, all of it in memory, and its report. Nothing is closed or deleted. Blocks.

    A server deletes batches that are no longer needed, after it has recorded that in its manifest. So a missing batch
    counts as damage only if a manifest that is read afterwards still needs it.

    Args:
        manifest: gives the place of the log, as far as is known.
        from_sequence, accepted: as of `Log.recover`.

    Raises:
        FolderVersionError: the log belongs to another server, or was written by another version.
        StorageError: the store does not answer.
    """

    async def run(manifest: Manifest) -> tuple[ObjectRecovery, list[RecoveredBatch | Damage]]:
        async with opened_store(url) as store:
            for _ in range(PASSES_COUNT_MAX):
                assert manifest.log is not None
                # Before the log is read: a server acknowledges only batches that are in the store.
                acknowledged = manifest.log.acknowledged
                if manifest.owner is not None:
                    acknowledged = max(acknowledged, await read_acknowledged(store, manifest.owner))
                recovery = ObjectRecovery(
                    store,
                    f"{scope_of(manifest.container)}{LOG_PREFIX}",
                    epochs=manifest.log.epochs,
                    from_sequence=manifest.log.from_sequence,
                    owner=owner,
                    acknowledged=acknowledged,
                    closes=False,
                )
                items = [item async for item in recovery.batches(from_sequence, accepted=accepted)]
                newer = await read_manifest(store, manifest.container, url=url)
                if not recovery.report.damages or newer is None or newer.manifest.log == manifest.log:
                    break
                manifest = newer.manifest
            return recovery, items

    return asyncio.run(run(manifest))
