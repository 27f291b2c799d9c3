"""The server's file system interface, which tests replace to inject failures.

Nothing else in the server opens, syncs, renames or removes a file of the log or of the checkpoint. All calls block and
are made from threads, except for the cheap queries at startup. Paths are absolute or relative to the working directory.

Durability. Bytes written are durable once `datasync` of a `File` on that path has returned; until then any subset of
them may survive a power loss, in any order, torn at sectors. A name that was created, renamed or removed is durable
once `sync_directory` of its folder has returned.

Access. Files and folders are private to their owner: files have mode 0600, folders 0700, whatever the umask allows.

Errors. A full disk (or quota) raises `NoSpaceError`; any other failure raises the `OSError` of the system. Never retry
a failed sync on the same bytes: the system has forgotten which of them were not written.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from millrace.server.errors import FolderLockedError, NoSpaceError

from .database import DatabaseMode, connect_database

Buffer = bytes | bytearray | memoryview

IOV_COUNT_MAX: Final = 1024
"""The most buffers that the system accepts in one vectored call (IOV_MAX of Linux and macOS)."""
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_NO_SPACE_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)


class Closable(Protocol):
    """A resource to be closed once."""

    def close(self) -> None:
        """Release the resource; closing twice is fine."""
        ...


class File(Protocol):
    """An open file. Several threads may use it at once on different ranges."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers one after the other from `offset` on, growing the file as needed.

        After an error any part of the bytes may have been written.
        """
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only at the end of the file."""
        ...

    def datasync(self) -> None:
        """Return when all that was written, and the size of the file, is on the disk itself."""
        ...

    def drop_cached(self) -> None:
        """Drop synced pages from the page cache, as they will not be read soon. Only a hint."""
        ...

    def size(self) -> int:
        """Return the size in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or grow (with zeros) the file to `size` bytes."""
        ...

    def close(self) -> None:
        """Close the descriptor, without a sync; closing twice is fine."""
        ...


class FileSystem(Protocol):
    """Folders and names."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        """Open a file for reading and, unless `read_only`, writing.

        Args:
            path: the file.
            create: create an empty file if it is missing.
            exclusive: with `create`: raise FileExistsError if the file exists.
            read_only: reject writes.
        """
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically, replacing a file of the new name."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...

    def list_directory(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether a file or folder of that name exists."""
        ...

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes."""
        ...

    def make_directories(self, path: Path) -> None:
        """Create a folder and its missing parents, durably; an existing folder is fine."""
        ...

    def close_to_others(self, path: Path) -> bool:
        """Make a folder private to its owner; return whether others had access before.

        Raises:
            OSError: this process may not change the folder.
        """
        ...

    def sync_directory(self, path: Path) -> None:
        """Sync a folder; on return the names in it are durable."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Return the number of free bytes on the volume of `path`."""
        ...

    def database(self, path: Path, *, mode: DatabaseMode = "rw") -> sqlite3.Connection:
        """Open the SQLite database in a file.

        A transaction is durable when COMMIT returns; after a crash during COMMIT it is stored entirely or not at all. A
        connection may be used in any thread, by one at a time; several may be open on one file.

        Raises:
            sqlite3.Error: from here and from all uses of the connection. SQLITE_FULL means a full disk.
        """
        ...

    def lock(self, path: Path) -> Closable:
        """Lock the file `path` (created if missing) until the result is closed or the process ends.

        Raises:
            FolderLockedError: another process, or another part of this process, holds the lock.
        """
        ...


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers, in as few calls as the system allows."""
        # No context manager here and in `datasync`: entering one costs as much as the call into the system.
        try:
            if len(buffers) == 1 and os.pwrite(self._descriptor, buffers[0], offset) == len(buffers[0]):
                return
            for start in range(0, len(buffers), IOV_COUNT_MAX):
                offset = self._write_vector(buffers[start : start + IOV_COUNT_MAX], offset)
        except OSError as error:
            raise _translation(error, self._path) from error

    def pread(self, size: int, offset: int) -> bytes:
        """Read, repeating where the system returns less (at most 2 GiB a call)."""
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size and (data := os.pread(self._descriptor, size - done, offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def datasync(self) -> None:
        """Sync data and size; on macOS also the cache of the drive, which fsync does not sync there."""
        try:
            if sys.platform == "darwin":
                fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
            else:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise _translation(error, self._path) from error

    def drop_cached(self) -> None:
        """Drop the page cache of the file, where the system supports it."""
        if sys.platform == "linux":
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut or grow the file."""
        with _translated(self._path):
            os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        """Close the descriptor once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write_vector(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at most IOV_COUNT_MAX buffers and return the offset after them."""
        rest: Sequence[Buffer] = buffers
        end = offset + sum(len(buffer) for buffer in buffers)
        while offset < end:
            written = os.pwritev(self._descriptor, rest, offset)
            offset += written
            if offset < end:
                rest = _after(rest, written)
        return end


class OsFileSystem:
    """The file system of the operating system."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> OsFile:
        """Open a file; it is not inherited by child processes."""
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | (os.O_EXCL if exclusive else 0)
        with _translated(path):
            return OsFile(os.open(path, flags | os.O_CLOEXEC, FILE_MODE), path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing a file of the new name."""
        with _translated(target):
            os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def list_directory(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        """Return whether the name exists."""
        return os.path.lexists(path)

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes."""
        return os.stat(path).st_size

    def make_directories(self, path: Path) -> None:
        """Create each missing folder and sync its parent."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        with _translated(path):
            for folder in reversed(missing):
                folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                self.sync_directory(folder.parent)

    def close_to_others(self, path: Path) -> bool:
        """Set the mode of a folder that has another one."""
        with _translated(path):
            if stat.S_IMODE(os.stat(path).st_mode) & ~FOLDER_MODE == 0:
                return False
            os.chmod(path, FOLDER_MODE)
            return True

    def sync_directory(self, path: Path) -> None:
        """Sync the names of a folder."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _translated(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        """Return how much an unprivileged process may still store."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def database(self, path: Path, *, mode: DatabaseMode = "rw") -> sqlite3.Connection:
        """Open a database of SQLite, which creates its journal with the mode of the file."""
        if mode == "rwc":
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        return connect_database(path, mode=mode)

    def lock(self, path: Path) -> OsFile:
        """Lock a file by flock, which ends with the process, however it dies."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise FolderLockedError("another server owns this folder", subject=str(path.parent)) from error
        return OsFile(descriptor, path)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn the errors of a full disk into ours."""
    try:
        yield
    except OSError as error:
        raise _translation(error, path) from error


def _translation(error: OSError, path: Path) -> Exception:
    """Return the error to raise for an OSError: NoSpaceError for a full disk, else the same class with the path."""
    if error.errno in _NO_SPACE_ERRNOS:
        return NoSpaceError(os.strerror(error.errno or 0), subject=str(path))
    return OSError(error.errno, error.strerror, str(path))


def _after(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """Return the remaining buffers after the first `count` bytes."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if count >= len(buffer):
            count -= len(buffer)
            continue
        rest.append(memoryview(buffer)[count:] if count else buffer)
        count = 0
    return rest
