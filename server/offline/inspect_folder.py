"""A data folder for people: where the bytes of each segment are."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from millrace.model.figures import size_text
from millrace.server.errors import ConfigurationError, FolderLockedError
from millrace.server.folder import IDENTITY_NAME, TIER2_FOLDER, read_identity
from millrace.server.host.files import OsFileSystem
from millrace.server.tier2 import parse_chunk_name
from millrace.server.wal.logfile import log_file_name
from millrace.wire.schema.log import LogFileHeader

from .container import OfflineContainer, containers_of_folder, log_files, logged_ranges, owned_folder, survey
from .declared import read_fields, values_of
from .report import Report


def inspect_folder(path: Path, *, limit: int) -> Report:
    """Return an overview of a data folder: its parts, and the bytes of each segment in tier 2 and in the log.

    Args:
        limit: most rows of each table, 0 for all.
    """
    report = Report("data folder", str(path), limit=limit)
    server_id = None
    try:
        identity = read_identity(OsFileSystem(), path)
        server_id = identity.server_id
        report.facts["server_id"] = str(server_id)
        if identity.store:
            report.facts["store"] = identity.store
            report.notes.append(f"`millrace inspect --store {identity.store}` lists the chunks")
    except ConfigurationError as error:
        report.problems.append(str(error))
    try:
        with owned_folder(path):
            pass
    except FolderLockedError:
        report.notes.append("a server is running on this folder: the data is changing")
    with ExitStack() as stack:
        opened = containers_of_folder(path, server_id=server_id)
        found = [stack.enter_context(survey(each)) for each in opened]
        _add_containers(report, path, found)
    return report


def _add_containers(report: Report, path: Path, found: list[OfflineContainer]) -> None:
    report.facts |= {"containers": len(found), "segments": sum(len(item.state.segments) for item in found)}
    report.facts["streams"] = sum(len(item.state.streams) for item in found)
    for container in found:
        _add_facts(report, container)
    report.add_table("segments", "where the bytes are", _SEGMENT_COLUMNS, _segments(found))
    report.add_table("log_files", "tier 1: the log", _LOG_COLUMNS, _logs(path, found))
    chunks = _chunks(path)
    report.facts["tier2"] = f"{len(chunks)} chunks, {size_text(sum(chunk[1] for chunk in chunks))}"
    report.add_table("chunks", "tier 2: chunks", _CHUNK_COLUMNS, chunks)


_SEGMENT_COLUMNS = ("segment", "id", "start", "length", "events", "in tier 2", "chunks", "only in the log", "state")
_LOG_COLUMNS = ("file", "size", "above sequence", "recycled")
_CHUNK_COLUMNS = ("name", "size", "segment", "from", "to")


def _add_facts(report: Report, found: OfflineContainer) -> None:
    if found.checkpoint is not None:
        report.facts["checkpoint"] = (
            f"as of sequence {found.checkpoint.sequence}, replay from {found.checkpoint.replay_from}, "
            f"epoch {found.checkpoint.container_epoch}"
        )
    if found.checkpoint_error:
        report.problems.append(f"{found.checkpoint_path.name}: {found.checkpoint_error}")
    if found.report is not None:
        log = found.report
        report.facts["log"] = (
            f"{log.batch_count} batches, {size_text(log.size_bytes)} in use, sequences {log.first_sequence} to "
            f"{log.last_sequence}, ending {log.ending.value}"
        )
        report.problems += [str(damage) for damage in log.damages]
    if found.loss is not None:
        report.problems.append(f"{found.loss}; the container is read-only until `millrace repair` accepts the loss")
    report.problems += [str(damage) for damage in found.state.quarantine if not damage.accepted]
    if found.state.scalars.accepted.sequence:
        report.facts["accepted_loss"] = f"of the log up to batch {found.state.scalars.accepted.sequence}"
    named = found.newest.named
    report.facts["newest_log_file"] = f"{log_file_name(named.number)}, salt {named.salt}" if named else "not named"
    if found.log_error:
        report.problems.append(found.log_error)


def _segments(found: list[OfflineContainer]) -> list[list[Any]]:
    rows = []
    for container in found:
        for segment in container.state.segments.values():
            in_chunks = sum(chunk.length for chunk in segment.chunks)
            logged = logged_ranges(segment)
            only_logged = sum(
                end - max(start, segment.flushed_offset) for start, end in logged if end > segment.flushed_offset
            )
            state = "sealed" if segment.sealed else "open"
            rows.append(
                [
                    segment.name, segment.segment_id, segment.start_offset, segment.length, segment.event_count,
                    in_chunks, len(segment.chunks), only_logged, "damaged" if segment.damages else state,
                ]
            )  # fmt: skip
    return sorted(rows)


def _logs(root: Path, found: list[OfflineContainer]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for container in found:
        for path in log_files(container.folder):
            with path.open("rb") as file:
                header = values_of(read_fields(LogFileHeader, file.read(LogFileHeader.sizeof()), offset=0))
            floor, flags = header.get("sequence_floor"), header.get("flags")
            name = path.relative_to(root).as_posix()
            rows.append([name, path.stat().st_size, floor, bool(flags)])
    return rows


def _chunks(root: Path) -> list[list[Any]]:
    rows: list[list[Any]] = []
    folder = root / TIER2_FOLDER
    for path in sorted(folder.rglob("*.chunk")):
        name = path.relative_to(folder).as_posix()
        chunk = parse_chunk_name(name.partition("/")[2])
        place = (chunk.segment_id, chunk.start_offset, chunk.end_offset) if chunk else (None, None, None)
        rows.append([f"{TIER2_FOLDER}/{name}", path.stat().st_size, *place])
    return rows


def is_data_folder(path: Path) -> bool:
    """Return whether a folder is the data folder of a server."""
    return (path / IDENTITY_NAME).exists() or (path / TIER2_FOLDER).is_dir()
