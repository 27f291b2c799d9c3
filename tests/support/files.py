"""A file system in memory that fails the way disks do, by seed.

What it models: bytes written are in the cache of the system until `datasync`; names are until `sync_directory`.
`crash` is a power loss: of what was not synced, a subset chosen by the seed survives, torn at sectors of 512 bytes;
of the names, a prefix of the changes. A sync that fails leaves its bytes in the cache, marked clean: reads still see
them, and no later sync writes them. Writes can be lost or misdirected without a word. The disk can be full, or stall.
"""

import errno
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet

from millrace.server.errors import FolderLockedError, NoSpaceError
from millrace.server.host.database import DatabaseMode
from millrace.server.host.files import Buffer
from tests.support.databases import ImageDatabase

SECTOR_SIZE_BYTES = 512
STALL_S_MAX = 30.0


@dataclass(slots=True)
class _Write:
    """One change of a file that is not on the disk yet; with `data` None it sets the size to `offset`."""

    offset: int
    data: bytes | None
    lost: bool = False
    misdirected_by: int = 0

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            _resize(content, self.offset)
            return
        end = self.offset + len(self.data)
        if end > len(content):
            _resize(content, end)
        content[self.offset : end] = self.data

    def apply_to_disk(self, content: bytearray) -> None:
        if not self.lost:
            _Write(self.offset + self.misdirected_by, self.data).apply(content)

    def apply_subset(self, content: bytearray, chosen: Callable[[], bool]) -> None:
        """Apply the sectors that are chosen, one by one."""
        if self.data is None:
            if chosen():
                self.apply(content)
            return
        start = self.offset
        while start < self.offset + len(self.data):
            end = min(self.offset + len(self.data), (start // SECTOR_SIZE_BYTES + 1) * SECTOR_SIZE_BYTES)
            if chosen():
                sector = self.data[start - self.offset : end - self.offset]
                _Write(start, sector, self.lost, self.misdirected_by).apply_to_disk(content)
            start = end


@dataclass(slots=True)
class _Inode:
    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write] = field(default_factory=list)


@dataclass(slots=True)
class _Folder:
    names: dict[str, _Inode] = field(default_factory=dict)
    durable: dict[str, _Inode] = field(default_factory=dict)
    # Each unsynced change: names removed, names put.
    unsynced: list[tuple[list[str], dict[str, _Inode]]] = field(default_factory=list)

    def change(self, removed: list[str], put: dict[str, _Inode]) -> None:
        self.unsynced.append((removed, put))
        _change(self.names, removed, put)


class MemoryFileSystem:
    """Fills the `FileSystem` seam. Every method may be called in any thread."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.write_count = 0
        self.sync_count = 0
        self._lock = threading.RLock()
        self._generation = 0
        self._folders: dict[Path, _Folder] = {Path("/"): _Folder()}
        self._locked: set[Path] = set()
        self._databases: WeakSet[ImageDatabase] = WeakSet()
        self._failing_syncs = 0
        self._syncs_fail_until: Callable[[], object] | None = None
        self._failing_writes = 0
        self._next_lost: str | None = None
        self._next_misdirected: tuple[str, int] | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self.stalled = threading.Event()
        self._stalled_folder = ""
        # Called in the thread that syncs a file, before that is done.
        self.before_sync: Callable[[Path], None] = lambda path: None

    # The seam

    def database(self, path: Path, *, mode: DatabaseMode = "rw") -> sqlite3.Connection:
        database = ImageDatabase.of(self, path, mode=mode)
        self._databases.add(database)
        return database

    def trace(self, note: Callable[[str], object]) -> None:
        """Report from now on each statement of the databases that are open, in the thread that executes it."""
        for database in list(self._databases):
            with suppress(sqlite3.ProgrammingError):  # it is closed
                database.set_trace_callback(note)

    def open(
        self, path: Path, *, create: bool = False, exclusive: bool = False, read_only: bool = False
    ) -> "MemoryFile":
        with self._lock:
            folder = self._folder(path.parent)
            inode = folder.names.get(path.name)
            if inode is not None and create and exclusive:
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            if inode is None:
                if not create or read_only:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
                inode = _Inode()
                folder.change([], {path.name: inode})
            return MemoryFile(self, inode, path, self._generation, read_only=read_only)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            inode = self._inode(source)
            if source.parent != target.parent:
                raise OSError(errno.EXDEV, "rename across folders is not modelled", str(target))
            self._folder(source.parent).change([source.name], {target.name: inode})

    def remove(self, path: Path) -> None:
        with self._lock:
            self._inode(path)
            self._folder(path.parent).change([path.name], {})

    def list_directory(self, path: Path) -> list[str]:
        with self._lock:
            children = [folder.name for folder in self._folders if folder.parent == path and folder != path]
            return sorted([*self._folder(path).names, *children])

    def exists(self, path: Path) -> bool:
        with self._lock:
            return path in self._folders or (
                path.parent in self._folders and path.name in self._folder(path.parent).names
            )

    def size(self, path: Path) -> int:
        with self._lock:
            return len(self._inode(path).cached)

    def make_directories(self, path: Path) -> None:
        with self._lock:
            for folder in reversed((path, *path.parents)):
                self._folders.setdefault(folder, _Folder())

    def close_to_others(self, path: Path) -> bool:
        self._folder(path)
        return False

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            folder = self._folder(path)
            folder.durable = dict(folder.names)
            folder.unsynced.clear()

    def free_bytes(self, path: Path) -> int:
        with self._lock:
            self._folder(path)
            return max(0, self.capacity_bytes - self._used_bytes())

    @property
    def used_bytes(self) -> int:
        """What all files hold."""
        with self._lock:
            return self._used_bytes()

    def lock(self, path: Path) -> "MemoryLock":
        with self._lock:
            if path in self._locked:
                raise FolderLockedError("another server owns this folder", subject=str(path.parent))
            self.open(path, create=True)
            self._locked.add(path)
            return MemoryLock(lambda: self._locked.discard(path))

    # Faults

    def crash(self, seed: int) -> None:
        """Lose the power. Open files and locks are gone; of what was not synced, a subset stays."""
        choices = random.Random(seed)
        with self._lock:
            self._generation += 1
            self._locked.clear()
            self._flowing.set()
            for folder in self._folders.values():
                names = dict(folder.durable)
                for removed, put in folder.unsynced[: choices.randint(0, len(folder.unsynced))]:
                    _change(names, removed, put)
                inodes = {id(inode): inode for inode in [*folder.names.values(), *names.values()]}
                for inode in inodes.values():
                    _lose_power(inode, choices)
                folder.names, folder.durable, folder.unsynced = names, dict(names), []

    def fail_syncs(self, count: int = 1) -> None:
        """Let the next syncs fail with EIO."""
        self._failing_syncs = count

    def fail_syncs_until(self, is_over: Callable[[], object]) -> None:
        """Fail every sync with EIO until a condition is true, for a test that must fail the sync of one thread.

        Another thread, such as the one that prepares log files, may sync first and take a single failure.

        Args:
            is_over: called before each sync, in the thread that syncs.
        """
        self._syncs_fail_until = is_over

    def fail_writes(self, count: int = 1) -> None:
        """Let the next writes fail with EIO, nothing written."""
        self._failing_writes = count

    def lose_write(self, name: str) -> None:
        """Let the next write to a file of this name never reach the disk, though its sync succeeds."""
        self._next_lost = name

    def misdirect_write(self, name: str, by: int) -> None:
        """Let the next write to a file of this name reach the disk that many bytes off."""
        self._next_misdirected = (name, by)

    def stall(self, *, folder: str = "") -> None:
        """Let syncs hang, of all files or of those in a folder of that name; `stalled` is set when one does."""
        self._stalled_folder = folder
        self.stalled.clear()
        self._flowing.clear()

    def resume(self) -> None:
        """Let the syncs that hang continue."""
        self._flowing.set()

    def content(self, path: Path) -> bytes:
        """Return what a read sees."""
        with self._lock:
            return bytes(self._inode(path).cached)

    def replace_content(self, path: Path, content: bytes) -> None:
        """Put other bytes in place, durably: damage of any kind."""
        with self._lock:
            inode = self._inode(path)
            inode.cached = bytearray(content)
            inode.durable = bytearray(content)
            inode.unsynced.clear()

    def flip_bit(self, path: Path, bit: int) -> None:
        """Turn one bit over."""
        content = bytearray(self.content(path))
        content[bit // 8] ^= 1 << (bit % 8)
        self.replace_content(path, bytes(content))

    def copy(self) -> "MemoryFileSystem":
        """Return what another process finds after this one was killed: the same content, synced or not."""
        other = MemoryFileSystem(capacity_bytes=self.capacity_bytes)
        self._copy_to(other)
        return other

    def _copy_to(self, other: "MemoryFileSystem") -> None:
        with self._lock:
            inodes: dict[int, _Inode] = {}

            def copied(names: dict[str, _Inode]) -> dict[str, _Inode]:
                return {
                    name: inodes.setdefault(
                        id(inode), _Inode(bytearray(inode.cached), bytearray(inode.durable), list(inode.unsynced))
                    )
                    for name, inode in names.items()
                }

            for path, folder in self._folders.items():
                unsynced = [(removed, copied(put)) for removed, put in folder.unsynced]
                other._folders[path] = _Folder(copied(folder.names), copied(folder.durable), unsynced)

    # Used by MemoryFile

    def _is_sync_failing(self) -> bool:
        if self._syncs_fail_until is not None and self._syncs_fail_until():
            self._syncs_fail_until = None
        is_counted = self._failing_syncs > 0
        self._failing_syncs -= is_counted
        return is_counted or self._syncs_fail_until is not None

    def _write(self, file: "MemoryFile", data: bytes, offset: int) -> None:
        with self._lock:
            self._check(file)
            self.write_count += 1
            if self._failing_writes:
                self._failing_writes -= 1
                raise OSError(errno.EIO, "Input/output error", str(file.path))
            write = _Write(offset, data)
            growth = offset + len(data) - len(file.inode.cached)
            if growth > 0 and growth > self.capacity_bytes - self._used_bytes():
                raise NoSpaceError("No space left on device", subject=str(file.path))
            if self._next_lost == file.path.name:
                self._next_lost, write.lost = None, True
            if self._next_misdirected is not None and self._next_misdirected[0] == file.path.name:
                write.misdirected_by, self._next_misdirected = self._next_misdirected[1], None
            write.apply(file.inode.cached)
            file.inode.unsynced.append(write)

    def _truncate(self, file: "MemoryFile", size: int) -> None:
        with self._lock:
            self._check(file)
            write = _Write(size, None)
            write.apply(file.inode.cached)
            file.inode.unsynced.append(write)

    def _datasync(self, file: "MemoryFile") -> None:
        self.before_sync(file.path)
        if not self._flowing.is_set() and self._stalled_folder in ("", file.path.parent.name):
            self.stalled.set()
            # A test that failed meanwhile must not leave threads that wait forever.
            if not self._flowing.wait(STALL_S_MAX):
                raise OSError(errno.EIO, "stalled for too long", str(file.path))
        with self._lock:
            self._check(file)
            self.sync_count += 1
            inode = file.inode
            if self._is_sync_failing():
                choices = random.Random(self.sync_count)
                for write in inode.unsynced:
                    write.apply_subset(inode.durable, lambda: choices.random() < 0.5)
                inode.unsynced.clear()
                raise OSError(errno.EIO, "Input/output error", str(file.path))
            for write in inode.unsynced:
                write.apply_to_disk(inode.durable)
            inode.unsynced.clear()

    def _read(self, file: "MemoryFile") -> None:
        """Called before each read of a file."""

    def _check(self, file: "MemoryFile") -> None:
        if file.generation != self._generation or file.closed:
            raise OSError(errno.EBADF, "Bad file descriptor", str(file.path))

    def _folder(self, path: Path) -> _Folder:
        try:
            return self._folders[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path)) from None

    def _inode(self, path: Path) -> _Inode:
        try:
            return self._folder(path.parent).names[path.name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path)) from None

    def _used_bytes(self) -> int:
        return sum(len(inode.cached) for folder in self._folders.values() for inode in folder.names.values())


class SteppedFileSystem(MemoryFileSystem):
    """Counts everything that is asked of it, and refuses what a test says; a crash between any two steps is a copy.

    `refuses` is given the number of a step, from 1, the path, and whether it changes something.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self.step_count = 0
        self.error = errno.EIO
        self.refuses: Callable[[int, Path, bool], bool] = lambda step, path, is_change: False

    def copy(self) -> "SteppedFileSystem":
        other = type(self)(capacity_bytes=self.capacity_bytes)
        self._copy_to(other)
        return other

    def step(self, path: Path, *, is_change: bool) -> None:
        with self._lock:
            self.step_count += 1
            if self.refuses(self.step_count, path, is_change):
                raise OSError(self.error, os.strerror(self.error), str(path))

    def open(
        self, path: Path, *, create: bool = False, exclusive: bool = False, read_only: bool = False
    ) -> "MemoryFile":
        self.step(path, is_change=not read_only)
        return super().open(path, create=create, exclusive=exclusive, read_only=read_only)

    def rename(self, source: Path, target: Path) -> None:
        self.step(source, is_change=True)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.step(path, is_change=True)
        super().remove(path)

    def list_directory(self, path: Path) -> list[str]:
        self.step(path, is_change=False)
        return super().list_directory(path)

    def size(self, path: Path) -> int:
        self.step(path, is_change=False)
        return super().size(path)

    def sync_directory(self, path: Path) -> None:
        self.step(path, is_change=True)
        super().sync_directory(path)

    def free_bytes(self, path: Path) -> int:
        self.step(path, is_change=False)
        return super().free_bytes(path)

    def _write(self, file: "MemoryFile", data: bytes, offset: int) -> None:
        self.step(file.path, is_change=True)
        super()._write(file, data, offset)

    def _truncate(self, file: "MemoryFile", size: int) -> None:
        self.step(file.path, is_change=True)
        super()._truncate(file, size)

    def _datasync(self, file: "MemoryFile") -> None:
        self.step(file.path, is_change=True)
        super()._datasync(file)

    def _read(self, file: "MemoryFile") -> None:
        self.step(file.path, is_change=False)


class MemoryFile:
    """Fills the `File` seam."""

    def __init__(self, files: MemoryFileSystem, inode: _Inode, path: Path, generation: int, *, read_only: bool) -> None:
        self.inode = inode
        self.path = path
        self.generation = generation
        self.closed = False
        self._files = files
        self._read_only = read_only

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self._read_only:
            raise OSError(errno.EBADF, "Bad file descriptor", str(self.path))
        self._files._write(self, b"".join(buffers), offset)

    def pread(self, size: int, offset: int) -> bytes:
        self._files._read(self)
        with self._files._lock:
            self._files._check(self)
            return bytes(self.inode.cached[offset : offset + size])

    def datasync(self) -> None:
        self._files._datasync(self)

    def drop_cached(self) -> None:
        """Nothing is cached apart from what a power loss takes."""

    def size(self) -> int:
        with self._files._lock:
            self._files._check(self)
            return len(self.inode.cached)

    def truncate(self, size: int) -> None:
        self._files._truncate(self, size)

    def close(self) -> None:
        self.closed = True


class MemoryLock:
    """What `lock` gives back."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def close(self) -> None:
        self._release()


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _change(names: dict[str, _Inode], removed: list[str], put: dict[str, _Inode]) -> None:
    for name in removed:
        names.pop(name, None)
    names.update(put)


def _lose_power(inode: _Inode, choices: random.Random) -> None:
    """Keep, of the unsynced writes, none, all, some of them whole, or some of their sectors."""
    mode = choices.choice(("none", "all", "writes", "sectors"))
    for write in inode.unsynced:
        if mode == "all" or (mode == "writes" and choices.random() < 0.5):
            write.apply_to_disk(inode.durable)
        elif mode == "sectors":
            write.apply_subset(inode.durable, lambda: choices.random() < 0.5)
    inode.unsynced.clear()
    inode.cached = bytearray(inode.durable)
