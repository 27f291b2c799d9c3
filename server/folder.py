"""The data folder: its identity and lock, and its layout.

identity.json     format version, server id, and the object store of its history if it has one lock              locked
while a server runs containers/0000/  log and checkpoint of a container; the number is hexadecimal tier2/c0000/
chunks of that container, and copies of its checkpoint, unless they are in an object store

It is private to its owner: everything in it is created so, and a folder that others can access is made private.
"""

import json
import logging
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.server.host.files import Closable, FileSystem

from .errors import ConfigurationError, FolderVersionError

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 9
IDENTITY_NAME: Final = "identity.json"
LOCK_NAME: Final = "lock"
CONTAINERS_FOLDER: Final = "containers"
TIER2_FOLDER: Final = "tier2"
PROBE_NAME: Final = "probe"
IGNORED_NAMES: Final = ("lost+found",)
"""Names in the root of a fresh file system."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A data folder that this process owns until `lock` is closed."""

    path: Path
    server_id: uuid.UUID
    lock: Closable
    is_new: bool
    """Whether it has had no container so far."""

    def container(self, number: int) -> Path:
        """Return the folder of a container."""
        return self.path / CONTAINERS_FOLDER / f"{number:04x}"

    @property
    def tier2(self) -> Path:
        """The folder of chunks."""
        return self.path / TIER2_FOLDER


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a data folder.

    Attributes:
        store: URL of the object store of its history; empty if the history is in the folder.
    """

    server_id: uuid.UUID
    store: str


def open_folder(files: FileSystem, path: Path, *, store: str = "", server_id: uuid.UUID | None = None) -> DataFolder:
    """Create or open a data folder, and lock it. Blocks. A rejected folder is left as it was.

    Args:
        store: URL of the object store for its history; empty for the folder itself. It cannot change once there is a
            container.
        server_id: of the server whose folder a new one is to be; None for a new server.

    Raises:
        FolderLockedError: another server has locked it.
        FolderVersionError: it was written by another version, older or newer.
        ConfigurationError: it contains something else, or its history is elsewhere.
    """
    _check_usable(files, path, store)
    try:
        files.make_directories(path)
        lock = files.lock(path / LOCK_NAME)
    except OSError as error:
        raise ConfigurationError(f"cannot be used: {error.strerror or error}", subject=str(path)) from error
    try:
        # Another server may have used the folder in between.
        _check_usable(files, path, store)
        found = read_identity(files, path) if files.exists(path / IDENTITY_NAME) else None
        is_new = _is_new(files, path)
        if found is not None and not (is_new and server_id):
            server_id = found.server_id
        wanted = Identity(server_id or uuid.uuid4(), store)
        if found != wanted:
            _write_identity(files, path, wanted)
        _close_to_others(files, path)
        return DataFolder(path, wanted.server_id, lock, is_new=is_new)
    except BaseException:
        lock.close()
        raise


def _is_new(files: FileSystem, path: Path) -> bool:
    return not files.exists(path / CONTAINERS_FOLDER)


def _write_identity(files: FileSystem, path: Path, identity: Identity) -> None:
    content = {"format_version": FORMAT_VERSION, "server_id": str(identity.server_id)}
    if identity.store:
        content["store"] = identity.store
    temporary = path / f"{IDENTITY_NAME}.new"
    with closing(files.open(temporary, create=True)) as file:
        file.truncate(0)
        file.pwritev([json.dumps(content, indent=2).encode() + b"\n"], 0)
        file.datasync()
    files.rename(temporary, path / IDENTITY_NAME)
    files.sync_directory(path)


def _check_usable(files: FileSystem, path: Path, store: str) -> None:
    """Raise unless a path is a data folder of this version, an empty folder, or missing. Changes nothing.

    Raises:
        FolderVersionError, ConfigurationError: as `open_folder`.
    """
    if files.exists(path / IDENTITY_NAME):
        kept = read_identity(files, path).store
        if kept != store and not _is_new(files, path):
            raise ConfigurationError(
                f"its history is {_place(kept)}, not {_place(store)}; start it with --store {kept or 'none'}",
                subject=str(path),
            )
        return
    try:
        names = set(files.list_directory(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"cannot be used: {error.strerror or error}", subject=str(path)) from error
    others = sorted(names - {LOCK_NAME, f"{IDENTITY_NAME}.new", *IGNORED_NAMES})
    if others:
        raise ConfigurationError(
            f"is not empty and not a data folder: it contains {others[0]!r} but no {IDENTITY_NAME}", subject=str(path)
        )


def _place(store: str) -> str:
    return f"in the object store {store}" if store else "in the folder itself"


def _close_to_others(files: FileSystem, path: Path) -> None:
    """Make the folder private; if this process may not, log a warning and continue.

    The folder alone is enough: users without access to it reach nothing in it, whatever mode older versions gave that.
    """
    try:
        if files.close_to_others(path):
            logger.info("data folder made private folder=%s", path)
    except OSError as error:
        logger.warning("data folder is accessible to other users folder=%s error=%s", path, error)


def check_writable(files: FileSystem, path: Path) -> None:
    """Raise OSError or NoSpaceError if a file in a folder cannot be made, synced and removed. Blocks."""
    probe = path / PROBE_NAME
    with closing(files.open(probe, create=True)) as file:
        file.pwritev([bytes(1)], 0)
        file.datasync()
    files.remove(probe)


def read_identity(files: FileSystem, path: Path) -> Identity:
    """Return the identity of a data folder. Blocks.

    Raises:
        FolderVersionError: it was written by another version, older or newer.
        ConfigurationError: the identity cannot be read.
    """
    identity = path / IDENTITY_NAME
    try:
        with closing(files.open(identity, read_only=True)) as file:
            content = json.loads(file.pread(file.size(), 0))
        version, server_id = int(content["format_version"]), uuid.UUID(content["server_id"])
        store = str(content.get("store", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigurationError(f"is not the identity of a data folder: {error!r}", subject=str(identity)) from error
    if version != FORMAT_VERSION:
        age = "an older" if version < FORMAT_VERSION else "a newer"
        raise FolderVersionError(
            f"was written in format {version} by {age} version; this version knows format {FORMAT_VERSION} only",
            subject=str(path),
        )
    return Identity(server_id, store)
