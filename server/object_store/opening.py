"""Opening the object store of a server: it is reached, probed, and claimed for that server alone.

    cluster.json    at the root of the prefix: format version and server id, created once with put-if-absent

A prefix belongs to the server that came first: two by mistake would delete each other's chunks as orphans.
"""

import json
import logging
import uuid
from typing import Final

from millrace.server.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnfitError,
)
from millrace.server.host.clock import Clock

from .cloud import CloudStore
from .monitor import StoreMonitor
from .options import ObjectStoreOptions
from .probe import probe
from .retrying import RetryingStore
from .store import ObjectStore
from .url import StoreUrl

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
OWNER_KEY: Final = "cluster.json"


async def open_store(
    url: StoreUrl, options: ObjectStoreOptions, *, clock: Clock, monitor: StoreMonitor
) -> RetryingStore:
    """Return the store that a URL names, after it has proved that it can be relied on. To be closed.

    Raises:
        MissingExtraError: obstore is not installed.
        ConfigurationError: the environment does not say enough.
        StoreUnfitError: the store does not do what it must.
        StorageError: it does not answer, or does not let us in.
    """
    cloud = await CloudStore.connect(url, attempt_s=options.attempt_s)
    store = RetryingStore(cloud, options, clock=clock, monitor=monitor)
    try:
        started_s = clock.monotonic_s()
        honesty = await probe(store)
        if honesty.fault:
            raise StoreUnfitError(
                f"the store {honesty.fault}; it cannot keep the history of a server", subject=str(url)
            )
        logger.info("object store probed url=%s duration_s=%.3f", url, clock.monotonic_s() - started_s)
    except (StoreUnavailableError, StoreRefusedError) as error:
        await store.close()
        raise type(error)(f"the object store cannot be used: {error.message}", subject=str(url)) from error
    except BaseException:
        await store.close()
        raise
    return store


async def claim(store: ObjectStore, url: StoreUrl, *, server_id: uuid.UUID, is_new: bool) -> None:
    """Make sure that what is below a prefix is that of a server; the first one to come gets it.

    Args:
        is_new: whether the server has kept nothing so far; then there may be nothing yet.

    Raises:
        StoreUnfitError: it is that of another server, or it is empty and should not be.
        StorageError: the store does not answer, or does not let us in.
    """
    mine = json.dumps({"format_version": FORMAT_VERSION, "server_id": str(server_id)}, indent=2).encode() + b"\n"
    try:
        found = (await store.get(OWNER_KEY)).content
    except ObjectNotFoundError:
        if not is_new:
            raise StoreUnfitError(
                f"holds no {OWNER_KEY}, though server {server_id} has kept its history there: is it the right bucket?",
                subject=str(url),
            ) from None
        try:
            await store.create(OWNER_KEY, [mine])
            return
        except ObjectExistsError:  # another one was faster
            found = (await store.get(OWNER_KEY)).content
    try:
        content = json.loads(found)
        version, owner = int(content["format_version"]), uuid.UUID(content["server_id"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StorageError(f"{OWNER_KEY} does not say whose it is: {error!r}", subject=str(url)) from error
    if version != FORMAT_VERSION:
        raise StoreUnfitError(
            f"is in format {version}; this version knows format {FORMAT_VERSION} only", subject=str(url)
        )
    if owner != server_id:
        raise StoreUnfitError(
            f"belongs to server {owner}, and this one is {server_id}; give it a prefix of its own", subject=str(url)
        )
