"""Checks whether a data folder or an object store still contains everything that was acknowledged.

The check reads the identity; the checkpoint, row by row; every batch of the log, with its chain; every page, index and
summary of every chunk; every copy of the checkpoint in tier 2. Then it compares the parts: each byte of each segment
must be in a chunk or in the log, and each chunk must be the one that its name and the checkpoint refer to.

Checks yield findings as soon as they are known; `Verification.of` sums them up.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

from millrace.model.figures import count_text, size_text
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, whole_copies
from millrace.server.errors import ConfigurationError, ManifestUnreadableError
from millrace.server.folder import TIER2_FOLDER, read_identity
from millrace.server.host.files import OsFileSystem
from millrace.server.object_store.opening import OWNER_KEY
from millrace.server.ownership import manifest_key, read_folder_claim
from millrace.server.ownership.folder_claim import CLAIM_NAME
from millrace.server.wal import LOG_PREFIX, Ending

from .container import (
    OfflineContainer,
    container_folders,
    container_of_store,
    containers_of_folder,
    log_capacity_bytes,
    log_files,
    owned_folder,
    read_log,
)
from .findings import Checked, Finding, Item, MissingChunk, Note, Progress, range_text, relative_name
from .remote_history import RemoteHistory, refreshed, remote_history, store_of
from .tier2_check import Tier2Check

PASSES_COUNT_MAX: Final = 5
"""Passes over a store that changes meanwhile; only the first one takes long."""


def verify(folder: Path | None = None, *, store: str = "") -> Generator[Item]:
    """Check every byte of a data folder that no server uses, or of an object store. Changes nothing. Blocks.

    Args:
        folder: None for the store alone, to see what could be restored from it; a server may use the store meanwhile.
        store: URL of the store with the history; empty for the one that the folder names, if any.

    Raises:
        FolderLockedError: a server runs on the folder.
        FolderVersionError: the folder was written by another version.
        ConfigurationError: it is not a data folder.
        StorageError: the store does not answer.
    """
    url = store or (store_of(folder) if folder is not None else "")
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(owned_folder(folder))
        history = stack.enter_context(remote_history(url)) if url else None
        yield Progress(total=_bytes_to_read(folder, history))
        if folder is not None:
            yield from verify_folder(folder, history=history)
        else:
            assert history is not None, "neither a folder nor a store is named"
            yield from verify_history(history)


def _bytes_to_read(folder: Path | None, history: RemoteHistory | None) -> int:
    """Return the number of bytes that `verify` reads."""
    folders = container_folders(folder) if folder is not None else []
    logs = sum(path.stat().st_size for container in folders for path in log_files(container))
    if history is not None:
        return logs + sum(chunk.size for chunk in history.chunks)
    assert folder is not None
    return logs + sum(path.stat().st_size for path in (folder / TIER2_FOLDER).rglob("*.chunk"))


def verify_folder(folder: Path, *, history: RemoteHistory | None = None) -> Iterator[Item]:
    """Check a data folder whose history has been read already, see `verify`.

    Args:
        history: content of the object store that has tier 2; None if tier 2 is in the folder.
    """
    server_id = None
    try:
        server_id = read_identity(OsFileSystem(), folder).server_id
    except ConfigurationError as error:
        if type(error) is not ConfigurationError:
            raise
        yield Finding("identity.json", error.message)
    capacity_bytes = log_capacity_bytes(folder) if history is not None else 0
    containers = containers_of_folder(folder, server_id=server_id, history=history, capacity_bytes=capacity_bytes)
    yield from _missing_last(_verify_once(containers, Tier2Check(folder), history))


def verify_history(history: RemoteHistory) -> Iterator[Item]:
    """Check an object store that has been listed already, without the data folder, see `verify`.

    Events that were only in the log when the newest copy of the checkpoint was made are reported in a note.

    A server may use the store meanwhile. It deletes a chunk when a copy is current that does not refer to it. So a
    chunk counts as missing if the checked copy is still current afterwards, or if the next one refers to it, too.
    """
    check = Tier2Check(history.folder)
    missing_before: set[str] = set()
    for passes_left in reversed(range(PASSES_COUNT_MAX)):
        items: list[Item] = []
        containers = (container_of_store(history, number) for number in history.containers)
        for item in _verify_once(containers, check, history):
            if isinstance(item, Progress):
                yield item
            else:
                items.append(item)
        missing = {item.file for item in items if isinstance(item, MissingChunk)}
        doubtful = missing - missing_before
        if not doubtful:
            break
        newer = refreshed(history)
        if newer.copies == history.copies:
            break
        if not passes_left:
            items = [item for item in items if not (isinstance(item, MissingChunk) and item.file in doubtful)]
            text = (
                f"{count_text(len(doubtful), 'chunk')} were deleted before they could be checked, since a server "
                f"changed the store during each of {PASSES_COUNT_MAX} checks; check again when it is less busy"
            )
            items.append(Note(text))
            break
        history, missing_before = newer, missing
    yield from _missing_last(items)


def _missing_last(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the same items, missing chunks last."""
    missing = []
    for item in items:
        if isinstance(item, MissingChunk):
            missing.append(item)
        else:
            yield item
    yield from missing


def _verify_once(
    containers: Iterable[AbstractContextManager[OfflineContainer]], check: Tier2Check, history: RemoteHistory | None
) -> Iterator[Item]:
    """Check all containers of a folder or of a store once."""
    if history is not None and history.owner_problem is not None:
        yield Finding(f"{history.url}/{OWNER_KEY}", str(history.owner_problem))
    with ExitStack() as stack:
        found = []
        for opened in containers:
            container = stack.enter_context(opened)
            found.append(container)
            for size in read_log(container):
                yield Progress("log", size)
            yield from _judge_container(container)
        yield from check.run(found, history=history)
        segments = [each for item in found if not item.has_log for each in item.state.segments.values()]
        only_logged = sum(each.length - max(each.start_offset, each.flushed_offset) for each in segments)
        if only_logged:
            yield Note(f"{size_text(only_logged)} were only in the log when the newest copy was made")


def _judge_container(found: OfflineContainer) -> Iterator[Item]:
    """Check the parts of a container: manifest, claim, checkpoint and log."""
    yield Checked(containers=1, segments=len(found.state.segments))
    if found.history is not None:
        yield from _judge_manifest(found, found.history)
    if found.has_folder:
        yield from _judge_folder(found)
        return
    log_name = f"{found.scope}{LOG_PREFIX}"
    yield from _judge_log(found, name=log_name)
    yield from _judge_damages(found, file=log_name)
    if found.copy is None and found.history is not None and found.number not in found.history.logs:
        yield Finding(f"{found.scope}{CHECKPOINT_PREFIX}", "there is no good copy of the checkpoint")


def _judge_manifest(found: OfflineContainer, history: RemoteHistory) -> Iterator[Item]:
    """Check that the manifest of a container is readable, and that the copy that it names exists."""
    number = found.number
    file = f"{history.url}/{manifest_key(number)}"
    if isinstance(error := history.manifests.get(number), ManifestUnreadableError):
        yield Finding(file, error.message)
    elif error is None and number in history.logs:
        yield Finding(file, "is missing, but the container has a log: the next start rebuilds it from the log")
    recorded = history.recorded(number)
    if recorded and recorded.name not in (copy.name for copy in whole_copies(history.parts(number))):
        yield Finding(file, f"names {recorded.name}, some parts of which are missing")


def _judge_claim(found: OfflineContainer, history: RemoteHistory) -> Iterator[Item]:
    """Check, like a start, that the claim in the manifest was made by this folder, from the current copy.

    Otherwise the data in the folder are superseded.
    """
    if isinstance(history.manifests.get(found.number), ManifestUnreadableError):
        return
    manifest = history.manifest(found.number)
    file = relative_name(found.folder / CLAIM_NAME, found.data_dir)
    try:
        claim = read_folder_claim(OsFileSystem(), found.folder)
    except ConfigurationError as error:
        yield Finding(file, error.message)
        return
    if manifest is None:
        if claim is not None and claim.claimed is not None:
            yield Finding(
                file, f"{history.url} contains no {manifest_key(found.number)}, although this folder has claimed it"
            )
        return
    if manifest.log is not None:
        if claim is None or not claim.knows(manifest.claim_id):
            yield Note(
                f"{file}: container {found.number} was claimed by {manifest.claimant} at {manifest.claimant.since}; a "
                "start discards the checkpoint in this folder, and continues with the data in the store"
            )
    elif claim is None or not claim.knows(manifest.claim_id):
        yield Finding(
            file,
            f"container {found.number} was claimed by {manifest.claimant} at {manifest.claimant.since}: the data in "
            "this folder are superseded",
        )
    elif claim.restored_from is not None and claim.claimed == manifest.claim_id:
        name = manifest.checkpoint.name if manifest.checkpoint else ""
        if claim.restored_from != name:
            yield Finding(
                file,
                f"container {found.number} was restored from {claim.restored_from or 'nothing'}, but its history is at "
                f"{name or 'nothing'} now: the data in this folder are superseded",
            )


def _judge_folder(found: OfflineContainer) -> Iterator[Item]:
    """Judge the claim, the checkpoint and the log of a container that has a data folder."""
    folder = found.data_dir
    if found.history is not None:
        yield from _judge_claim(found, found.history)
    checkpoint_name = relative_name(found.checkpoint_path, folder)
    if found.checkpoint_error:
        yield Finding(checkpoint_name, f"the checkpoint cannot be used: {found.checkpoint_error}")
    if found.copy is not None:
        when = "the next start" if found.starts else "a start without this file"
        yield Note(f"{checkpoint_name}: {when} restores it from {found.scope}{found.copy.name}")
    for path in sorted(found.folder.glob("*.older-*")):
        yield Note(f"{relative_name(path, folder)}: was set aside by a server, because a copy was newer")
    for path in sorted(found.folder.rglob("*.damaged*")):
        yield Finding(relative_name(path, folder), "was set aside as damaged by a server", size=path.stat().st_size)
    remote_name = f"{found.scope}{LOG_PREFIX}"
    log_name = remote_name if found.remote_log else f"{relative_name(found.log_folder, folder)}/"
    yield from _judge_log(found, name=log_name)
    yield from _judge_damages(found, file=log_name)
    if found.is_known:
        for kind in found.state.kinds:
            if kind.problems is not None:
                yield from (Finding(checkpoint_name, problem) for problem in kind.problems(found.state))
    if found.report is not None and found.checkpoint is None and found.report.first_sequence > 1:
        yield Finding(
            checkpoint_name,
            f"no checkpoint can be read, and the log starts at sequence {found.report.first_sequence}",
        )


def _judge_log(found: OfflineContainer, *, name: str) -> Iterator[Item]:
    """Report the findings of reading the log, whose name ends with a slash."""
    log_name = name.removesuffix("/")
    if found.log_error:
        yield Finding(log_name, f"the log cannot be read: {found.log_error}")
    for problem in found.record_problems:
        yield Finding(log_name, problem)
    report = found.report
    if report is None:
        return
    yield Checked(batches=report.batch_count, log_bytes=report.size_bytes)
    for damage in report.damages:
        yield Finding(
            f"{found.history.url}/{damage.place}" if found.history and found.remote_log else f"{name}{damage.place}",
            damage.reason,
            offset=damage.offset,
            size=damage.size,
            lost=_lost_runs(found, damage.runs, is_complete=damage.is_complete),
        )
    if report.ending is Ending.TORN:
        yield Note(
            f"{log_name}: ends in an incomplete batch of {count_text(report.torn_bytes, 'byte')}, which was never "
            "acknowledged; the next start truncates it"
        )
    if found.loss is not None:
        yield Finding(log_name, f"{found.loss}; the container is read-only until {found.loss.remedy}")
    if accepted := found.state.scalars.accepted.sequence:
        yield Note(f"{log_name}: an operator has accepted the loss of the log up to batch {accepted}")


def _judge_damages(found: OfflineContainer, *, file: str) -> Iterator[Item]:
    """Name entities that the log contradicts, from the checkpoint if the log was recycled or is missing."""
    file = file.removesuffix("/")
    for entity in found.state.quarantine:
        if entity.accepted:
            yield Note(f"{file}: {entity}; an operator has accepted that")
        else:
            yield Finding(file, f"{entity}; it is read-only until `millrace repair` accepts that")


def _lost_runs(found: OfflineContainer, runs: Iterable[tuple[int, int, int]], *, is_complete: bool) -> str:
    texts = []
    for segment_id, offset, size in runs:
        segment = found.state.segments.get(segment_id)
        if segment is not None:
            is_flushed = offset + size <= segment.flushed_offset
            texts.append(range_text(segment, offset, offset + size) + (" (tier 2 has it)" if is_flushed else ""))
        else:
            texts.append(f"segment {segment_id} [{offset}, {offset + size})" if segment_id else "a record")
    if not is_complete:
        texts.append("its content is unknown")
    return ", ".join(texts)
