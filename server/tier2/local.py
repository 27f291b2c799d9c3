"""Chunks stored as files below one folder.

The name of a chunk is its path below the folder. A chunk is published as

    write <name without suffix>.<random>.temporary  ->  datasync  ->  rename  ->  sync of the folder

so a crash leaves either the chunk or a temporary file, which `delete_temporary_files` deletes at the next start.

Files are accessed through `FileSystem`, which blocks; aiofiles runs the calls in threads. Each call is a whole
operation, not one system call: if a cancelled await could close a descriptor while a thread still writes to it, the
system might have given the number to another file already. It also costs one thread switch (30 to 70 us) instead of
six.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from aiofiles.os import wrap

from millrace.model.checksum import Buffer
from millrace.server.errors import ChunkExistsError, ChunkNotFoundError, ServerError, StorageError
from millrace.server.host.files import FileSystem
from millrace.server.host.room import DiskRoom
from millrace.server.host.supervisor import mark_seen

from .layout import SEGMENTS_FOLDER
from .options import Tier2Options
from .storage import CHUNK_SUFFIX, ChunkInfo, check_chunk_name, check_chunk_prefix

TEMPORARY_SUFFIX: Final = ".temporary"
_SYNCED_FOLDERS_MAX: Final = 4096

P = ParamSpec("P")
T = TypeVar("T")


class LocalStorage:
    """A `ChunkStorage` over a folder. Belongs to one event loop."""

    def __init__(self, files: FileSystem, folder: Path, options: Tier2Options, *, room: DiskRoom | None = None) -> None:
        """Store the collaborators; without `room`, chunks may use all of the volume."""
        self._room = room or DiskRoom(files)
        self._files = files
        self._folder = folder
        self._executor = ThreadPoolExecutor(options.threads, thread_name_prefix="millrace-tier2")
        # Publishes in progress, by name: two of one name run one after the other, even if the first was cancelled.
        self._publishes: dict[str, asyncio.Future[None]] = {}
        # Temporary files being written, which are not leftovers of a crash. Changed by threads.
        self._temporaries: set[Path] = set()
        # Folders whose own names, up to the root, are known to be durable. Changed by threads.
        self._synced_folders: set[Path] = set()

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Write a chunk durably, see `ChunkStorage`. A cancelled publish still completes."""
        check_chunk_name(name)
        while (earlier := self._publishes.get(name)) is not None:
            await asyncio.wait([earlier])
        publish = asyncio.ensure_future(self._in_thread(self._publish, name, pieces))
        self._publishes[name] = publish
        publish.add_done_callback(lambda done: self._published(name, done))
        # Waiting, unlike awaiting, does not hand a cancellation on.
        await asyncio.wait([publish])
        publish.result()

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Read a part of a chunk, see `ChunkStorage`."""
        assert offset >= 0
        assert size >= 0
        return await self._in_thread(self._read, check_chunk_name(name), offset, size)

    async def list(self, prefix: str = "") -> list[ChunkInfo]:
        """List chunks by name, see `ChunkStorage`."""
        return [*await self._in_thread(self._list, check_chunk_prefix(prefix))]

    async def delete(self, name: str) -> None:
        """Delete a chunk, see `ChunkStorage`. A cancelled delete still completes."""
        await self._in_thread(self._delete, check_chunk_name(name))

    async def delete_temporary_files(self, prefix: str = "") -> int:
        """Delete the temporary files that no publish of this process is writing, see `ChunkStorage`."""
        return await self._in_thread(self._delete_temporary_files, check_chunk_prefix(prefix))

    async def close(self) -> None:
        """Wait for operations in progress and end the threads."""
        while self._publishes:
            await asyncio.wait(self._publishes.values())
        # Joining threads blocks, so another thread does it; operations whose await was cancelled may still run.
        await wrap(self._executor.shutdown)()

    async def _in_thread(self, operation: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await wrap(operation)(*args, executor=self._executor, **kwargs)

    def _published(self, name: str, publish: asyncio.Future[None]) -> None:
        del self._publishes[name]
        mark_seen(publish)  # a caller that still waits receives it, a cancelled one does not need it

    # The rest runs in threads.

    def _publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        path = self._path(name)
        with _translated(name):
            self._files.make_directories(path.parent)
            if self._files.exists(path):
                if not self._holds(path, pieces):
                    raise ChunkExistsError("another chunk has this name", subject=name)
                # It may have been renamed by a process that died before the next line.
                self._sync_folders(path.parent)
                return
            temporary = path.with_name(f"{path.name.removesuffix(CHUNK_SUFFIX)}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
            self._temporaries.add(temporary)
            try:
                # Copies of the checkpoint free space, so they may use the last of it.
                is_data = SEGMENTS_FOLDER in name.split("/")
                size = sum(map(len, pieces)) if is_data else 0
                with self._room.claimed(self._folder, size):
                    self._write(temporary, pieces)
                self._files.rename(temporary, path)
            except BaseException:
                self._forget(temporary)
                raise
            finally:
                self._temporaries.discard(temporary)
            try:
                self._sync_folders(path.parent)
            except (OSError, ServerError):
                # Syncing the folder again would prove nothing about this name. The next attempt publishes it again.
                self._forget(path)
                raise

    def _holds(self, path: Path, pieces: Sequence[Buffer]) -> bool:
        """Return whether a file equals the concatenation of the pieces."""
        if self._files.size(path) != sum(map(len, pieces)):
            return False
        with closing(self._files.open(path, read_only=True)) as file:
            place = 0
            for piece in pieces:
                if file.pread(len(piece), place) != bytes(piece):
                    return False
                place += len(piece)
        return True

    def _write(self, path: Path, pieces: Sequence[Buffer]) -> None:
        """Write and sync a new file."""
        file = self._files.open(path, create=True, exclusive=True)
        try:
            file.pwritev(pieces, 0)
            file.datasync()
            # History written now is seldom read soon, and would evict useful pages. Besides, freed page cache is used
            # for the next chunk: with it publishing takes a quarter of the time on machines where fresh memory is
            # expensive (measured 1.4 against 0.3 GB/s on a virtual one).
            file.drop_cached()
        finally:
            file.close()

    def _sync_folders(self, folder: Path) -> None:
        """Make the names in `folder` durable and, the first time, the name of the folder itself, up to the root.

        A process may have created the folders and died before it synced them.
        """
        self._files.sync_directory(folder)
        if folder in self._synced_folders:
            return
        above = folder
        while above != self._folder:
            above = above.parent
            self._files.sync_directory(above)
        if len(self._synced_folders) >= _SYNCED_FOLDERS_MAX:
            self._synced_folders.clear()
        self._synced_folders.add(folder)

    def _forget(self, path: Path) -> None:
        """Remove a file after a failure, as far as the disk still can; the caller reports the failure itself."""
        with suppress(OSError, ServerError):
            self._files.remove(path)

    def _read(self, name: str, offset: int, size: int) -> bytes:
        with _translated(name):
            try:
                file = self._files.open(self._path(name), read_only=True)
            except FileNotFoundError as error:
                raise ChunkNotFoundError("the chunk does not exist", subject=name) from error
            try:
                return file.pread(size, offset)
            finally:
                file.close()

    def _list(self, prefix: str) -> Sequence[ChunkInfo]:
        found = []
        with _translated(prefix):
            for name in self._names(prefix, CHUNK_SUFFIX):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    found.append(ChunkInfo(name, self._files.size(self._path(name))))
        found.sort(key=lambda info: info.name)
        return found

    def _delete(self, name: str) -> None:
        with _translated(name), suppress(FileNotFoundError):
            self._files.remove(self._path(name))

    def _delete_temporary_files(self, prefix: str) -> int:
        count = 0
        with _translated(prefix):
            for path in map(self._path, self._names(prefix, TEMPORARY_SUFFIX)):
                if path not in self._temporaries:
                    with suppress(FileNotFoundError):  # a publish that has ended since the listing
                        self._files.remove(path)
                        count += 1
        return count

    def _names(self, prefix: str, suffix: str) -> Iterator[str]:
        """Yield the names of files that start with `prefix` and end with `suffix`."""
        for path in self._walk(self._folder / prefix.rpartition("/")[0]):
            name = path.relative_to(self._folder).as_posix()
            if name.startswith(prefix) and name.endswith(suffix):
                yield name

    def _walk(self, folder: Path) -> Iterator[Path]:
        """Yield the files below `folder`. By the naming rule a folder has no dot, and all of these files have one."""
        try:
            names = self._files.list_directory(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if "." in name:
                yield folder / name
            else:
                yield from self._walk(folder / name)

    def _path(self, name: str) -> Path:
        return self._folder / name


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Translate OSErrors about the file of a chunk; a full disk is NoSpaceError already."""
    try:
        yield
    except OSError as error:
        raise StorageError(str(error), subject=name) from error
