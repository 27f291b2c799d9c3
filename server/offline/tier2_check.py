"""Checks tier 2 of containers: every byte of it, and that it has everything that their checkpoints refer to.

In an object store that a server uses meanwhile, a chunk to which a copy of the checkpoint refers may be deleted as soon
as a newer copy is current. So a missing chunk is not a finding yet: the caller finds out whether the copy is still
current.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
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

from .container import OfflineContainer, logged_ranges, missing_ranges, opened_copy
from .findings import Checked, Finding, Item, MissingChunk, Note, Progress, range_text, relative_name
from .remote_history import RemoteHistory, iterated, opened_tier2

CHUNK_PREFIX: Final = "segments/"


class Tier2Check:
    """A check of tier 2, which may be repeated; a chunk found sound is not read again, as it never changes.

    Args:
        folder: the data folder, or the folder to which an object store's copies were fetched.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Hashes of names and of their records: there may be millions.
        self._sound: set[int] = set()

    def run(self, found: list[OfflineContainer], *, history: RemoteHistory | None) -> Iterator[Item]:
        """Check tier 2 of containers, and compare their segments with it. Blocks.

        Args:
            history: content of the object store that has tier 2; None if tier 2 is in the folder.

        Raises:
            StorageError: the store does not answer, or denies access.
        """
        return iterated(self._check(found, history))

    async def _check(self, found: list[OfflineContainer], history: RemoteHistory | None) -> AsyncIterator[Item]:
        async with opened_tier2(self._folder, store=history.url if history else "") as storage:
            listed = history.objects if history else await storage.list()
            for container in found:
                async for item in self._check_scope(container, storage, listed):
                    yield item
        scopes = tuple(scope_of(container.number) for container in found)
        for chunk in listed:
            if not chunk.name.startswith(scopes):
                place = history.url if history else TIER2_FOLDER
                yield Finding(f"{place}/{chunk.name}", "belongs to no container of this folder")

    async def _check_scope(
        self, container: OfflineContainer, storage: ChunkStorage, listed: Iterable[ChunkInfo]
    ) -> AsyncIterator[Item]:
        """Check tier 2 of one container, and compare its segments with it."""
        scope = scope_of(container.number)
        scoped = ScopedStorage(storage, scope)
        inside = [ChunkInfo(each.name.removeprefix(scope), each.size) for each in listed if each.name.startswith(scope)]
        parts = [each for each in inside if each.name.startswith(CHECKPOINT_PREFIX)]
        for item in _check_copies(container, parts):
            yield item
        yield Progress("tier 2", sum(part.size for part in parts))
        chunks = {each.name: each for each in inside if each.name.startswith(CHUNK_PREFIX)}
        orphans = dict(chunks)
        for segment in container.state.segments.values() if container.is_known else ():
            for record in segment.chunks:
                lost = range_text(segment, record.start_offset, record.end_offset)
                chunk = orphans.pop(record.name, None)  # Also None if another segment has been checked with it.
                if chunk is not None:
                    items = await self._chunk_items(container, scoped, chunk, record=record, lost=lost)
                    if items is None:
                        del chunks[record.name]
                    for item in items or ():
                        yield item
                if record.name not in chunks:
                    yield MissingChunk(f"{container.scope}{record.name}", "the chunk is missing", lost=lost)
            for item in _cross_check(segment, container, chunks):
                yield item
        if not container.is_known:
            yield Note(
                f"{relative_name(container.folder, self._folder)}: segments were not compared with chunks and log, "
                "because their expected content is unknown"
            )
        orphans_count = 0
        for chunk in orphans.values():
            items = await self._chunk_items(container, scoped, chunk)
            orphans_count += items is not None
            for item in items or ():
                yield item
        if orphans_count and container.is_known and not container.checkpoint_error:
            yield Note(
                f"{count_text(orphans_count, 'chunk')} in {container.scope} belong to no segment; "
                + (
                    "a crash can leave them, and a server deletes them after a grace period"
                    if container.has_log
                    else "they are newer than the copy of the checkpoint, or a crash has left them"
                )
            )

    async def _chunk_items(
        self,
        container: OfflineContainer,
        storage: ChunkStorage,
        chunk: ChunkInfo,
        *,
        record: ChunkRecord | None = None,
        lost: str = "",
    ) -> list[Item] | None:
        """Return the items of the check of a listed chunk; None if the chunk was deleted meanwhile."""
        items: list[Item] = [Checked(chunks=1, chunk_bytes=chunk.size)]
        identity = hash((container.number, chunk, record))
        if identity in self._sound:
            return items
        try:
            found = [each async for each in check_chunk(container, storage, chunk, record=record, lost=lost)]
        except ChunkNotFoundError:
            return None
        if not found:
            self._sound.add(identity)
        return [*items, *found, Progress("tier 2", chunk.size)]


async def check_chunk(
    container: OfflineContainer,
    storage: ChunkStorage,
    chunk: ChunkInfo,
    *,
    record: ChunkRecord | None = None,
    lost: str = "",
) -> AsyncIterator[Finding]:
    """Check every byte of a chunk, and that it is the one that its name and the checkpoint refer to.

    Args:
        storage: the scope of the container.
        record: the checkpoint's record of the chunk; None if no segment refers to it.
        lost: the affected ranges if it is another chunk.

    Raises:
        ChunkNotFoundError: it is missing.
        StoreUnavailableError, StoreRefusedError: the chunk could not be checked.
    """
    file = f"{container.scope}{chunk.name}"
    try:
        async for damage in verify_chunk(storage, chunk.name, chunk.size, record=record):
            is_another = isinstance(damage, ChunkIdentityError)
            yield Finding(file, damage.message, offset=damage.offset, lost=lost if is_another else "")
    except (ChunkNotFoundError, StoreUnavailableError, StoreRefusedError):
        raise
    except ServerError as error:
        yield Finding(file, str(error))


def _check_copies(container: OfflineContainer, parts: list[ChunkInfo]) -> Iterator[Item]:
    """Check every byte of the copies of the checkpoint, and that each is the one in its name."""
    copies = whole_copies(parts)
    for copy in copies:
        try:
            with opened_copy(container.tier2, copy, owner=container.owner):
                pass
        except ServerError as error:
            at = error.offset if isinstance(error, ChunkCorruptError) else None
            name = error.name if isinstance(error, ChunkCorruptError) else copy.parts[0].name
            yield Finding(f"{container.scope}{name}", f"copy of the checkpoint: {error.message}", offset=at)
    whole = {part.name for copy in copies for part in copy.parts}
    for part in parts:
        if parse_part_name(part.name) is None:
            yield Finding(f"{container.scope}{part.name}", "the name is not that of a part of a checkpoint copy")
        elif part.name not in whole:
            yield Note(
                f"{container.scope}{part.name}: other parts of this copy of the checkpoint are missing; a crash can "
                "leave that, and the next copy deletes it"
            )
    first = next(iter(container.report.places), "") if container.report is not None else ""
    if not copies and (log_file_number(first) or 1) > 1:
        yield Finding(
            f"{container.scope}{CHECKPOINT_PREFIX.rstrip('/')}",
            f"no copy of the checkpoint exists, although the log was recycled: it starts with {first}",
        )


def _cross_check(segment: Segment, found: OfflineContainer, chunks: dict[str, ChunkInfo]) -> Iterator[Item]:
    """Check that each byte of a segment is in a chunk, or in the log; the existence of chunks is checked elsewhere."""
    present = logged_ranges(segment)
    for record in segment.chunks:
        chunk = chunks.get(record.name)
        file = f"{found.scope}{record.name}"
        lost = range_text(segment, record.start_offset, record.end_offset)
        if chunk is not None and chunk.size != record.size:
            what = f"has {chunk.size} bytes, the checkpoint says {record.size}"
            yield Finding(file, what, offset=min(chunk.size, record.size), lost=lost)
        # A damaged or missing chunk is reported separately; its bytes are accounted for.
        present.append((record.start_offset, record.end_offset))
    for damage in found.known_damages.get(segment.segment_id, ()):
        present.append((damage.start, damage.end))
        lost = range_text(segment, damage.start, damage.end)
        if damage.source == ACCEPTED_SOURCE:
            yield Note(f"the loss of {lost} was accepted: {damage.source}")
            continue
        what = "was found damaged by a server, which rejects reads of these bytes"
        yield Finding(damage.source, what, size=damage.end - damage.start, lost=lost)
    present += _told_ranges(segment.segment_id, found)
    # Bytes of a merged segment stay with the source, which is checked separately, until a flush copies them.
    links = [other.link for other in found.state.merged.values() if other.link is not None]
    present += [(link.offset, link.end) for link in links if link.target_id == segment.segment_id]
    known_end = segment.length if found.has_log else segment.flushed_offset
    for start, end in missing_ranges(segment.start_offset, known_end, present):
        yield Finding(
            relative_name(found.folder, found.folder.parent.parent),
            "these bytes are neither in a chunk nor in the log",
            size=end - start,
            lost=range_text(segment, start, end),
        )


def _told_ranges(segment_id: int, found: OfflineContainer) -> Iterable[tuple[int, int]]:
    """Return the ranges that the log is known to have lost; they were reported with their place there."""
    damages = found.report.damages if found.report else ()
    return [
        (offset, offset + size)
        for damage in damages
        for damaged_id, offset, size in damage.runs
        if damaged_id == segment_id
    ]
