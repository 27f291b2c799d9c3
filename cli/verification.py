"""Checks whether a data folder still holds everything that was acknowledged.

Walked are: the identity; the checkpoint, row by row; every batch of the log, with its chain; every page, index and
summary of every chunk; every copy of the checkpoint in tier 2. Then the parts are compared with one another: each byte
of each segment must be in a chunk or in the log, and each chunk must be what its name and the checkpoint say.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.model.producer import FENCED_RUNS_COUNT_MAX, NO_RUN
from millrace.model.sequence_row import NO_SEQUENCE
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, parse_part_name, whole_copies
from millrace.server.container.ids import scope_of
from millrace.server.container.loss import ACCEPTED_SOURCE
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.transaction import PART_NAME
from millrace.server.errors import (
    ChunkCorruptError,
    ChunkIdentityError,
    ConfigurationError,
    ServerError,
    StoreRefusedError,
    StoreUnavailableError,
)
from millrace.server.folder import CONTAINERS_FOLDER, LOCK_NAME, TIER2_FOLDER, read_identity
from millrace.server.host.files import OsFileSystem
from millrace.server.tier2 import (
    ChunkInfo,
    ChunkRecord,
    ChunkStorage,
    ScopedStorage,
    verify_chunk,
)
from millrace.server.wal import Ending, LogOwner
from millrace.server.wal.logfile import log_file_number

from .figures import count_text, size_text
from .survey import Container, log_files, logged_ranges, missing_ranges, opened_copy, survey
from .tier2 import RemoteHistory, opened_tier2

CHUNK_PREFIX: Final = "segments/"

OnStep = Callable[[str, int], None]
"""Called with what is being checked, and how many bytes of it are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it was written.

    Attributes:
        file: relative to the data folder.
        offset: where in the file it starts, None if it is all of it or cannot be told.
        size: bytes concerned, None if that cannot be told.
        lost: what of which segment that means, if it can be told.
    """

    file: str
    offset: int | None = None
    size: int | None = None
    what: str
    lost: str = ""


@dataclass(slots=True)
class Verification:
    """What was checked, and what was found."""

    findings: list[Finding] = field(default_factory=list)
    # What is no damage, but worth knowing.
    notes: list[str] = field(default_factory=list)
    containers: int = 0
    segments: int = 0
    batches: int = 0
    log_bytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0

    def find(self, file: str, what: str, *, offset: int | None = None, size: int | None = None, lost: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(file=file, offset=offset, size=size, what=what, lost=lost))


@contextmanager
def owned_folder(folder: Path) -> Iterator[None]:
    """Keep servers out of a data folder while the body runs, if it has a lock file.

    Raises:
        FolderLockedError: a server runs on it.
        ConfigurationError: it is not a data folder.
    """
    if not (folder / CONTAINERS_FOLDER).is_dir():
        raise ConfigurationError("is not a data folder", subject=str(folder))
    lock = folder / LOCK_NAME
    with closing(OsFileSystem().lock(lock)) if lock.exists() else nullcontext():
        yield


def bytes_to_read(folder: Path | None, history: RemoteHistory | None) -> int:
    """Return how many bytes `verify_folder` or `verify_history` goes through."""
    folders = container_folders(folder) if folder is not None else []
    logs = sum(path.stat().st_size for container in folders for path in log_files(container))
    if history is not None:
        return logs + sum(chunk.size for chunk in history.chunks)
    assert folder is not None
    return logs + sum(path.stat().st_size for path in (folder / TIER2_FOLDER).rglob("*.chunk"))


def container_folders(folder: Path) -> list[Path]:
    """Return the folders of the containers in a data folder, in their order."""
    return sorted(path for path in (folder / CONTAINERS_FOLDER).iterdir() if path.is_dir())


def verify_folder(
    folder: Path, *, history: RemoteHistory | None = None, on_step: OnStep = lambda _what, _size: None
) -> Verification:
    """Go through everything in a data folder that no server uses. Changes nothing. Blocks.

    Args:
        history: what is in the object store that has tier 2; None if that is in the folder.

    Raises:
        FolderVersionError: another version wrote it.
        StorageError: the store does not answer.
    """
    result = Verification()
    files = OsFileSystem()
    owner_id = None
    try:
        owner_id = read_identity(files, folder).server_id
    except ConfigurationError as error:
        if type(error) is not ConfigurationError:
            raise
        result.find("identity.json", error.message)
    with ExitStack() as stack:
        found = []
        for number, container in enumerate(container_folders(folder)):
            owner = LogOwner(container_id=number, server_id=owner_id) if owner_id is not None else None
            surveyed = survey(container, owner=owner, history=history, on_bytes=lambda size: on_step("log", size))
            found.append(stack.enter_context(surveyed))
            _judge_container(result, folder, found[-1])
        asyncio.run(_verify_tier2(result, folder, found, history=history, on_step=on_step))
    return result


def verify_history(history: RemoteHistory, *, on_step: OnStep = lambda _what, _size: None) -> Verification:
    """Go through everything in an object store, without the data folder: what could be restored from it. Blocks.

    What was only in the log when the newest copy of the checkpoint was made is told in a note.

    Raises:
        StorageError: the store does not answer.
    """
    result = Verification()
    with ExitStack() as stack:
        found = []
        for number in history.containers:
            folder = history.folder / CONTAINERS_FOLDER / f"{number:04x}"
            folder.mkdir(parents=True)
            container = stack.enter_context(survey(folder, owner=None, history=history))
            # That checkpoint and log are not there says nothing.
            container.checkpoint_error, container.has_log = "", False
            found.append(container)
            result.containers += 1
            result.segments += len(container.state.segments)
            if container.copy is None:
                result.find(f"{container.scope}{CHECKPOINT_PREFIX}", "there is no good copy of the checkpoint")
        asyncio.run(_verify_tier2(result, history.folder, found, history=history, on_step=on_step))
        segments = [segment for container in found for segment in container.state.segments.values()]
        only_logged = sum(segment.length - max(segment.start_offset, segment.flushed_offset) for segment in segments)
        if only_logged:
            result.notes.append(f"{size_text(only_logged)} were only in the log when the newest copy was made")
    return result


def _judge_container(result: Verification, folder: Path, found: Container) -> None:
    """Take over what was found about checkpoint and log."""
    result.containers += 1
    result.segments += len(found.state.segments)
    checkpoint_name = _name(found.checkpoint_path, folder)
    if found.checkpoint_error:
        result.find(checkpoint_name, f"the checkpoint cannot be used: {found.checkpoint_error}")
    if found.copy is not None:
        when = "the next start" if found.starts else "a start without this file"
        result.notes.append(f"{checkpoint_name}: {when} restores it from {found.scope}{found.copy.name}")
    for path in sorted(found.folder.glob("*.older-*")):
        result.notes.append(f"{_name(path, folder)}: was set aside by a server, since a copy of it was newer")
    for path in sorted(found.folder.rglob("*.damaged*")):
        result.find(_name(path, folder), "was set aside as damaged by a server", size=path.stat().st_size)
    log_name = _name(found.log_folder, folder)
    if found.log_error:
        result.find(log_name, f"the log cannot be read: {found.log_error}")
    for problem in found.record_problems:
        result.find(log_name, problem)
    report = found.report
    if report is None:
        return
    result.batches += report.batch_count
    result.log_bytes += report.size_bytes
    for damage in report.damages:
        result.find(
            _name(found.log_folder / damage.place, folder),
            damage.reason,
            offset=damage.offset,
            size=damage.size,
            lost=_lost_runs(found, damage.runs, is_complete=damage.is_complete),
        )
    if report.ending is Ending.TORN:
        result.notes.append(
            f"{log_name}: ends in an incomplete batch of {count_text(report.torn_bytes, 'byte')}, which was never "
            "acknowledged; the next start cuts it"
        )
    if found.loss is not None:
        result.find(log_name, f"{found.loss}; a server stores nothing until `millrace repair` has accepted that")
    if found.state.accepted.sequence:
        result.notes.append(
            f"{log_name}: what the log has lost up to batch {found.state.accepted.sequence} was accepted by an operator"
        )
    if found.is_known:
        _judge_exclusive_writers(result, found, file=checkpoint_name)
        _judge_transactions(result, found, file=checkpoint_name)
        _judge_producers(result, found, file=checkpoint_name)
    if found.checkpoint is None and report.first_sequence > 1:
        result.find(
            checkpoint_name,
            f"there is no checkpoint that can be read, and the log starts at sequence {report.first_sequence}",
        )


def _judge_exclusive_writers(result: Verification, found: Container, *, file: str) -> None:
    """Check that those from which alone a stream takes events are there, and the streams."""
    for stream_id, writer in sorted(found.state.exclusive_writers.durable.items()):
        stream, known = found.state.streams.get(stream_id), found.state.writers.get(writer.number)
        if stream is None or stream.sealed:
            result.find(file, f"{writer} is the exclusive writer of stream {stream_id}, which takes no events")
        elif known is None or known.expired_us or known.epoch < writer.epoch:
            result.find(file, f"{stream.name} takes events from {writer} alone, which was never opened, or has expired")


def _judge_transactions(result: Verification, found: Container, *, file: str) -> None:
    """Check that open transactions have what they consist of, and that each part is one of theirs."""
    state = found.state
    for number, transaction in sorted(state.open_transactions.by_number.items()):
        name = f"transaction {transaction.name or number}"
        for stream_id in (each.stream_id for each in transaction.streams):
            stream = state.streams.get(stream_id)
            if stream is None or stream.sealed:
                result.find(file, f"{name} is open over stream {stream_id}, which takes no events")
        for segment_id in transaction.parts:
            if segment_id not in state.segments:
                result.find(file, f"{name} has segment {segment_id} as a part, which is not there")
    for segment in state.segments.values():
        is_part = segment.name.startswith(PART_NAME) and segment.link is None
        if is_part and state.open_transactions.owner(segment.segment_id) is None:
            result.find(file, f"{segment.name} is a part of no transaction that is open")


def _judge_producers(result: Verification, found: Container, *, file: str) -> None:
    """Check that what is known of producers is what records can make of them."""
    numbers: dict[str, int] = {}
    for producer in found.state.producers.values():
        row, number = producer.row, numbers.setdefault(producer.writer_id, producer.number)
        if number != producer.number:
            result.find(file, f"producers {number} and {producer.number} have one writer id, {producer.writer_id}")
        if row.run in row.fenced or len(row.fenced) > FENCED_RUNS_COUNT_MAX:
            result.find(file, f"producer {producer.writer_id} has fenced runs that it cannot have: {row.fenced}")
        if row.last_sequence != NO_SEQUENCE and row.run == NO_RUN:
            result.find(file, f"producer {producer.writer_id} has committed {row.last_sequence} in no run")


async def _verify_tier2(
    result: Verification, folder: Path, found: list[Container], *, history: RemoteHistory | None, on_step: OnStep
) -> None:
    async with opened_tier2(folder, store=history.url if history else "") as storage:
        for container in found:
            await _verify_scope(result, folder, container, storage, on_step=on_step)
        scopes = tuple(scope_of(container.number) for container in found)
        for chunk in await storage.list():
            if not chunk.name.startswith(scopes):
                place = history.url if history else TIER2_FOLDER
                result.find(f"{place}/{chunk.name}", "belongs to no container of this folder")


async def _verify_scope(
    result: Verification, folder: Path, container: Container, storage: ChunkStorage, *, on_step: OnStep
) -> None:
    """Check what one container has in tier 2, and hold its segments against it."""
    scoped = ScopedStorage(storage, scope_of(container.number))
    parts = await scoped.list(CHECKPOINT_PREFIX)
    _verify_copies(result, container, parts)
    on_step("tier 2", sum(part.size for part in parts))
    chunks = {chunk.name: chunk for chunk in await scoped.list(CHUNK_PREFIX)}
    orphans = dict(chunks)
    if container.is_known:
        for segment in container.state.segments.values():
            for record in segment.chunks:
                if (chunk := orphans.pop(record.name, None)) is not None:
                    lost = _range_text(segment, record.start_offset, record.end_offset)
                    await _verify_chunk(result, container, scoped, chunk, record=record, lost=lost)
                    on_step("tier 2", chunk.size)
            _cross_check(result, segment, container, chunks)
    else:
        result.notes.append(
            f"{_name(container.folder, folder)}: segments were not held against chunks and log, since what they "
            "should hold is not known"
        )
    for chunk in orphans.values():
        await _verify_chunk(result, container, scoped, chunk)
        on_step("tier 2", chunk.size)
    if orphans and container.is_known and not container.checkpoint_error:
        result.notes.append(
            f"{count_text(len(orphans), 'chunk')} in {container.scope} belong to no segment; a crash can leave them, "
            "and a server deletes them after a grace period"
        )


def _verify_copies(result: Verification, container: Container, parts: list[ChunkInfo]) -> None:
    """Check every byte of the copies of the checkpoint, and that each is the one that its name says."""
    copies = whole_copies(parts)
    for copy in copies:
        try:
            with opened_copy(container.tier2, copy, owner=container.owner):
                pass
        except ServerError as error:
            at = error.offset if isinstance(error, ChunkCorruptError) else None
            name = error.name if isinstance(error, ChunkCorruptError) else copy.parts[0].name
            result.find(f"{container.scope}{name}", f"copy of the checkpoint: {error.message}", offset=at)
    whole = {part.name for copy in copies for part in copy.parts}
    for part in parts:
        if parse_part_name(part.name) is None:
            result.find(f"{container.scope}{part.name}", "the name is not that of a part of a copy of the checkpoint")
        elif part.name not in whole:
            result.notes.append(
                f"{container.scope}{part.name}: other parts of this copy of the checkpoint are missing; a crash can "
                "leave that, and the next copy deletes it"
            )
    first = next(iter(container.report.places), "") if container.report is not None else ""
    if not copies and (log_file_number(first) or 1) > 1:
        result.find(
            f"{container.scope}{CHECKPOINT_PREFIX.rstrip('/')}",
            f"no copy of the checkpoint is there, though the log was recycled: it starts with {first}",
        )


async def _verify_chunk(
    result: Verification,
    container: Container,
    storage: ChunkStorage,
    chunk: ChunkInfo,
    *,
    record: ChunkRecord | None = None,
    lost: str = "",
) -> None:
    """Check every byte of a chunk, and that it is the one that its name and the checkpoint mean.

    Args:
        record: what the checkpoint says of the chunk; None if no segment refers to it.
        lost: what it means if it is another chunk.
    """
    result.chunks += 1
    result.chunk_bytes += chunk.size
    file = f"{container.scope}{chunk.name}"
    try:
        async for damage in verify_chunk(storage, chunk.name, chunk.size, record=record):
            is_another = isinstance(damage, ChunkIdentityError)
            result.find(file, damage.message, offset=damage.offset, lost=lost if is_another else "")
    except (StoreUnavailableError, StoreRefusedError):
        raise  # that says nothing of the chunk
    except ServerError as error:
        result.find(file, str(error))


def _cross_check(result: Verification, segment: Segment, found: Container, chunks: dict[str, ChunkInfo]) -> None:
    """Check that each byte of a segment is in a chunk that exists, or in the log."""
    present = logged_ranges(segment)
    for record in segment.chunks:
        chunk = chunks.get(record.name)
        file = f"{found.scope}{record.name}"
        lost = _range_text(segment, record.start_offset, record.end_offset)
        if chunk is None:
            result.find(file, "the chunk is missing", lost=lost)
        elif chunk.size != record.size:
            what = f"has {chunk.size} bytes, the checkpoint says {record.size}"
            result.find(file, what, offset=min(chunk.size, record.size), lost=lost)
        # What is wrong with a chunk was just told; the bytes are accounted for.
        present.append((record.start_offset, record.end_offset))
    for damage in found.known_damages.get(segment.segment_id, ()):
        present.append((damage.start, damage.end))
        lost = _range_text(segment, damage.start, damage.end)
        if damage.source == ACCEPTED_SOURCE:
            result.notes.append(f"{lost} were given up: {damage.source}")
            continue
        what = "was found damaged by a server, which refuses these bytes since"
        result.find(damage.source, what, size=damage.end - damage.start, lost=lost)
    present += _told_ranges(segment.segment_id, found)
    # Bytes of a merged segment stay with the source, which is checked by itself, until a flush copies them.
    links = [other.link for other in found.state.merged.values() if other.link is not None]
    present += [(link.offset, link.end) for link in links if link.target_id == segment.segment_id]
    known_end = segment.length if found.has_log else segment.flushed_offset
    for start, end in missing_ranges(segment.start_offset, known_end, present):
        result.find(
            _name(found.folder, found.folder.parent.parent),
            "neither a chunk nor the log holds these bytes",
            size=end - start,
            lost=_range_text(segment, start, end),
        )


def _told_ranges(segment_id: int, found: Container) -> Iterable[tuple[int, int]]:
    """Return what is known as lost from the log; it was told with its place there."""
    damages = found.report.damages if found.report else ()
    return [
        (offset, offset + size)
        for damage in damages
        for damaged_id, offset, size in damage.runs
        if damaged_id == segment_id
    ]


def _lost_runs(found: Container, runs: Iterable[tuple[int, int, int]], *, is_complete: bool) -> str:
    texts = []
    for segment_id, offset, size in runs:
        segment = found.state.segments.get(segment_id)
        if segment is not None:
            is_flushed = offset + size <= segment.flushed_offset
            texts.append(_range_text(segment, offset, offset + size) + (" (tier 2 has it)" if is_flushed else ""))
        else:
            texts.append(f"segment {segment_id} [{offset}, {offset + size})" if segment_id else "a record")
    if not is_complete:
        texts.append("what it held is not known")
    return ", ".join(texts)


def _range_text(segment: Segment, start: int, end: int) -> str:
    return f"{segment.name} [{start}, {end})"


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
