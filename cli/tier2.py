"""Tier 2 of a data folder for commands that read it offline: in the folder, or in the object store that has it."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from millrace.model.errors import InvalidArgumentError
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX
from millrace.server.errors import ConfigurationError, FolderVersionError
from millrace.server.folder import TIER2_FOLDER, read_identity
from millrace.server.host.files import OsFileSystem
from millrace.server.object_store import ObjectStoreOptions, RetryingStore, StoreUrl
from millrace.server.object_store.cloud import CloudStore
from millrace.server.tier2 import ChunkInfo, ChunkStorage, LocalStorage, ObjectStorage, Tier2Options

PATIENCE_S: Final = 15.0
"""How long a command asks again for what a store does not answer."""

_SCOPE: Final = re.compile(r"c[0-9a-f]{4}/", re.ASCII)

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The object store of the history: s3://BUCKET/PREFIX."),
]


@dataclass(frozen=True, slots=True)
class RemoteHistory:
    """What is in an object store of the history of a server.

    Attributes:
        url: of the store.
        folder: has the copies of checkpoints as files, each below the scope of its container.
        chunks: all objects that are chunks or parts of copies, by name; what is below no container is not ours.
    """

    url: str
    folder: Path
    chunks: tuple[ChunkInfo, ...]

    @property
    def containers(self) -> list[int]:
        """The numbers of the containers of which there is anything, ascending."""
        scopes = {chunk.name.partition("/")[0] for chunk in self.chunks}
        return sorted(int(scope[1:], 16) for scope in scopes)


def checked_store(url: str) -> str:
    """Return the URL of a store as it is always written.

    Raises:
        InvalidArgumentError: it is none.
    """
    try:
        return str(StoreUrl.parse(url))
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error


def store_of(data_dir: Path) -> str:
    """Return the URL of the store where the history of a folder is, empty if it is in the folder itself or unknown.

    Raises:
        FolderVersionError: another version wrote the folder.
    """
    try:
        return read_identity(OsFileSystem(), data_dir).store
    except FolderVersionError:
        raise
    except ConfigurationError:
        return ""


@asynccontextmanager
async def opened_tier2(
    data_dir: Path | None, *, store: str, options: Tier2Options | None = None
) -> AsyncIterator[ChunkStorage]:
    """Lend the storage of chunks that a store, or else a data folder, is. A store is neither probed nor claimed.

    Raises:
        ConfigurationError: the environment does not say enough of the store.
    """
    storage: ChunkStorage
    if store:
        limits = ObjectStoreOptions(patience_s=PATIENCE_S)
        cloud = await CloudStore.connect(StoreUrl.parse(store), attempt_s=limits.attempt_s)
        storage = ObjectStorage(RetryingStore(cloud, limits), puts_count_max=limits.puts_count_max)
    else:
        assert data_dir is not None
        storage = LocalStorage(OsFileSystem(), data_dir / TIER2_FOLDER, options or Tier2Options())
    try:
        yield storage
    finally:
        await storage.close()


@contextmanager
def remote_history(store: str) -> Iterator[RemoteHistory]:
    """Lend what is in an object store; its copies of checkpoints are fetched for that long. Blocks.

    Raises:
        StorageError: it does not answer, or does not let us in.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-history-") as folder:
        yield RemoteHistory(store, Path(folder), asyncio.run(_fetch_copies(store, Path(folder))))


def fetch(store: str, name: str, target: Path) -> None:
    """Write an object of a store to a file. Blocks.

    Raises:
        ChunkNotFoundError: there is none of that name.
        StorageError: the store does not answer, or does not let us in.
    """

    async def run() -> None:
        async with opened_tier2(None, store=store) as storage:
            sizes = {info.name: info.size for info in await storage.list(name.removesuffix(".chunk"))}
            await _fetch(storage, ChunkInfo(name, sizes.get(name, 1)), target)

    asyncio.run(run())


async def _fetch_copies(store: str, folder: Path) -> tuple[ChunkInfo, ...]:
    async with opened_tier2(None, store=store) as storage:
        chunks = [chunk for chunk in await storage.list() if _SCOPE.match(chunk.name)]
        for chunk in chunks:
            if chunk.name.partition("/")[2].startswith(CHECKPOINT_PREFIX):
                await _fetch(storage, chunk, folder / chunk.name)
    return tuple(chunks)


async def _fetch(storage: ChunkStorage, chunk: ChunkInfo, target: Path) -> None:
    content = await storage.read(chunk.name, offset=0, size=chunk.size)
    await asyncio.to_thread(_write, target, content)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
