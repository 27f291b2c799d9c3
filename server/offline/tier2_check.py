"""Checks what containers have in tier 2: every byte of it, and whether it is all that their checkpoints refer to.

In an object store that a server uses meanwhile, a chunk to which a copy of the checkpoint refers may be deleted as soon
as a newer copy counts. So a missing chunk is no finding yet: the caller finds out whether the copy still counts.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from millrace.model.figures import count_text
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, parse_part_name, whole_copies
from millrace.server.container.ids import scope_of
from millrace.server.container.log_loss import ACCEPTED_SOURCE
from millrace.server.container.state.segment import Segment
from millrace.server.errors import (
    ChunkCorruptError,
    ChunkIdentityError,
    ChunkNotFoundError,
    ServerError,
    StoreRefusedError,
    StoreUnavailableError,
)
from millrace.server.folder import TIER2_FOLDER
from millrace.server.tier2 import ChunkInfo, ChunkRecord, ChunkStorage, ScopedStorage, verify_chunk
from millrace.server.wal.logfile import log_file_number

from .container import Container, logged_ranges, missing_ranges, opened_copy
from .findings import Finding, Verification, range_text, relative_name
from .remote_history import RemoteHistory, opened_tier2

CHUNK_PREFIX: Final = "segments/"

OnStep = Callable[[str, int], None]
"""Called with what is being checked, and how many bytes of it are done."""


class Tier2Check:
    """A check of tier 2, which may be repeated; what it found sound once is not read again, as a chunk never changes.

    Args:
        folder: the data folder, or where an object store's copies have been fetched to.
    """

    def __init__(self, folder: Path, *, on_step: OnStep) -> None:
        self._folder = folder
        self._on_step = on_step
        # Hashes of names and what was said of them: there may be millions.
        self._sound: set[int] = set()

    async def run(
        self, result: Verification, found: list[Container], *, history: RemoteHistory | None
    ) -> list[Finding]:
        """Check what containers have, and hold their segments against it; return which of their chunks are missing.

        Args:
            history: what is in the object store that has tier 2; None if that is in the folder.

        Raises:
            StorageError: the store does not answer, or does not let us in.
        """
        missing: list[Finding] = []
        async with opened_tier2(self._folder, store=history.url if history else "") as storage:
            listed = history.objects if history else await storage.list()
            for container in found:
                missing += await self._check_scope(result, container, storage, listed)
        scopes = tuple(scope_of(container.number) for container in found)
        for chunk in listed:
            if not chunk.name.startswith(scopes):
                place = history.url if history else TIER2_FOLDER
                result.find(f"{place}/{chunk.name}", "belongs to no container of this folder")
        return missing

    async def _check_scope(
        self, result: Verification, container: Container, storage: ChunkStorage, listed: Iterable[ChunkInfo]
    ) -> list[Finding]:
        """Check what one container has in tier 2, and hold its segments against it; return its missing chunks."""
        scope = scope_of(container.number)
        scoped = ScopedStorage(storage, scope)
        inside = [ChunkInfo(each.name.removeprefix(scope), each.size) for each in listed if each.name.startswith(scope)]
        parts = [each for each in inside if each.name.startswith(CHECKPOINT_PREFIX)]
        _check_copies(result, container, parts)
        self._on_step("tier 2", sum(part.size for part in parts))
        chunks = {each.name: each for each in inside if each.name.startswith(CHUNK_PREFIX)}
        orphans = dict(chunks)
        missing: list[Finding] = []
        if container.is_known:
            for segment in container.state.segments.values():
                for record in segment.chunks:
                    lost = range_text(segment, record.start_offset, record.end_offset)
                    chunk = orphans.pop(record.name, None)  # None, too, if another segment has been checked with it
                    if chunk is not None and not await self._is_there(
                        result, container, scoped, chunk, record=record, lost=lost
                    ):
                        del chunks[record.name]
                    if record.name not in chunks:
                        file = f"{container.scope}{record.name}"
                        missing.append(Finding(file=file, what="the chunk is missing", lost=lost))
                _cross_check(result, segment, container, chunks)
        else:
            result.notes.append(
                f"{relative_name(container.folder, self._folder)}: segments were not held against chunks and log, "
                "since what they should hold is not known"
            )
        orphans_count = 0
        for chunk in orphans.values():
            orphans_count += await self._is_there(result, container, scoped, chunk)
        if orphans_count and container.is_known and not container.checkpoint_error:
            result.notes.append(
                f"{count_text(orphans_count, 'chunk')} in {container.scope} belong to no segment; "
                + (
                    "a crash can leave them, and a server deletes them after a grace period"
                    if container.has_log
                    else "they are newer than the copy of the checkpoint, or a crash has left them"
                )
            )
        return missing

    async def _is_there(
        self,
        result: Verification,
        container: Container,
        storage: ChunkStorage,
        chunk: ChunkInfo,
        *,
        record: ChunkRecord | None = None,
        lost: str = "",
    ) -> bool:
        """Check a chunk that was listed; return whether it is still there."""
        said = hash((container.number, chunk, record))
        if said not in self._sound:
            findings_count = len(result.findings)
            try:
                await check_chunk(result, container, storage, chunk, record=record, lost=lost)
            except ChunkNotFoundError:
                return False
            finally:
                self._on_step("tier 2", chunk.size)
            if len(result.findings) == findings_count:
                self._sound.add(said)
        result.chunks += 1
        result.chunk_bytes += chunk.size
        return True


async def check_chunk(
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
        storage: the scope of the container.
        record: what the checkpoint says of the chunk; None if no segment refers to it.
        lost: what it means if it is another chunk.

    Raises:
        ChunkNotFoundError: it is not there.
        StoreUnavailableError, StoreRefusedError: that says nothing of the chunk.
    """
    file = f"{container.scope}{chunk.name}"
    try:
        async for damage in verify_chunk(storage, chunk.name, chunk.size, record=record):
            is_another = isinstance(damage, ChunkIdentityError)
            result.find(file, damage.message, offset=damage.offset, lost=lost if is_another else "")
    except (ChunkNotFoundError, StoreUnavailableError, StoreRefusedError):
        raise
    except ServerError as error:
        result.find(file, str(error))


def _check_copies(result: Verification, container: Container, parts: list[ChunkInfo]) -> None:
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


def _cross_check(result: Verification, segment: Segment, found: Container, chunks: dict[str, ChunkInfo]) -> None:
    """Check that each byte of a segment is in a chunk, or in the log; whether the chunks exist is checked elsewhere."""
    present = logged_ranges(segment)
    for record in segment.chunks:
        chunk = chunks.get(record.name)
        file = f"{found.scope}{record.name}"
        lost = range_text(segment, record.start_offset, record.end_offset)
        if chunk is not None and chunk.size != record.size:
            what = f"has {chunk.size} bytes, the checkpoint says {record.size}"
            result.find(file, what, offset=min(chunk.size, record.size), lost=lost)
        # What is wrong with a chunk, or that it is missing, is told by itself; the bytes are accounted for.
        present.append((record.start_offset, record.end_offset))
    for damage in found.known_damages.get(segment.segment_id, ()):
        present.append((damage.start, damage.end))
        lost = range_text(segment, damage.start, damage.end)
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
            relative_name(found.folder, found.folder.parent.parent),
            "neither a chunk nor the log holds these bytes",
            size=end - start,
            lost=range_text(segment, start, end),
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
