"""A container read offline, from a data folder or an object store: checkpoint, log, and the state of both.

Nothing is changed, not even the leftovers of a crash that the next start would repair: the checkpoint is read from a
copy, because SQLite would apply a journal beside it.
"""

import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, CheckpointCopy, decode_part, whole_copies
from millrace.server.container.checkpoint.checkpoint import Checkpoint
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.ids import scope_of
from millrace.server.container.local import CHECKPOINT_NAME, LOG_FOLDER
from millrace.server.container.log_loss import LogLoss, LossFinder
from millrace.server.container.memtable import Extent
from millrace.server.container.recovery import state_of, usable_copies
from millrace.server.container.state.apply import apply_recovered
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.errors import ChunkIdentityError, ConfigurationError, ServerError
from millrace.server.folder import CONTAINERS_FOLDER, LOCK_NAME, TIER2_FOLDER
from millrace.server.host.files import OsFileSystem
from millrace.server.kinds.registry import KINDS
from millrace.server.ownership import Manifest, read_folder_claim
from millrace.server.settings import load_settings
from millrace.server.tier2 import ChunkInfo
from millrace.server.wal import (
    Damage,
    LogHead,
    LogOwner,
    ObjectRecovery,
    RecoveredBatch,
    Recovery,
    RecoveryReport,
    log_paths,
    read_log_head,
)
from millrace.wire.errors import WireError

from .remote_history import RemoteHistory
from .remote_log import read_remote_log

SIDE_FILES: Final = ("-journal", "-wal", "-shm")


@dataclass(slots=True)
class OfflineContainer:
    """One container, in a data folder or in an object store, as its files describe it.

    Attributes:
        folder: of the container; it need not exist if only the object store is read.
        owner: expected owner of log and copies, None for any.
        history: content of the object store that has tier 2; None if tier 2 is in the data folder.
        has_folder: whether the data folder is read, too.
        capacity_bytes: the largest size of the log by the server's settings; 0 for the size in the checkpoint.
        checkpoint: None if it is missing or unreadable; then `checkpoint_error` is the reason.
        starts: whether a server would start with this checkpoint, or replace it by a copy.
        copy: the copy in tier 2 that replaced the checkpoint, as it would at the start of a server.
        state: the checkpoint with all later batches of the log applied; idle segments are read on demand.
        report: how the log ends; None if it cannot be read, and `log_error` is the reason.
        newest: the log head, which names the newest log file.
        loss: what the log has lost without acceptance; None if nothing is known to be missing.
    """

    folder: Path
    owner: LogOwner | None = None
    history: RemoteHistory | None = None
    has_folder: bool = True
    capacity_bytes: int = 0
    checkpoint: Checkpoint | None = None
    checkpoint_error: str = ""
    starts: bool = True
    copy: CheckpointCopy | None = None
    state: ContainerState = field(init=False)
    report: RecoveryReport | None = None
    newest: LogHead = field(default_factory=lambda: LogHead(()))
    log_error: str = ""
    loss: LogLoss | None = None
    # By segment, the damage that a server found before its last checkpoint.
    known_damages: dict[int, tuple[DamagedRange, ...]] = field(default_factory=dict)
    # Batches with records of decisions that cannot be read.
    record_problems: list[str] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether the state is complete: from a checkpoint, or from a log that goes back to its beginning."""
        return not self.log_error and (
            self.checkpoint is not None or self.report is None or self.report.first_sequence <= 1
        )

    @property
    def has_log(self) -> bool:
        """Whether the log was read, and not only the copies of checkpoints."""
        return self.has_folder or self.remote_log is not None

    @property
    def checkpoint_path(self) -> Path:
        """Path of the checkpoint."""
        return self.folder / CHECKPOINT_NAME

    @property
    def number(self) -> int:
        """Its number: the name of its folder."""
        return int(self.folder.name, 16)

    @property
    def data_dir(self) -> Path:
        """The data folder that it is in."""
        return self.folder.parent.parent

    @property
    def scope(self) -> str:
        """Prefix of the names of its chunks and copies, relative to the data folder or the store."""
        return f"{self.history.url if self.history else TIER2_FOLDER}/{scope_of(self.number)}"

    @property
    def tier2(self) -> Path:
        """The folder with its copies of the checkpoint; for a store, the folder to which they were fetched."""
        root = self.history.folder if self.history else self.data_dir / TIER2_FOLDER
        return root / scope_of(self.number)

    @property
    def remote_log(self) -> Manifest | None:
        """The manifest, if the log is in the object store; else None."""
        manifest = self.history.manifest(self.number) if self.history else None
        return manifest if manifest is not None and manifest.log is not None else None

    @property
    def log_folder(self) -> Path:
        """Folder of the log."""
        return self.folder / LOG_FOLDER


def is_claimed(folder: Path, manifest: Manifest) -> bool:
    """Return whether the folder of a container knows its newest claim."""
    claim = read_folder_claim(OsFileSystem(), folder)
    return claim is not None and claim.knows(manifest.claim_id)


@contextmanager
def owned_folder(folder: Path) -> Iterator[None]:
    """Lock a data folder against servers while the body runs, if it has a lock file.

    Raises:
        FolderLockedError: a server runs on it.
        ConfigurationError: it is not a data folder.
    """
    if not (folder / CONTAINERS_FOLDER).is_dir():
        raise ConfigurationError("is not a data folder", subject=str(folder))
    lock = folder / LOCK_NAME
    with closing(OsFileSystem().lock(lock)) if lock.exists() else nullcontext():
        yield


def container_folders(folder: Path) -> list[Path]:
    """Return the folders of the containers in a data folder, in their order."""
    return sorted(path for path in (folder / CONTAINERS_FOLDER).iterdir() if path.is_dir())


def log_files(folder: Path) -> list[Path]:
    """Return the log files of the container in `folder`, in their order."""
    log_folder = folder / LOG_FOLDER
    return log_paths(OsFileSystem(), log_folder) if log_folder.is_dir() else []


@contextmanager
def copied_checkpoint(path: Path) -> Iterator[Path]:
    """Yield a temporary copy of a checkpoint, including SQLite's journal."""
    with tempfile.TemporaryDirectory(prefix="millrace-checkpoint-") as folder:
        copy = Path(folder) / CHECKPOINT_NAME
        for suffix in ("", *SIDE_FILES):
            source = path.with_name(path.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        yield copy


@contextmanager
def joined_copy(parts: Sequence[Path], *, owner: LogOwner | None) -> Iterator[Path]:
    """Yield a temporary file with the content of a copy in tier 2, joined from the files of its parts, each checked.

    Raises:
        ServerError: a part is damaged, or is another one than its name says.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-checkpoint-") as folder:
        path = Path(folder) / CHECKPOINT_NAME
        with path.open("wb") as target:
            for part in parts:
                _, content = decode_part(part.read_bytes(), name=f"{CHECKPOINT_PREFIX}{part.name}", owner=owner)
                target.write(content)
        yield path


@contextmanager
def opened_checkpoint(
    lent: AbstractContextManager[Path], *, owner: LogOwner | None
) -> Iterator[tuple[CheckpointStore, Checkpoint | None]]:
    """Yield an opened checkpoint, with every row verified; None if the file is missing.

    Args:
        lent: yields a file that may be changed.
        owner: expected owner, None for any.

    Raises:
        ServerError: it is damaged, or belongs to another server, or to another version. The message does not name the
            file.
    """
    with lent as path:
        store = CheckpointStore(OsFileSystem(), path, KINDS, owner=owner)
        try:
            try:
                checkpoint = store.load(every_row=True)
            except ServerError as error:
                error.subject = ""  # the copy has a temporary name
                raise
            yield store, checkpoint
        finally:
            store.close()


@contextmanager
def opened_copy(
    tier2: Path, copy: CheckpointCopy, *, owner: LogOwner | None
) -> Iterator[tuple[CheckpointStore, Checkpoint]]:
    """Yield an opened copy of the checkpoint, with every row verified.

    Args:
        tier2: the scope of the container.
        copy: a complete copy.
        owner: expected owner, None for any.

    Raises:
        ServerError: it is damaged, or is another one than its name says.
    """
    parts = [tier2 / part.name for part in copy.parts]
    with opened_checkpoint(joined_copy(parts, owner=owner), owner=owner) as (store, checkpoint):
        assert checkpoint is not None, "the file was just written"
        name = copy.parts[0].name
        version, _ = decode_part(parts[0].read_bytes(), name=name, owner=owner)
        if version != checkpoint.version:
            raise ChunkIdentityError(name, 0, found=str(checkpoint.version), expected=str(version))
        yield store, checkpoint


def checkpoint_copies(tier2: Path) -> list[CheckpointCopy]:
    """Return the whole copies of the checkpoint in tier 2, the newest first."""
    return whole_copies(
        ChunkInfo(f"{CHECKPOINT_PREFIX}{path.name}", path.stat().st_size)
        for path in (tier2 / CHECKPOINT_PREFIX).glob("*.chunk")
    )[::-1]


def log_capacity_bytes(data_dir: Path | None = None) -> int:
    """Return the largest size of a log by the settings of the environment and of a folder."""
    wal = load_settings({} if data_dir is None else {"data_dir": data_dir.absolute()}).options.wal
    return wal.files_max * wal.file_size_bytes


def containers_of_folder(
    folder: Path, *, server_id: UUID | None, history: RemoteHistory | None = None, capacity_bytes: int = 0
) -> Iterator[AbstractContextManager[OfflineContainer]]:
    """Yield a context manager for each container of a data folder; see `opened_container`.

    Args:
        server_id: expected owner of logs and copies, None for any.
    """
    for path in container_folders(folder):
        owner = LogOwner(container_id=int(path.name, 16), server_id=server_id) if server_id is not None else None
        yield opened_container(path, owner=owner, history=history, capacity_bytes=capacity_bytes)


def container_of_store(history: RemoteHistory, number: int) -> AbstractContextManager[OfflineContainer]:
    """Return a context manager for a container of an object store alone; see `opened_container`."""
    folder = history.folder / CONTAINERS_FOLDER / f"{number:04x}"
    return opened_container(folder, history=history, has_folder=False, capacity_bytes=log_capacity_bytes())


@contextmanager
def opened_container(
    folder: Path,
    *,
    owner: LogOwner | None = None,
    history: RemoteHistory | None = None,
    has_folder: bool = True,
    capacity_bytes: int = 0,
) -> Iterator[OfflineContainer]:
    """Open the container in `folder` with the state of its checkpoint; `read_log` then applies the log to it.

    Nothing is changed. The arguments are attributes of `OfflineContainer`.
    """
    found = OfflineContainer(folder, owner, history, has_folder, capacity_bytes)
    with ExitStack() as stack:
        store = _find_checkpoint(found, stack)
        found.state = state_of(store, found.checkpoint, container=found.number)
        found.known_damages = {
            segment_id: tuple(found.state.segments[segment_id].damages) for segment_id in store.segments.damaged()
        }
        yield found


def read_log(found: OfflineContainer) -> Iterator[int]:
    """Apply the log of a container as a starting server would; yield the bytes that each step has read."""
    if not found.has_log:
        return
    state = found.state
    finder = LossFinder(
        checkpoint_sequence=state.sequence,
        checkpoint_time_us=state.scalars.wall_time_us,
        accepted=state.scalars.accepted,
        has_log=state.scalars.log_capacity_bytes > 0,
        store=found.history.url if found.history and found.remote_log else "",
    )
    done: dict[str, int] = {}
    try:
        recovery, items = _open_log(found)
        for item in items:
            finder.read(item)
            _apply(found, item)
            if isinstance(item, RecoveredBatch):
                end = item.offset + item.size
                yield end - done.get(item.place, 0)
                done[item.place] = end
        found.report = recovery.report
        capacity_bytes = max(found.capacity_bytes, state.scalars.log_capacity_bytes)
        found.loss = finder.loss(recovery.report, capacity_bytes=capacity_bytes)
    except (ServerError, OSError) as error:
        found.log_error = str(error)
    for path in log_files(found.folder):
        yield max(0, path.stat().st_size - done.get(path.name, 0))


def _open_log(
    found: OfflineContainer,
) -> tuple[Recovery | ObjectRecovery, Iterable[RecoveredBatch | Damage]]:
    """Return the recovery of a log, and its batches, which are read when iterated."""
    start, accepted = found.checkpoint.replay_from if found.checkpoint else 0, found.state.scalars.accepted
    if (manifest := found.remote_log) is not None:
        assert found.history is not None
        return read_remote_log(found.history.url, manifest, owner=found.owner, from_sequence=start, accepted=accepted)
    files = OsFileSystem()
    found.newest = read_log_head(files, found.log_folder)
    recovery = Recovery(files, log_files(found.folder), owner=found.owner, newest=found.newest)
    return recovery, recovery.batches(start, accepted=accepted)


@contextmanager
def survey(opened: AbstractContextManager[OfflineContainer]) -> Iterator[OfflineContainer]:
    """Open a container and read its log."""
    with opened as found:
        deque(read_log(found), maxlen=0)
        yield found


def logged_ranges(segment: Segment) -> list[tuple[int, int]]:
    """Return the ranges of a segment that are in the log and not yet in tier 2, ascending and joined."""
    return join_ranges([(extent.offset, extent.end) for extent in segment.tail.extents if isinstance(extent, Extent)])


def join_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same bytes as ascending ranges that neither touch nor overlap."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif start < end:
            joined.append((start, end))
    return joined


def missing_ranges(start: int, end: int, present: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of [start, end) that no range of `present` covers."""
    missing = []
    for low, high in join_ranges(present):
        if low >= end:
            break
        if low > start:
            missing.append((start, low))
        start = max(start, high)
    if start < end:
        missing.append((start, end))
    return missing


def _find_checkpoint(found: OfflineContainer, stack: ExitStack) -> CheckpointStore:
    """Open the newest sound one of the checkpoint and its copies, or an empty one, until the stack ends."""
    store = None
    try:
        # A checkpoint that a server would discard counts as missing.
        is_discarded = found.remote_log is not None and not is_claimed(found.folder, found.remote_log)
        lent = copied_checkpoint(found.folder / "no checkpoint" if is_discarded else found.checkpoint_path)
        store, found.checkpoint = stack.enter_context(opened_checkpoint(lent, owner=found.owner))
    except ServerError as error:
        found.checkpoint_error = str(error)
        found.starts = not isinstance(error, ConfigurationError)
    copies = checkpoint_copies(found.tier2)
    if found.history and (recorded := found.history.recorded(found.number)):
        manifest = found.history.manifest(found.number)
        copies, _ = usable_copies(
            copies[::-1],
            recorded,
            manifest.checkpoint_before if manifest else None,
            is_loss_known=found.remote_log is not None,
        )
        copies.reverse()
    if copies and found.checkpoint is None and found.has_folder:
        found.checkpoint_error = found.checkpoint_error or "it is missing"
    for copy in copies:
        if found.checkpoint is not None and copy.point < found.checkpoint.version[:2]:
            break
        try:
            with ExitStack() as opened:
                candidate, checkpoint = opened.enter_context(opened_copy(found.tier2, copy, owner=found.owner))
                if found.checkpoint is not None and checkpoint.version <= found.checkpoint.version:
                    break
                stack.push(opened.pop_all())
        except ServerError:
            continue  # `verify` reports each damaged copy
        if found.checkpoint is not None:
            found.checkpoint_error = f"it is older than its copy: {found.checkpoint.version}, not {checkpoint.version}"
        found.copy, found.checkpoint = copy, checkpoint
        return candidate
    if store is not None and found.checkpoint is not None:
        return store
    nothing = copied_checkpoint(found.folder / "no checkpoint")
    store, _ = stack.enter_context(opened_checkpoint(nothing, owner=None))
    return store


def _apply(found: OfflineContainer, item: RecoveredBatch | Damage) -> None:
    """Apply a batch of the log as a starting server would, but without the payloads."""
    try:
        apply_recovered(found.state, item, before_hold=Extent.drop_frames)
    except WireError as error:
        assert isinstance(item, RecoveredBatch), "damage is not decoded"
        found.record_problems.append(f"{item.place}, batch at {item.offset}: a record cannot be decoded: {error!r}")
