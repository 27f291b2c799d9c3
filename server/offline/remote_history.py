"""Tier 2 of a data folder for commands that read it offline: in the folder, or in the object store that has it."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from millrace.model.checksum import Buffer
from millrace.model.errors import InvalidArgumentError
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, parse_part_name, whole_copies
from millrace.server.container.ids import scope_of
from millrace.server.errors import (
    ChunkNotFoundError,
    ConfigurationError,
    FolderVersionError,
    ManifestUnreadableError,
    ObjectNotFoundError,
    StorageError,
)
from millrace.server.folder import TIER2_FOLDER, read_identity
from millrace.server.host.files import OsFileSystem
from millrace.server.object_store import ObjectStore, ObjectStoreOptions, RetryingStore, StoreUrl
from millrace.server.object_store.cloud import CloudStore
from millrace.server.ownership import CopyRecord, Manifest, read_manifest
from millrace.server.settings import load_settings
from millrace.server.tier2 import ChunkInfo, ChunkStorage, LocalStorage, ObjectStorage, Tier2Options
from millrace.server.tier2.storage import CHUNK_SUFFIX
from millrace.server.wal import LOG_PREFIX

from .prefix_owner import OwnerProblem, owner_problem

PATIENCE_S: Final = 15.0
"""How long a command retries requests that the store does not answer."""

LISTINGS_COUNT_MAX: Final = 10
"""How often a store is listed again because a listed copy was deleted."""

Item = TypeVar("Item")

_SCOPE: Final = re.compile(r"c[0-9a-f]{4}/", re.ASCII)
_MANIFEST: Final = re.compile(r"c([0-9a-f]{4})/manifest", re.ASCII)
_LOG: Final = re.compile(rf"c([0-9a-f]{{4}})/{LOG_PREFIX}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RemoteHistory:
    """The history of a server in an object store.

    Attributes:
        url: of the store.
        folder: contains the copies of checkpoints as files, each below the scope of its container.
        objects: all that have the name of a chunk or of a part of a copy, by name, including those below no container.
        manifests: of containers, by number; an error if one cannot be read.
        logs: the numbers of the containers whose log is in the store.
        owner_problem: of `cluster.json`; None if that is sound.
    """

    url: str
    folder: Path
    objects: tuple[ChunkInfo, ...]
    manifests: Mapping[int, Manifest | ManifestUnreadableError] = field(default_factory=dict)
    logs: frozenset[int] = frozenset()
    owner_problem: OwnerProblem | None = None

    @property
    def chunks(self) -> list[ChunkInfo]:
        """Chunks and parts of copies, by name; objects below no container are ignored."""
        return [each for each in self.objects if _SCOPE.match(each.name)]

    @property
    def containers(self) -> list[int]:
        """The numbers of the containers that have any object, ascending."""
        scopes = {chunk.name.partition("/")[0] for chunk in self.chunks}
        return sorted({*(int(scope[1:], 16) for scope in scopes), *self.manifests, *self.logs})

    @property
    def copies(self) -> dict[int, str]:
        """By container, the name of the current copy of the checkpoint, even if it is missing."""
        newest = {number: whole[-1].name for number in self.containers if (whole := whole_copies(self.parts(number)))}
        return newest | {number: copy.name for number in self.manifests if (copy := self.recorded(number))}

    def manifest(self, container: int) -> Manifest | None:
        """Return the manifest of a container, None if it is missing or unreadable."""
        found = self.manifests.get(container)
        return found if isinstance(found, Manifest) else None

    def recorded(self, container: int) -> CopyRecord | None:
        """Return the copy that the manifest of a container names; None if only the names of copies are available."""
        manifest = self.manifest(container)
        return manifest.checkpoint if manifest else None

    def parts(self, container: int) -> list[ChunkInfo]:
        """Return the parts of a container's copies, named relative to its scope."""
        scope = scope_of(container)
        return [
            ChunkInfo(each.name.removeprefix(scope), each.size)
            for each in self.objects
            if each.name.startswith(scope + CHECKPOINT_PREFIX)
        ]


def checked_store(url: str) -> str:
    """Return the normalised URL of a store.

    Raises:
        InvalidArgumentError: it is invalid.
    """
    try:
        return str(StoreUrl.parse(url))
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error


def store_of(data_dir: Path) -> str:
    """Return the URL of the store with the history of a folder, empty if it is in the folder itself or unknown.

    Raises:
        FolderVersionError: the folder was written by another version.
    """
    try:
        return read_identity(OsFileSystem(), data_dir).store
    except FolderVersionError:
        raise
    except ConfigurationError:
        return ""


def iterated(items: AsyncIterator[Item]) -> Iterator[Item]:
    """Iterate over an async generator, in an event loop of its own. Blocks."""

    async def next_items() -> list[Item]:
        async for item in items:
            return [item]
        return []

    with asyncio.Runner() as runner:
        while found := runner.run(next_items()):
            yield from found


@asynccontextmanager
async def opened_store(url: str) -> AsyncIterator[RetryingStore]:
    """Open an object store, without a probe and without a claim.

    Raises:
        ConfigurationError: the environment lacks settings of the store.
    """
    store = await connect_store(StoreUrl.parse(url), patience_s=PATIENCE_S)
    try:
        yield store
    finally:
        await store.close()


async def connect_store(url: StoreUrl, *, patience_s: float) -> RetryingStore:
    """Connect to a store with the settings of the environment, like a server, so that timeouts fit a slow network.

    Raises:
        ConfigurationError: the environment lacks settings of the store.
    """
    settings = await asyncio.to_thread(load_settings, {})
    limits = replace(settings.options.objects, patience_s=patience_s)
    cloud = await CloudStore.connect(url, attempt_s=limits.attempt_s, bytes_per_s_min=limits.bytes_per_s_min)
    return RetryingStore(cloud, limits)


@asynccontextmanager
async def opened_tier2(
    data_dir: Path | None, *, store: str, options: Tier2Options | None = None
) -> AsyncIterator[ChunkStorage]:
    """Open the chunk storage of a store, or else of a data folder. A store is neither probed nor claimed.

    Raises:
        ConfigurationError: the environment lacks settings of the store.
    """
    storage: ChunkStorage
    if store:
        opened = await connect_store(StoreUrl.parse(store), patience_s=PATIENCE_S)
        storage = ObjectStorage(opened, puts_count_max=ObjectStoreOptions().puts_count_max)
    else:
        assert data_dir is not None
        storage = LocalStorage(OsFileSystem(), data_dir / TIER2_FOLDER, options or Tier2Options())
    try:
        yield storage
    finally:
        await storage.close()


class UnclaimedStorage:
    """A `ChunkStorage` over another one that only reads: only the server that owns a container may change it.

    Args:
        storage: closed by its owner.
    """

    def __init__(self, storage: ChunkStorage) -> None:
        self.read = storage.read
        self.list = storage.list

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Refuse, see the class."""
        raise StorageError("only the server that has claimed the container may store chunks", subject=name)

    async def delete(self, name: str) -> None:
        """Refuse, see the class."""
        raise StorageError("only the server that has claimed the container may delete chunks", subject=name)

    async def delete_temporary_files(self, prefix: str = "") -> int:
        """Do nothing: a store has no temporary files."""
        return 0

    async def close(self) -> None:
        """Do nothing: the other storage is closed by its owner."""


@contextmanager
def remote_history(store: str) -> Iterator[RemoteHistory]:
    """Read the history in an object store, and fetch its copies of checkpoints while the body runs. Blocks.

    Raises:
        StorageError: the store does not answer, or denies access.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-history-") as folder:
        yield asyncio.run(_read(store, Path(folder)))


def refreshed(history: RemoteHistory) -> RemoteHistory:
    """Return the current history in a store; fetches new copies of checkpoints. Blocks.

    The previous result is no longer valid.

    Raises:
        StorageError: as for `remote_history`.
    """
    return asyncio.run(_read(history.url, history.folder))


async def _read(url: str, folder: Path) -> RemoteHistory:
    async with opened_store(url) as store:
        return await read_history(store, folder, url=url)


async def read_history(store: ObjectStore, folder: Path, *, url: str) -> RemoteHistory:
    """Return the history in a store, and fetch the copies of checkpoints that are not in `folder` yet.

    A server that uses the store deletes old copies. A copy that vanishes before it was fetched is left out.

    Raises:
        ObjectNotFoundError: copies vanished again and again.
        StorageError: the store does not answer, or denies access.
    """
    seen: Mapping[int, Manifest | ManifestUnreadableError] = {}
    for attempts_left in reversed(range(LISTINGS_COUNT_MAX)):
        listed = [ChunkInfo(each.key, each.size) async for page in store.list() for each in page]
        # After the listing, so that a copy named by a manifest is in the listing, unless it was deleted already.
        manifests = {
            int(match[1], 16): await _manifest(store, int(match[1], 16), url=url)
            for each in listed
            if (match := _MANIFEST.fullmatch(each.name))
        }
        history = RemoteHistory(
            url,
            folder,
            tuple(each for each in listed if each.name.endswith(CHUNK_SUFFIX)),
            {number: manifest for number, manifest in manifests.items() if manifest is not None},
            frozenset(int(match[1], 16) for each in listed if (match := _LOG.match(each.name))),
            await owner_problem(store, url=url),
        )
        if not _has_recorded(history) and history.manifests != seen:
            seen = history.manifests
            if attempts_left:
                continue  # the copy is newer than the listing; if the same manifest comes again, the copy is missing
        try:
            await _fetch_copies(store, history)
        except ObjectNotFoundError:
            if not attempts_left:
                raise
        else:
            return history
    raise AssertionError("the last attempt returns or raises")


async def _manifest(store: ObjectStore, container: int, *, url: str) -> Manifest | ManifestUnreadableError | None:
    try:
        found = await read_manifest(store, container, url=url)
    except ManifestUnreadableError as error:
        return error
    return found.manifest if found else None


def _has_recorded(history: RemoteHistory) -> bool:
    """Return whether all parts of the copies that manifests name were listed."""
    return all(
        copy.name in (whole.name for whole in whole_copies(history.parts(number)))
        for number in history.manifests
        if (copy := history.recorded(number)) is not None
    )


async def _fetch_copies(store: ObjectStore, history: RemoteHistory) -> None:
    """Update the files of a folder to the listed copies."""
    parts = {
        history.folder / scope_of(number) / part.name: (f"{scope_of(number)}{part.name}", part.size)
        for number in history.containers
        for part in history.parts(number)
        if parse_part_name(part.name)  # a store may contain any names, even those that lead out of the folder
    }
    for path in history.folder.glob(f"*/{CHECKPOINT_PREFIX}*{CHUNK_SUFFIX}"):
        if path not in parts:
            path.unlink()
    # The newest first: the oldest is the next to be deleted.
    for path, (key, size) in sorted(parts.items(), reverse=True):
        if not path.exists():
            await asyncio.to_thread(_write, path, await store.read(key, offset=0, size=size))


def fetch(store: str, name: str, target: Path) -> None:
    """Write an object of a store to a file. Blocks.

    Raises:
        ChunkNotFoundError: the object does not exist.
        StorageError: the store does not answer, or denies access.
    """

    async def run() -> bytes:
        async with opened_store(store) as opened:
            try:
                return (await opened.get(name)).content
            except ObjectNotFoundError as error:
                raise ChunkNotFoundError("the object does not exist", subject=name) from error

    _write(target, asyncio.run(run()))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
