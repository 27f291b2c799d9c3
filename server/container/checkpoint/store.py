"""The checkpoint of a container: what it knew as of one log sequence number, in one SQLite file.

A start replays only the records of the log after it, so older files of the log can be recycled. `save` changes the
rows of what changed, and the one row of `meta`, in one transaction; its tables are described in `schema`, their
checksums in `table`. It is also where idle segments, streams and writers are, which are read from it one by one:
`reader`.

The file is made under a temporary name and renamed when it holds its first checkpoint. So there is no state in between:
a file that is there and holds no checkpoint is damaged.

A crash leaves the state before or after a `save`, and maybe a journal that SQLite applies when the file is next opened.

A write or sync that fails is no damage, but leaves a file of which nobody knows what the disk holds: the system may
have dropped what it could not write, and would let a second sync succeed without it. So the next `save` copies
everything to a new file first, which then takes the place of the old one.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from millrace.server.container.kind import Kinds
from millrace.server.container.state.container_state import ContainerState, StoredState
from millrace.server.container.state.scalars import Scalars, read_scalars
from millrace.server.errors import CheckpointDamagedError, DiskUnavailableError
from millrace.server.host.files import Buffer, FileSystem
from millrace.server.wal import LogOwner

from .checkpoint import Checkpoint, CheckpointVersion
from .database_file import check_header, free_path, move_database, remove_database, remove_journals
from .exclusive_table import stored_exclusive_writers
from .reader import CheckpointReader, KindArchive, translated
from .rows import CheckpointRows
from .schema import Schema
from .segment_tables import SegmentArchive
from .verification import check_owner, row_count, verified_meta, verify_rows, verify_structure, verify_sums
from .writing import create_tables, write_rows

VERIFIED_AT_ONCE_COUNT_MAX: Final = 100_000
"""A checkpoint of so many rows is verified whole before it is used. One of more is verified by its sums; then each row
when it is read, and all of them in the background."""

ArchiveType = TypeVar("ArchiveType", bound=KindArchive[Any])

BACKUP_PAGES_COUNT: Final = 256
PROGRESS_STEPS_COUNT: Final = 100_000


class CheckpointStore:
    """The file with the checkpoint of one container.

    All methods block, and may be called from any thread; a lock makes them take turns, also with a call whose caller
    was cancelled. `load` comes first. `archive` returns what reads single entities from it, also while it is saved.

    Errors of all methods: NoSpaceError when the disk is full, CheckpointDamagedError when the file is not what was
    written, DiskUnavailableError when it cannot be read or written now, OSError when a file cannot be renamed or
    synced.
    """

    def __init__(
        self,
        files: FileSystem,
        path: Path,
        kinds: Kinds,
        *,
        owner: LogOwner | None = None,
        verified_at_once_count_max: int = VERIFIED_AT_ONCE_COUNT_MAX,
        progress_steps_count: int = PROGRESS_STEPS_COUNT,
    ) -> None:
        """Store the collaborators; no file is touched yet.

        Args:
            files: where the file is, and how it is opened.
            path: the file.
            kinds: of the entities that it stores.
            owner: whose it must be, and is when it is made; None if that does not matter.
            verified_at_once_count_max: with so many rows at most, every row is verified by `load`.
            progress_steps_count: how many steps of SQLite's virtual machine are between two checks whether a
                verification of a copy is to end; some milliseconds.
        """
        self.path = path
        # Where copies are made before they go elsewhere; one that a crash has left there is removed by `load`.
        self.copy_path = path.with_name(path.name + ".copy")
        # A file in the making.
        self._temporary = path.with_name(path.name + ".new")
        # There as long as the file is a restored copy that nothing was saved to.
        self._restored_path = path.with_name(path.name + ".restored")
        self._owner = owner
        self._verified_at_once_count_max = verified_at_once_count_max
        self._progress_steps_count = progress_steps_count
        self._files = files
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        # Whether a write or a sync of the file has failed.
        self._is_suspect = False
        self._is_ended = False
        self._reader = CheckpointReader(files, path)
        self._kinds = kinds
        self._schema = Schema(kinds)
        self._archives = {kind.name: kind.archive(self._reader, kind) for kind in kinds}
        self.segments = self.archive(SegmentArchive)

    def archive(self, of: type[ArchiveType]) -> ArchiveType:
        """Return the archive of a kind, by its class."""
        return next(archive for archive in self._archives.values() if isinstance(archive, of))

    def restore_state(self, state: ContainerState) -> None:
        """Put into memory what kinds keep there of stored entities; once, before anything is applied to the state."""
        for kind in self._kinds:
            if kind.restore_state is not None:
                kind.restore_state(state, self._archives[kind.name])

    def when_damaged(self, on_damage: Callable[[CheckpointDamagedError], object]) -> None:
        """Let `on_damage` be called, in any thread, for damage that is found until the file is closed."""
        self._reader.on_damage = on_damage

    def nothing(self, *, next_id: int) -> Checkpoint:
        """Return the checkpoint of nothing, used when there is none: numbers from `next_id` on are free."""
        return self._checkpoint_of(Scalars(next_id=next_id).columns(()), is_verified=True)

    def last_version(self) -> CheckpointVersion | None:
        """Return which checkpoint was saved last, whatever else is damaged; None if the file cannot tell.

        That is so, too, if it is a restored copy that nothing was saved to: others may have been saved later.

        Raises:
            FolderVersionError: another version wrote it, or it is that of another server.
        """
        with self._lock:
            if not self._files.exists(self.path) or self._files.exists(self._restored_path):
                return None
            try:
                check_header(self._files, self.path)
                with translated(self.path), contextlib.closing(self._files.database(self.path)) as connection:
                    return _version_of(self._own_meta(connection))
            except CheckpointDamagedError:
                return None

    def load(self, *, every_row: bool = False) -> Checkpoint | None:
        """Open and verify the checkpoint; return None if there is no file.

        Args:
            every_row: verify every row, however many there are.

        Raises:
            CheckpointDamagedError: what was verified is not as it was written.
            FolderVersionError: another version wrote it, or it is that of another server.
        """
        with self._lock, translated(self.path):
            self._close()
            self._is_suspect = False
            self.remove_copy()
            if not self._files.exists(self.path):
                self._reader.open(is_empty=True)
                return None
            check_header(self._files, self.path)
            with contextlib.ExitStack() as undo:
                connection = undo.enter_context(contextlib.closing(self._files.database(self.path)))
                meta = self._own_meta(connection)
                verify_sums(connection, self._schema, meta, self.path)
                is_verified = every_row or row_count(self._schema, meta) <= self._verified_at_once_count_max
                if is_verified:
                    verify_structure(connection, self.path)
                    verify_rows(connection, self._schema, self.path)
                undo.pop_all()
            self._connection = connection
            self._reader.open()
            return self._checkpoint_of(meta, is_verified=is_verified)

    def verify(self, pause: Callable[[], None] = lambda: None) -> None:
        """Verify every row that is stored, while others read and save; `pause` is called every millisecond or so.

        Raises:
            CheckpointDamagedError: a row is not what was written.
        """
        with self._reader.guarded(), contextlib.closing(self._files.database(self.path)) as connection:
            verify_rows(connection, self._schema, self.path, pause=pause)

    def save(self, rows: CheckpointRows, *, sequence: int, replay_from: int, container_epoch: int) -> None:
        """Store the changes and these numbers durably, together or not at all.

        When there is no file yet, or no more, the rows must be those of a state that was never saved. After
        CheckpointDamagedError the file cannot be saved to any more.
        """
        version = CheckpointVersion(sequence, container_epoch, replay_from)
        with self._lock, self._reader.guarded():
            if self._is_ended:
                raise DiskUnavailableError("the container is being opened again", subject=str(self.path))
            if self._is_suspect:
                self._write_whole()
            if self._connection is not None:
                self._change(self._connection, rows, version)
            else:
                self._create(rows, version)
            remove_database(self._files, self._restored_path)

    def export(self) -> int:
        """Make a copy as of the last `save` at `copy_path`, and return its size in bytes. It is not synced.

        Before it takes the place of another copy, `verify_copy` should say that it is good.
        """
        with self._lock, self._reader.guarded():
            if self._connection is None or self._is_suspect:
                raise DiskUnavailableError("the last checkpoint could not be saved", subject=str(self.path))
            self.remove_copy()
            with contextlib.closing(self._files.database(self.copy_path, mode="rwc")) as copy:
                copy.execute("PRAGMA synchronous=OFF")
                # The copy is one transaction, and may be larger than the memory of the machine; nobody else reads it.
                copy.execute("PRAGMA cache_spill=ON")
                self._connection.backup(copy, pages=BACKUP_PAGES_COUNT, sleep=0)
            return self._files.size(self.copy_path)

    def verify_copy(self, pause: Callable[[], None] = lambda: None) -> CheckpointVersion:
        """Verify every row of the copy at `copy_path`, and return its version; others read and save meanwhile.

        `pause` is called every now and then, also within a statement; an error that it raises ends the verification.

        Raises:
            CheckpointDamagedError: it is not as it was written.
            StorageError: `pause` has ended it within a statement.
        """
        with translated(self.path), contextlib.closing(self._files.database(self.copy_path, mode="ro")) as copy:
            copy.set_progress_handler(pause, self._progress_steps_count)
            meta = self._own_meta(copy)
            verify_sums(copy, self._schema, meta, self.path)
            verify_structure(copy, self.path)
            verify_rows(copy, self._schema, self.path, pause=pause)
            return _version_of(meta)

    def abandon(self) -> None:
        """Close after a start that failed; a restored copy that nothing was saved to is removed.

        It is in tier 2 as well, and the next start looks for a newer one there.
        """
        self.close()
        if self._files.exists(self._restored_path):
            self.discard()

    def discard(self) -> None:
        """Remove the file: a copy that was restored and is damaged, too. Nothing there is fine."""
        with self._lock:
            self._close()
            remove_database(self._files, self.path)
            remove_database(self._files, self._restored_path)

    def read_copy(self, size: int, *, offset: int) -> bytes:
        """Return bytes of what is at `copy_path`; fewer only where it ends."""
        with contextlib.closing(self._files.open(self.copy_path, read_only=True)) as file:
            return file.pread(size, offset)

    def remove_copy(self) -> None:
        """Remove what is at `copy_path`; nothing there is fine."""
        remove_database(self._files, self.copy_path)

    def begin_restore(self) -> None:
        """Begin to put a copy in the place of the file, at `copy_path`.

        `restore_part`, `verify_copy` and `finish_restore` follow. Until the last, what was there is as it was.
        """
        with self._lock:
            self.remove_copy()
            self._files.open(self.copy_path, create=True).close()

    def restore_part(self, data: Buffer, *, offset: int) -> None:
        """Take bytes of the copy."""
        with self._lock, contextlib.closing(self._files.open(self.copy_path)) as file:
            file.pwritev([data], offset)

    def finish_restore(self) -> None:
        """Let the copy take the place of the file, durably, and set that aside, if there is one.

        After a crash there is the one, or the other, or none: then the next start restores again. `load` is to be
        called next.
        """
        with self._lock:
            self._close()
            with contextlib.closing(self._files.open(self.copy_path)) as file:
                file.datasync()
            move_database(self._files, self.path, free_path(self._files, self.path, "older"))
            # So that `load` knows that it is a copy, also after a crash.
            self._files.open(self._restored_path, create=True).close()
            self._files.sync_directory(self.path.parent)
            self._files.rename(self.copy_path, self.path)
            self._files.sync_directory(self.path.parent)

    def set_aside(self) -> Path:
        """Rename the file and its journals, so that `load` finds none, and return its new name; nothing is lost."""
        with self._lock:
            self._close()
            target = free_path(self._files, self.path, "damaged")
            move_database(self._files, self.path, target)
            remove_database(self._files, self._restored_path)
            self._files.sync_directory(self.path.parent)
            return target

    def end_saving(self) -> None:
        """Wait for what is being saved, and save nothing any more: another store will. Reading continues."""
        with self._lock:
            self._is_ended = True
            self._reader.on_damage = None
            self._disconnect()

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        with self._lock:
            self._close()

    def _checkpoint_of(self, meta: Mapping[str, Any], *, is_verified: bool) -> Checkpoint:
        """Return the checkpoint with these columns of `meta`; counts and versions that are missing are 0."""
        scalars, damages = read_scalars(meta)
        stored = StoredState(
            kinds=self._kinds,
            archives=self._archives,
            counts={kind.name: meta.get(f"{kind.name}_count", 0) for kind in self._kinds},
            internal_count=self.segments.internal_count(),
            attribute_bytes=self.segments.attribute_bytes(),
            scalars=scalars,
            damages=damages,
            exclusive_writers=stored_exclusive_writers(self._reader),
        )
        return Checkpoint(
            stored=stored,
            sequence=meta.get("sequence", 0),
            replay_from=meta.get("replay_from", 0),
            container_epoch=meta.get("container_epoch", 0),
            is_verified=is_verified,
            is_restored=self._files.exists(self._restored_path),
        )

    def _own_meta(self, connection: sqlite3.Connection) -> dict[str, Any]:
        """Return the columns of `meta`, which must be those of the owner; raises like `verified_meta`."""
        meta = verified_meta(connection, self._schema, self.path)
        if self._owner is not None:
            check_owner(meta, self._owner, path=self.path)
        return meta

    def _close(self) -> None:
        self._reader.on_damage = None
        self._reader.close()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # What it could not write, it has taken back, or the journal does when the file is opened next.
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _create(self, rows: CheckpointRows, version: CheckpointVersion) -> None:
        """Make the file, with its first checkpoint in it."""
        # What an interrupted attempt left there.
        remove_database(self._files, self._temporary)
        with contextlib.closing(self._files.database(self._temporary, mode="rwc")) as connection:
            create_tables(connection, self._schema, server_id="" if self._owner is None else str(self._owner.server_id))
            write_rows(connection, self._schema, rows, version, path=self.path)
        self._put_in_place()

    def _change(self, connection: sqlite3.Connection, rows: CheckpointRows, version: CheckpointVersion) -> None:
        """Change the rows of the file."""
        try:
            write_rows(connection, self._schema, rows, version, path=self.path)
        except sqlite3.Error as error:
            self._is_suspect = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF == sqlite3.SQLITE_IOERR
            raise

    def _write_whole(self) -> None:
        """Copy what the file holds to a new one, durably, and let that take its place."""
        self._disconnect()
        remove_database(self._files, self._temporary)
        with (
            contextlib.closing(self._files.database(self.path)) as source,
            contextlib.closing(self._files.database(self._temporary, mode="rwc")) as copy,
        ):
            verified_meta(source, self._schema, self.path)
            source.backup(copy, pages=BACKUP_PAGES_COUNT, sleep=0)
        with contextlib.closing(self._files.database(self._temporary, mode="ro")) as copy:
            verify_sums(copy, self._schema, verified_meta(copy, self._schema, self.path), self.path)
        with contextlib.closing(self._files.open(self._temporary)) as file:
            file.datasync()
        remove_journals(self._files, self.path)
        self._put_in_place()
        self._is_suspect = False

    def _put_in_place(self) -> None:
        """Let the file in the making take the place of the file, durably, and use it."""
        self._files.rename(self._temporary, self.path)
        self._files.sync_directory(self.path.parent)
        self._connection = self._files.database(self.path)
        self._reader.open()


def _version_of(meta: Mapping[str, Any]) -> CheckpointVersion:
    return CheckpointVersion(*[meta[name] for name in CheckpointVersion._fields])
