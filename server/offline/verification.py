"""Checks whether a data folder still holds everything that was acknowledged.

Walked are: the identity; the checkpoint, row by row; every batch of the log, with its chain; every page, index and
summary of every chunk; every copy of the checkpoint in tier 2. Then the parts are compared with one another: each byte
of each segment must be in a chunk or in the log, and each chunk must be what its name and the checkpoint say.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from millrace.model.figures import count_text, size_text
from millrace.model.limits import FINGERPRINT_SIZE_BYTES_MAX
from millrace.model.producer import FENCED_RUNS_COUNT_MAX, NO_RUN
from millrace.model.sequence_row import NO_SEQUENCE
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, whole_copies
from millrace.server.container.state.transaction import PART_NAME
from millrace.server.errors import ConfigurationError, ManifestUnreadableError
from millrace.server.folder import CONTAINERS_FOLDER, LOCK_NAME, TIER2_FOLDER, read_identity
from millrace.server.host.files import OsFileSystem
from millrace.server.object_store.opening import OWNER_KEY
from millrace.server.ownership import manifest_key, read_folder_claim
from millrace.server.ownership.folder_claim import CLAIM_NAME
from millrace.server.wal import LOG_PREFIX, Ending, LogOwner

from .container import Container, log_capacity_bytes, log_files, survey
from .findings import Finding, Verification, range_text, relative_name
from .remote_history import RemoteHistory, refreshed
from .tier2_check import OnStep, Tier2Check

PASSES_COUNT_MAX: Final = 5
"""How often a store that changes meanwhile is gone through; only the first time takes long."""


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
    if history is not None:
        _judge_prefix(result, history)
    with ExitStack() as stack:
        found = []
        for number, container in enumerate(container_folders(folder)):
            owner = LogOwner(container_id=number, server_id=owner_id) if owner_id is not None else None
            surveyed = survey(
                container,
                owner=owner,
                history=history,
                capacity_bytes=log_capacity_bytes(folder) if history is not None else 0,
                on_bytes=lambda size: on_step("log", size),
            )
            found.append(stack.enter_context(surveyed))
            if history is not None:
                _judge_manifest(result, history, number)
                _judge_claim(result, history, found[-1], folder)
            _judge_container(result, folder, found[-1])
        result.findings += asyncio.run(Tier2Check(folder, on_step=on_step).run(result, found, history=history))
    return result


def verify_history(history: RemoteHistory, *, on_step: OnStep = lambda _what, _size: None) -> Verification:
    """Go through everything in an object store, without the data folder: what could be restored from it. Blocks.

    What was only in the log when the newest copy of the checkpoint was made is told in a note.

    A server may use the store meanwhile. It deletes a chunk when a copy counts that does not refer to it. So a chunk is
    missing if the copy that was checked still counts afterwards, or if the next one refers to it, too.

    Raises:
        StorageError: the store does not answer.
    """
    check = Tier2Check(history.folder, on_step=on_step)
    missing_before: set[str] = set()
    for passes_left in reversed(range(PASSES_COUNT_MAX)):
        result, missing = _verify_once(history, check)
        doubtful = {finding.file for finding in missing} - missing_before
        if not doubtful:
            break
        newer = refreshed(history)
        if newer.copies == history.copies:
            break
        if not passes_left:
            missing = [finding for finding in missing if finding.file not in doubtful]
            result.notes.append(
                f"{count_text(len(doubtful), 'chunk')} were deleted before they could be checked, since a server "
                f"changed the store during each of {PASSES_COUNT_MAX} checks; check again when it has less to do"
            )
            break
        history, missing_before = newer, {finding.file for finding in missing}
    result.findings += missing
    return result


def _verify_once(history: RemoteHistory, check: Tier2Check) -> tuple[Verification, list[Finding]]:
    """Return what one check of a store found, and the chunks that were missing in it."""
    result = Verification()
    _judge_prefix(result, history)
    with ExitStack() as stack:
        found = []
        for number in history.containers:
            folder = history.folder / CONTAINERS_FOLDER / f"{number:04x}"
            folder.mkdir(parents=True, exist_ok=True)
            container = stack.enter_context(
                survey(folder, owner=None, history=history, capacity_bytes=log_capacity_bytes())
            )
            _judge_manifest(result, history, number)
            # That checkpoint and log are not there says nothing.
            container.checkpoint_error, container.has_log = "", container.remote_log is not None
            found.append(container)
            if container.has_log:
                _judge_log(result, container, name=f"{container.scope}{LOG_PREFIX}")
            _judge_damages(result, container, file=f"{container.scope}{LOG_PREFIX}")
            result.containers += 1
            result.segments += len(container.state.segments)
            if container.copy is None and number not in history.logs:
                result.find(f"{container.scope}{CHECKPOINT_PREFIX}", "there is no good copy of the checkpoint")
        missing = asyncio.run(check.run(result, found, history=history))
        without_log = [container.state for container in found if not container.has_log]
        segments = [segment for state in without_log for segment in state.segments.values()]
        only_logged = sum(segment.length - max(segment.start_offset, segment.flushed_offset) for segment in segments)
        if only_logged:
            result.notes.append(f"{size_text(only_logged)} were only in the log when the newest copy was made")
    return result, missing


def _judge_prefix(result: Verification, history: RemoteHistory) -> None:
    """Check the object that names the server of the prefix."""
    if history.owner_problem is not None:
        result.find(f"{history.url}/{OWNER_KEY}", str(history.owner_problem))


def _judge_manifest(result: Verification, history: RemoteHistory, number: int) -> None:
    """Check that the manifest of a container can be read, and that the copy is there that it names."""
    file = f"{history.url}/{manifest_key(number)}"
    if isinstance(error := history.manifests.get(number), ManifestUnreadableError):
        result.find(file, error.message)
    elif error is None and number in history.logs:
        result.find(file, "is missing, and the container has a log: the next start rebuilds it from that")
    recorded = history.recorded(number)
    if recorded and recorded.name not in (copy.name for copy in whole_copies(history.parts(number))):
        result.find(file, f"names {recorded.name}, of which not all parts are there")


def _judge_claim(result: Verification, history: RemoteHistory, found: Container, folder: Path) -> None:
    """Check what a start does: that the claim in the manifest was made by this folder, and from the copy that counts.

    Else what is in the folder has been superseded.
    """
    if isinstance(history.manifests.get(found.number), ManifestUnreadableError):
        return
    manifest = history.manifest(found.number)
    file = relative_name(found.folder / CLAIM_NAME, folder)
    try:
        claim = read_folder_claim(OsFileSystem(), found.folder)
    except ConfigurationError as error:
        result.find(file, error.message)
        return
    if manifest is None:
        if claim is not None and claim.claimed is not None:
            result.find(file, f"{history.url} holds no {manifest_key(found.number)}, though this folder has claimed it")
        return
    if manifest.log is not None:
        if claim is None or not claim.knows(manifest.claim_id):
            result.notes.append(
                f"{file}: container {found.number} was claimed by {manifest.claimant} at {manifest.claimant.since}; a "
                "start discards the checkpoint in this folder, and continues with what is in the store"
            )
    elif claim is None or not claim.knows(manifest.claim_id):
        result.find(
            file,
            f"container {found.number} was claimed by {manifest.claimant} at {manifest.claimant.since}: what is in "
            "this folder has been superseded",
        )
    elif claim.restored_from is not None and claim.claimed == manifest.claim_id:
        name = manifest.checkpoint.name if manifest.checkpoint else ""
        if claim.restored_from != name:
            result.find(
                file,
                f"container {found.number} was restored from {claim.restored_from or 'nothing'}, and its history is at "
                f"{name or 'nothing'} now: what is in this folder has been superseded",
            )


def _judge_container(result: Verification, folder: Path, found: Container) -> None:
    """Take over what was found about checkpoint and log."""
    result.containers += 1
    result.segments += len(found.state.segments)
    checkpoint_name = relative_name(found.checkpoint_path, folder)
    if found.checkpoint_error:
        result.find(checkpoint_name, f"the checkpoint cannot be used: {found.checkpoint_error}")
    if found.copy is not None:
        when = "the next start" if found.starts else "a start without this file"
        result.notes.append(f"{checkpoint_name}: {when} restores it from {found.scope}{found.copy.name}")
    for path in sorted(found.folder.glob("*.older-*")):
        result.notes.append(f"{relative_name(path, folder)}: was set aside by a server, since a copy of it was newer")
    for path in sorted(found.folder.rglob("*.damaged*")):
        result.find(relative_name(path, folder), "was set aside as damaged by a server", size=path.stat().st_size)
    remote_name = f"{found.scope}{LOG_PREFIX}"
    log_name = remote_name if found.remote_log else f"{relative_name(found.log_folder, folder)}/"
    _judge_log(result, found, name=log_name)
    _judge_damages(result, found, file=log_name)
    if found.is_known:
        _judge_exclusive_writers(result, found, file=checkpoint_name)
        _judge_transactions(result, found, file=checkpoint_name)
        _judge_producers(result, found, file=checkpoint_name)
    if found.report is not None and found.checkpoint is None and found.report.first_sequence > 1:
        result.find(
            checkpoint_name,
            f"there is no checkpoint that can be read, and the log starts at sequence {found.report.first_sequence}",
        )


def _judge_log(result: Verification, found: Container, *, name: str) -> None:
    """Take over what was found about the log, which has a name that ends with a slash."""
    log_name = name.removesuffix("/")
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
            f"{found.history.url}/{damage.place}" if found.history and found.remote_log else f"{name}{damage.place}",
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
        result.find(log_name, f"{found.loss}; a server stores nothing until {found.loss.remedy}")
    if accepted := found.state.scalars.accepted.sequence:
        result.notes.append(f"{log_name}: what the log has lost up to batch {accepted} was accepted by an operator")


def _judge_damages(result: Verification, found: Container, *, file: str) -> None:
    """Name entities that the log contradicts: the checkpoint has those of a log that is recycled, or not there."""
    file = file.removesuffix("/")
    for entity in found.state.quarantine:
        if entity.accepted:
            result.notes.append(f"{file}: {entity}; that was accepted by an operator")
        else:
            result.find(file, f"{entity}; a server refuses it until `millrace repair` has accepted that")


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
        if state.quarantine.get("segments", segment.segment_id) is not None:
            continue
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
        if len(row.described.encode()) > FINGERPRINT_SIZE_BYTES_MAX:
            result.find(file, f"producer {producer.writer_id} has a fingerprint that is too long")
        if row.last_sequence != NO_SEQUENCE and row.run == NO_RUN:
            result.find(file, f"producer {producer.writer_id} has committed {row.last_sequence} in no run")


def _lost_runs(found: Container, runs: Iterable[tuple[int, int, int]], *, is_complete: bool) -> str:
    texts = []
    for segment_id, offset, size in runs:
        segment = found.state.segments.get(segment_id)
        if segment is not None:
            is_flushed = offset + size <= segment.flushed_offset
            texts.append(range_text(segment, offset, offset + size) + (" (tier 2 has it)" if is_flushed else ""))
        else:
            texts.append(f"segment {segment_id} [{offset}, {offset + size})" if segment_id else "a record")
    if not is_complete:
        texts.append("what it held is not known")
    return ", ".join(texts)
