"""Repairs the end of a recovered log, so that writing can resume.

Before a new batch is written:

- The last batch is written again, the same bytes in the same place, and synced. It may have been read from the page
  cache without ever having reached the disk: the process was killed before the sync, or the sync failed and the system
  dropped the pages. All batches before it were synced before it was begun.
- The remains of an incomplete batch are zeroed, so that the next restart finds only zeros or new batches there.
- A damaged file is not written any more. The log continues in the next one. So it does after an accepted loss, because
  the sequences jump there.

Finally the active file is named as the newest one in the log head (see `log_head`), if it was not before.
"""

import logging
from contextlib import closing
from pathlib import Path

from millrace.server.host.files import FileSystem
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES

from .batch import Batch
from .log_head import FileUse, open_log_head
from .logfile import DAMAGED_SUFFIX, PREPARING_SUFFIX, LogFile, close_file
from .options import WalOptions
from .pool import FilePool, fill_zeros
from .recovery import Recovery
from .report import FoundFile
from .writer import ResumptionPoint

logger = logging.getLogger(__name__)


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
        NoSpaceError, OSError: the repair failed; nothing was lost, and another `Wal` may try again.
    """
    found, end = recovery.found, recovery.end
    needed = found.index(end) + 1 if end is not None else 0
    opened: list[LogFile] = []
    try:
        if recovery.last is not None:
            _write_again(files, *recovery.last)
        opened.extend(_open(files, file, options) for file in found[:needed])
        if opened:
            active = opened[-1]
            active.end = recovery.report.end_offset
            if not active.is_damaged:
                active.size_bytes = _size_in_use(found[needed - 1].size_bytes, end=active.end, options=options)
                _zero_rest(active, zero_fill=options.zero_fill)
        sequence = pool.sequence_floor = max(recovery.report.last_sequence, after_sequence)
        continues = sequence == recovery.report.last_sequence
        spares = [
            file
            for file in found[needed:]
            if _is_usable_spare(files, file, options, recovery=recovery, continues=continues)
        ]
        opened.extend(_open(files, file, options) for file in spares)
        files.sync_directory(directory)
        active = pool.take_over(opened, needed=needed, next_number=recovery.next_number, continues=continues)
        opened.append(active)
        newest = open_log_head(files, directory, FileUse(active.number, active.salt))
    except BaseException:
        for file in opened:
            close_file(file.file, file.path)
        raise
    return ResumptionPoint(active, newest, sequence, previous_checksum=recovery.chain or 0)


def remove_unfinished(files: FileSystem, directory: Path) -> None:
    """Remove files whose preparation was interrupted by a crash. Blocking.

    Raises:
        OSError: any error of the disk.
    """
    for name in files.list_directory(directory):
        if name.endswith(PREPARING_SUFFIX):
            files.remove(directory / name)


def _write_again(files: FileSystem, found: FoundFile, batch: Batch) -> None:
    with closing(files.open(found.path)) as file:
        file.pwritev([file.pread(batch.size, batch.offset)], batch.offset)
        file.datasync()


def _size_in_use(size_bytes: int, *, end: int, options: WalOptions) -> int:
    """Return the new size of the active file, if its size differs from the configured one.

    It is cut: the only file of a log has to leave space for the next one, or it is never recycled. It is not extended,
    for which a full volume has no space, unless it is too small for a run.
    """
    if end <= options.file_size_bytes < size_bytes or size_bytes < options.file_size_bytes_min:
        return options.file_size_bytes
    return size_bytes


def _zero_rest(active: LogFile, *, zero_fill: bool) -> None:
    """Zero the active file after the end of the log, up to its full size, unless it is zero already.

    Without `zero_fill`, only non-zero bytes; the missing part of the file stays a hole.
    """
    size = active.size_bytes - active.end
    if active.file.size() > active.size_bytes:
        active.file.truncate(active.size_bytes)
        active.file.datasync()
    rest = active.file.pread(size, active.end)
    if len(rest) == size and rest.count(0) == size:
        return
    if zero_fill:
        fill_zeros(active.file, active.end, active.size_bytes)
    else:
        fill_zeros(active.file, active.end, active.end + len(rest.rstrip(b"\0")))
        active.file.truncate(active.size_bytes)
    active.file.datasync()
    logger.info("log tail zeroed path=%s offset=%d", active.path, active.end)


def _is_usable_spare(
    files: FileSystem, found: FoundFile, options: WalOptions, *, recovery: Recovery, continues: bool
) -> bool:
    """Return whether an unused file can be used as it is; rename or remove it if not."""
    if found.is_damaged:
        files.rename(found.path, found.path.with_name(found.path.name + DAMAGED_SUFFIX))
        return False
    if not continues and found.number <= recovery.used_number:
        # A loss was accepted in all files up to here: new batches must not count as lost.
        files.remove(found.path)
        return False
    # The named file must not be missing at the next start.
    if found.size_bytes != options.file_size_bytes and found.number > recovery.named_number:
        files.remove(found.path)
        return False
    return True


def _open(files: FileSystem, found: FoundFile, options: WalOptions) -> LogFile:
    return LogFile(
        number=found.number,
        path=found.path,
        salt=found.salt or 0,
        file=files.open(found.path),
        # An active file keeps its size, whatever is configured now, but a spare has the promised space.
        size_bytes=max(found.size_bytes, options.file_size_bytes),
        end=LOG_FILE_HEADER_BLOCK_BYTES,
        last_sequence=found.last_sequence,
        is_damaged=found.is_damaged,
    )
