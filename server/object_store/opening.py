"""Opens the object store of a server: connects, probes it, and claims the prefix for this server.

    cluster.json    at the root of the prefix: format version, server id, and the CRC-32C of that in hexadecimal digits;
                    created once with put-if-absent. An object without a checksum is from an earlier version

If it is missing or damaged, and the history below the prefix names the server, it is written again. A prefix belongs to
the first server that claimed it: two servers by mistake would delete each other's chunks as orphans.
"""

import json
import logging
import uuid
from dataclasses import dataclass
from typing import Final

from millrace.model.checksum import crc32c
from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StoreBusyError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from millrace.server.host.clock import Clock

from .cloud import CloudStore
from .monitor import StoreMonitor
from .options import ObjectStoreOptions
from .probe import Honesty, probe
from .retrying import RetryingStore
from .room import when_there_is_room
from .store import ObjectStore
from .url import StoreUrl

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
OWNER_KEY: Final = "cluster.json"
BUSY_PAUSE_S: Final = 1.0
BUSY_PAUSE_S_MAX: Final = 30.0
"""Pause between the probes at startup, while the store rate-limits requests: each probe retries for `patience_s`."""


async def open_store(
    url: StoreUrl,
    options: ObjectStoreOptions,
    *,
    clock: Clock,
    monitor: StoreMonitor,
    store: ObjectStore | None = None,
    has_reserve: bool = False,
) -> RetryingStore:
    """Return the store that a URL names, after it passed the probe. The caller closes it.

    Args:
        store: used instead of the one that the URL names, and closed with the result.
        has_reserve: whether to keep a reserve, if the options have one.

    Raises:
        MissingExtraError: obstore is not installed.
        ConfigurationError: the environment lacks settings.
        UnsupportedStoreError: the store failed the probe.
        StorageError: the store does not answer, or denies access. A store that is busy or full is retried.
    """
    cloud = store or await CloudStore.connect(
        url, attempt_s=options.attempt_s, bytes_per_s_min=options.bytes_per_s_min, clock=clock
    )
    retrying = RetryingStore(cloud, options, clock=clock, monitor=monitor)
    if has_reserve and options.reserve_bytes:
        retrying = retrying.with_reserve(options.reserve_bytes)
    try:
        started_s = clock.monotonic_s()
        honesty = await when_there_is_room(lambda: _probed(retrying, url, clock), name="probe", clock=clock)
        if honesty.fault:
            raise UnsupportedStoreError(
                f"the store {honesty.fault}; it cannot keep the history of a server", subject=str(url)
            )
        logger.info("object store probed url=%s duration_s=%.3f", url, clock.monotonic_s() - started_s)
    except (StoreUnavailableError, StoreRefusedError) as error:
        await retrying.close()
        raise type(error)(f"the object store cannot be used: {error.message}", subject=str(url)) from error
    except BaseException:
        await retrying.close()
        raise
    return retrying


async def _probed(store: RetryingStore, url: StoreUrl, clock: Clock) -> Honesty:
    pause_s = BUSY_PAUSE_S
    while True:
        try:
            return await probe(store, clock=clock)
        except StoreBusyError as error:
            logger.warning("object store busy, startup waits url=%s retry_after_s=%.1f error=%s", url, pause_s, error)
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, BUSY_PAUSE_S_MAX)


@dataclass(frozen=True, slots=True)
class PrefixOwner:
    """Content of the object that names the server of a prefix.

    Attributes:
        server_id: None if the object is missing or damaged.
        tag: of the object; empty if it is missing.
        damage: what is wrong with the object; empty if it is sound or missing.
    """

    server_id: uuid.UUID | None
    tag: str
    damage: str = ""


async def find_owner(store: ObjectStore, url: StoreUrl) -> PrefixOwner:
    """Return the server that owns a prefix.

    Raises:
        UnsupportedStoreError: the object was written by another version.
        StorageError: the store does not answer, or denies access.
    """
    try:
        found = await store.get(OWNER_KEY)
    except ObjectNotFoundError:
        return PrefixOwner(None, "")
    try:
        return PrefixOwner(_owner_of(found.content, url), found.tag)
    except _DamagedOwnerError as error:
        return PrefixOwner(None, found.tag, damage=str(error))


async def claim(
    store: ObjectStore, url: StoreUrl, *, server_id: uuid.UUID, is_new: bool, known: uuid.UUID | None = None
) -> None:
    """Claim a prefix for a server; the first server gets it.

    Args:
        is_new: whether the server has stored nothing so far; then the prefix may be empty.
        known: the server that the history below the prefix names, if cluster.json is missing or damaged: it is then
            written again.

    Raises:
        UnsupportedStoreError: the prefix belongs to another server, or is empty although the server has stored data.
        StorageError: the store does not answer, or denies access, or the object is damaged.
    """
    found = await find_owner(store, url)
    if found.server_id is None:
        found = await _name_owner(store, url, found, server_id=server_id, is_new=is_new, known=known)
    if found.server_id != server_id:
        raise UnsupportedStoreError(
            f"belongs to server {found.server_id}, but this is server {server_id}; use another prefix",
            subject=str(url),
        )


async def _name_owner(
    store: ObjectStore,
    url: StoreUrl,
    found: PrefixOwner,
    *,
    server_id: uuid.UUID,
    is_new: bool,
    known: uuid.UUID | None,
) -> PrefixOwner:
    """Store the object that names the server of a prefix, unless another server was faster; return its content."""
    if known not in (None, server_id):
        return PrefixOwner(known, found.tag)
    if known is None and found.tag:
        raise StorageError(
            f"{OWNER_KEY} is damaged: {found.damage}; restore it, or delete it if nothing else is stored below the"
            " prefix",
            subject=str(url),
        )
    if known is None and not is_new:
        raise UnsupportedStoreError(
            f"contains no {OWNER_KEY}, although server {server_id} stored its history there: is it the right bucket?",
            subject=str(url),
        )
    try:
        if found.tag:
            await store.replace(OWNER_KEY, _encode(server_id), tag=found.tag)
        else:
            await store.create(OWNER_KEY, [_encode(server_id)])
    except (ObjectExistsError, ObjectChangedError):
        return await find_owner(store, url)
    if known is not None:
        logger.warning("owner record of the prefix restored url=%s server_id=%s", url, server_id)
    return PrefixOwner(server_id, "")


def _encode(server_id: uuid.UUID) -> bytes:
    content = {"format_version": FORMAT_VERSION, "server_id": str(server_id), "checksum": _checksum(str(server_id))}
    return json.dumps(content, indent=2).encode() + b"\n"


def _checksum(server_id: str) -> str:
    return f"{crc32c(server_id.encode()):08x}"


class _DamagedOwnerError(Exception):
    """The object that names the server of a prefix is damaged; the text describes the damage."""


def _owner_of(found: bytes, url: StoreUrl) -> uuid.UUID:
    """Return the server that an object names."""
    try:
        content = json.loads(found)
        version, owner = int(content["format_version"]), str(content["server_id"])
        server_id = uuid.UUID(owner)
        is_damaged = content.get("checksum", _checksum(owner)) != _checksum(owner)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _DamagedOwnerError("it must be a JSON object with format_version and server_id") from error
    if is_damaged:
        raise _DamagedOwnerError(f"its checksum is {content['checksum']!r}, but must be {_checksum(owner)!r}")
    if version != FORMAT_VERSION:
        raise UnsupportedStoreError(
            f"is in format {version}; this version knows format {FORMAT_VERSION} only", subject=str(url)
        )
    return server_id
