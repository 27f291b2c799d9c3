"""Repairs the end of a recovered log, so that writing can resume.

Three things are put right before anything new is written:

- The last batch may have been read from the page cache without ever having reached the disk: the process was killed
  before the sync, or the sync failed and the system dropped the pages. It is written again, the same bytes in the same
  place, and synced: what recovery read is durable from then on. All batches before it were synced before it was begun.
- The remains of an incomplete batch are zeroed, so that the next restart meets zeros or new batches and nothing else.
- A file with damage in it is not written any more. The log continues in the next one.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from millrace.server.host.files import FileSystem
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES

from .logfile import DAMAGED_SUFFIX, PREPARING_SUFFIX, LogFile
from .options import WalOptions
from .pool import FilePool, fill_zeros
from .recovery import Recovery
from .report import FoundFile, LogEnd

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumptionPoint:
    """Where the writer resumes."""

    active: LogFile
    sequence: int
    previous_checksum: int


def resume(
    files: FileSystem,
    directory: Path,
    options: WalOptions,
    pool: FilePool,
    recovery: Recovery,
    after_sequence: int,
) -> ResumptionPoint:
    """Repair the end of the log, hand its files to the pool, and return where to resume. Blocking.

    Args:
        files: the file system.
        directory: the folder of the log.
        options: sizes and bounds.
        pool: takes over all files but the active one.
        recovery: exhausted.
        after_sequence: the next batch gets a higher sequence than this.

    Raises:
        NoSpaceError, OSError: it could not be done; nothing was lost, and another `Wal` may try again.
    """
    for name in files.list_directory(directory):
        if name.endswith(PREPARING_SUFFIX):
            files.remove(directory / name)
    end = recovery.end
    if end is None:
        return ResumptionPoint(pool.prepare_now(), after_sequence, 0)
    position = recovery.found.index(end.file)
    opened: list[LogFile] = []
    try:
        if end.last_file is not None:
            _write_last_batch_again(files, end)
        opened.extend(_open(files, found, options) for found in recovery.found[: position + 1])
        active = opened[-1]
        active.end = end.tail.offset
        if not active.is_damaged:
            _zero_rest(active)
        spares = [found for found in recovery.found[position + 1 :] if _is_usable_spare(files, found, options)]
        opened.extend(_open(files, found, options) for found in spares)
        files.sync_directory(directory)
        next_number = recovery.found[-1].number + 1
        pool.adopt(opened, needed=position + 1, next_number=next_number)
        if not active.is_damaged:
            active = pool.lend()
        elif pool.ready_count:
            active = pool.take_first()
        else:
            active = pool.prepare_now()
    except BaseException:
        for file in opened:
            file.file.close()
        raise
    return ResumptionPoint(active, max(end.next_sequence - 1, after_sequence), end.previous_checksum)


def _write_last_batch_again(files: FileSystem, end: LogEnd) -> None:
    assert end.last_file is not None
    assert end.last_batch is not None
    batch = end.last_batch
    file = files.open(end.last_file.path)
    try:
        file.pwritev([file.pread(batch.size, batch.offset)], batch.offset)
        file.datasync()
    finally:
        file.close()


def _zero_rest(active: LogFile) -> None:
    """Zero the active file after the end of the log, up to its full size, unless it is zeros already."""
    size = active.size_bytes - active.end
    rest = active.file.pread(size, active.end)
    if len(rest) == size and rest.count(0) == size:
        return
    fill_zeros(active.file, active.end, active.size_bytes)
    active.file.datasync()
    logger.info("log tail zeroed, path=%s offset=%d", active.path, active.end)


def _is_usable_spare(files: FileSystem, found: FoundFile, options: WalOptions) -> bool:
    """Return whether an unused file can be used as it is; rename or remove it if not."""
    if found.header is None:
        files.rename(found.path, found.path.with_name(found.path.name + DAMAGED_SUFFIX))
        return False
    if found.size_bytes != options.file_size_bytes:
        files.remove(found.path)
        return False
    return True


def _open(files: FileSystem, found: FoundFile, options: WalOptions) -> LogFile:
    return LogFile(
        number=found.number,
        path=found.path,
        salt=found.salt or 0,
        file=files.open(found.path),
        # A file of another size than is configured now is used up as it is, but never left too small for a run.
        size_bytes=max(found.size_bytes, options.file_size_bytes),
        end=LOG_FILE_HEADER_BLOCK_BYTES,
        last_sequence=found.last_sequence,
        is_damaged=found.is_damaged,
    )
