"""An object store for people: its owners, its chunks, and its copies of checkpoints."""

from collections.abc import Sequence
from typing import Any

from millrace.model.figures import count_text, size_text
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, whole_copies
from millrace.server.tier2 import ChunkInfo, parse_chunk_name

from .owners import OWNER_COLUMNS, OwnerRow
from .remote_history import RemoteHistory
from .report import Report

_CHUNK_COLUMNS = ("name", "size", "segment", "from", "to")
_COPY_COLUMNS = ("name", "size", "parts", "sequence", "epoch", "counts")


def inspect_history(history: RemoteHistory, owners: Sequence[OwnerRow], *, limit: int) -> Report:
    """Return an overview of an object store with the history of a server.

    Args:
        owners: of its containers.
        limit: most rows of each table, 0 for all.
    """
    report = Report("object store", history.url, limit=limit)
    chunks: list[list[Any]] = []
    copies: list[list[Any]] = []
    for number in history.containers:
        scope = f"c{number:04x}/"
        inside = [
            ChunkInfo(chunk.name.removeprefix(scope), chunk.size)
            for chunk in history.chunks
            if chunk.name.startswith(scope)
        ]
        parts = [chunk for chunk in inside if chunk.name.startswith(CHECKPOINT_PREFIX)]
        whole = whole_copies(parts)
        for copy in whole:
            size = sum(part.size for part in copy.parts)
            counts = copy.name == history.copies.get(number)
            copies.append([f"{scope}{copy.name}", size, len(copy.parts), *copy.point, counts])
        left = len(parts) - sum(len(copy.parts) for copy in whole)
        if left:
            report.notes.append(f"{count_text(left, 'part')} in {scope}{CHECKPOINT_PREFIX} make no whole copy")
        for chunk in inside:
            if chunk not in parts:
                name = parse_chunk_name(chunk.name)
                place = (name.segment_id, name.start_offset, name.end_offset) if name else (None, None, None)
                chunks.append([f"{scope}{chunk.name}", chunk.size, *place])
    report.facts |= {
        "containers": len(history.containers),
        "tier2": f"{len(chunks)} chunks, {size_text(sum(chunk[1] for chunk in chunks))}",
        "checkpoint_copies": len(copies),
    }
    report.problems += [f"{history.url}/{owner.problem}" for owner in owners if owner.problem]
    report.add_table("owners", "who owns the containers", OWNER_COLUMNS, [owner.columns() for owner in owners])
    report.add_table("copies", "copies of checkpoints", _COPY_COLUMNS, copies)
    report.add_table("chunks", "chunks", _CHUNK_COLUMNS, chunks)
    return report
