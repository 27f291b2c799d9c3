"""The files of one log: full ones, and spares prepared in the background.

A file is recycled: it is prepared (zero-filled, or a hole that reads as zeros, headed by a new salt, synced, only then
renamed to its name), used, full, no longer needed, and then gets a new header under the next number. None of this
happens in the log thread, unless it needs a file and none is ready: then it waits here.

A crash can leave a file named `*.preparing`, which is removed at the next start, and never a file under a log name
whose header was not synced before. Damaged files are renamed to `*.damaged` when they are no longer needed.

A full disk shows here first, when a spare is prepared, long before an append that needs the space is accepted.
"""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Final

from millrace.server.errors import LogClosedError, NoSpaceError
from millrace.server.host.files import File, FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.host.room import DiskRoom
from millrace.server.host.threads import SYSTEM_THREADS, Threads
from millrace.wire.limits import MIB
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES

from .batch import FileHeader, encode_file_header
from .logfile import DAMAGED_SUFFIX, PREPARING_SUFFIX, LogFile, close_file, log_file_name
from .options import FILES_COUNT_MIN, WalOptions
from .report import LogOwner

logger = logging.getLogger(__name__)

_FILL_PIECE_BYTES: Final = 1 * MIB
_FILL_SYNC_BYTES: Final = 8 * MIB
"""Bytes to fill between syncs: one sync of a whole file would delay the next syncs of the log."""
_ZEROS: Final = bytes(_FILL_PIECE_BYTES)
_NICENESS: Final = 10


class FilePool:
    """Owns every file of the log but the active one. Safe for the loop and the log thread together."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        options: WalOptions,
        *,
        owner: LogOwner,
        metrics: Metrics,
        room: DiskRoom | None = None,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """Store the collaborators; without `room`, the log may take all of the volume."""
        self._files = files
        self._room = room or DiskRoom(files)
        self._directory = directory
        self._options = options
        self._owner = owner
        self._metrics = metrics
        # The last sequence written: files made from now on contain higher ones.
        self.sequence_floor = 0
        self._threads = threads
        self._changed = threads.condition()
        # All below is guarded by `_changed`.
        self._ready: deque[LogFile] = deque()
        self._full: deque[LogFile] = deque()
        self._released: deque[LogFile] = deque()
        self._file_count = 0
        self._next_number = 1
        # How many more files can be made, by the bound and the last measured disk space.
        self._makeable_count = 0
        # Files ever given to the log thread.
        self._taken_count = 0
        self._problem: str | None = None
        self._is_draining = False
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def unused_files(self, taken_count: int) -> int:
        """Return how many unused files existed, or could be made, when that many had been taken."""
        with self._changed:
            return len(self._ready) + self._makeable_count + self._taken_count - taken_count

    @property
    def ready_count(self) -> int:
        """Number of spares that are ready."""
        return len(self._ready)

    @property
    def file_count(self) -> int:
        """How many files there are, of any use."""
        return self._file_count

    @property
    def full_count(self) -> int:
        """Number of full files that are still needed."""
        return len(self._full)

    @property
    def fullness(self) -> float:
        """The used part of the recyclable files: all files that fit, except the active one."""
        makeable_count = min(self._options.files_max, self._file_count + self._makeable_count)
        return min(1.0, self.full_count / max(1, makeable_count - 1))

    @property
    def problem(self) -> str | None:
        """Why no further file can be made, or None."""
        with self._changed:
            if self._file_count >= self._options.files_max:
                return f"the log has reached its limit of {self._options.files_max} files"
            if self._problem is None and not self._makeable_count:
                return "the disk has no space for another log file"
            return self._problem

    def take_over(self, found: list[LogFile], *, needed: int, next_number: int, continues: bool) -> LogFile:
        """Take over the recovered files, and return the active file; call it before `start`.

        The first `needed` files contain data, the others are spares. The last file with data stays active if the log
        `continues` there and it is not damaged. Otherwise the active file is a spare, or a file made in the calling
        thread.

        Raises:
            NoSpaceError: the disk is full.
            OSError: any other error of the disk.
        """
        self._full.extend(found[:needed])
        self._ready.extend(found[needed:])
        self._file_count = len(found)
        self._next_number = next_number
        if continues and self._full and not self._full[-1].is_damaged:
            return self._full.pop()
        return self._ready.popleft() if self._ready else self._prepare()

    def start(self) -> None:
        """Start the thread that prepares and recycles."""
        self._measure()
        # The log thread has priority.
        self._thread = self._threads.thread(self._run, name="millrace-wal-files", niceness=_NICENESS)
        self._thread.start()

    def take(self) -> LogFile:
        """Return the next file to write; blocks until one is ready.

        Raises:
            LogClosedError: the log is closing, and no further file can be made.
        """
        with self._changed:
            if not self._ready:
                self._metrics.wal_waits_total.increase()
                logger.info("log waits for a file files=%d problem=%s", self._file_count, self._problem)
            while not self._ready:
                if self._is_stopping or (self._is_draining and not self._makeable_count):
                    raise LogClosedError("the log was closed before a file to write to was ready")
                self._changed.wait()
            file = self._ready.popleft()
            self._taken_count += 1
            self._changed.notify_all()
            return file

    def put_full(self, file: LogFile) -> None:
        """Add a full file."""
        with self._changed:
            self._full.append(file)

    def recycle(self, sequence: int) -> None:
        """Release the full files whose batches all have at most that sequence. Never waits for the disk."""
        with self._changed:
            while self._full and self._full[0].last_sequence <= sequence:
                self._released.append(self._full.popleft())
            self._changed.notify_all()

    def recyclable_count(self, sequence: int) -> int:
        """Return how many full files `recycle` would release. Checks those files and one more."""
        with self._changed:
            return sum(1 for _ in takewhile(lambda file: file.last_sequence <= sequence, self._full))

    def drain(self) -> None:
        """Stop waiting for the disk or the limit in `take`; files that can be made at once are still made."""
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the thread end after its current job, and wake the threads that wait in `take`."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread, wait for it and close all files."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        for file in (*self._ready, *self._full, *self._released):
            close_file(file.file, file.path)

    def _run(self) -> None:
        while (work := self._wait_for_work()) is not None:
            problem = None
            try:
                work()
            except Exception as error:  # noqa: BLE001  # a thread that ended would leave a log that hangs when it is full
                # No promise depends on this file. It is abandoned, and another one is tried.
                problem = str(error) or repr(error)
                logger.warning(
                    "log file preparation failed retry_after_s=%s error=%s", self._options.retry_interval_s, error
                )
            with self._changed:
                if self._problem is not None and problem is None:
                    logger.info("log file preparation recovered files=%d", self._file_count)
                self._problem = problem
            self._measure()

    def _wait_for_work(self) -> Callable[[], None] | None:
        """Return the next job, or None at the end.

        After a failure, that is a released file, or the same job again when the retry interval is over.
        """
        with self._changed:
            is_due = self._problem is None
            while not self._is_stopping:
                if self._released:
                    return self._work_off_released
                is_below_bound = self._file_count < self._options.files_max
                if is_due and self._makeable_count and len(self._ready) < self._options.spare_files:
                    return self._add_spare
                # While the disk has no space, retry at intervals: no event signals free space.
                is_asking = is_below_bound and not self._makeable_count
                if not self._changed.wait(self._options.retry_interval_s if is_asking else None):
                    return self._measure if is_due else self._add_spare
            return None

    def _add_spare(self) -> None:
        """Make a spare, or do nothing if a retry finds that it is no longer needed."""
        if self.ready_count < self._options.spare_files and self._makeable_by_room():
            self._measure(self._prepare())

    def _work_off_released(self) -> None:
        """Recycle, remove or set aside one file that is no longer needed."""
        with self._changed:
            file = self._released.popleft()
            is_wanted = len(self._ready) < self._options.spare_files_max
        is_kept = is_wanted and self._leaves_room_for_tier2()
        if file.is_damaged:
            file.file.close()
            self._files.rename(file.path, file.path.with_name(file.path.name + DAMAGED_SUFFIX))
            logger.warning("damaged log file set aside path=%s suffix=%s", file.path, DAMAGED_SUFFIX)
        elif is_kept and file.size_bytes == self._options.file_size_bytes:
            self._measure(self._prepare(file))
            return
        else:
            file.file.close()
            self._files.remove(file.path)
        self._files.sync_directory(self._directory)
        with self._changed:
            self._file_count -= 1

    def _prepare(self, used: LogFile | None = None) -> LogFile:
        """Make a file ready under the next number: a new one, or one that was used before."""
        if used is not None:
            return self._make_ready(used)
        with self._room.claimed(self._directory, self._options.file_size_bytes):
            return self._make_ready(None)

    def _make_ready(self, used: LogFile | None) -> LogFile:
        with self._changed:
            number = self._next_number
            self._next_number += 1
        path = self._directory / log_file_name(number)
        temporary = path.with_name(path.name + PREPARING_SUFFIX)
        salt = secrets.randbits(64)
        header = encode_file_header(
            FileHeader(
                recycled=used is not None,
                container_id=self._owner.container_id,
                server_id=self._owner.server_id,
                file_number=number,
                salt=salt,
                sequence_floor=self.sequence_floor,
            )
        )
        file = used.file if used is not None else self._create(temporary)
        try:
            if used is not None:
                # Take the file durably out of the log before its header changes, so that a log name never has a partial
                # header.
                self._files.rename(used.path, temporary)
                self._files.sync_directory(self._directory)
            file.pwritev([header], 0)
            if used is None:
                if self._options.zero_fill:
                    fill_zeros(file, len(header), self._options.file_size_bytes)
                else:
                    file.truncate(self._options.file_size_bytes)
            file.datasync()
            self._files.rename(temporary, path)
            self._files.sync_directory(self._directory)
        except (OSError, NoSpaceError):
            self._give_up(file, temporary, path)
            raise
        logger.debug("log file ready path=%s recycled=%s", path, used is not None)
        return LogFile(
            number=number,
            path=path,
            salt=salt,
            file=file,
            size_bytes=self._options.file_size_bytes,
            end=LOG_FILE_HEADER_BLOCK_BYTES,
        )

    def _create(self, path: Path) -> File:
        """Return a new, empty file and count it."""
        file = self._files.open(path, create=True, exclusive=True)
        with self._changed:
            self._file_count += 1
        return file

    def _give_up(self, file: File, *paths: Path) -> None:
        """Remove a file that could not be prepared, whatever its name is by now; it contains no data."""
        close_file(file, paths[0])
        with self._changed:
            self._file_count -= 1
        for path in paths:
            if self._files.exists(path):
                self._files.remove(path)

    def _makeable_by_room(self) -> int:
        """Return for how many files the disk has space: two, and more while each leaves as much again for tier 2."""
        size = self._options.file_size_bytes
        free = self._room.free_bytes(self._directory)
        first = min(max(0, FILES_COUNT_MIN - self._file_count), free // size)
        return first + (free - first * size) // (size * (1 + self._room.has_tier2))

    def _leaves_room_for_tier2(self) -> bool:
        """Return whether the existing files leave tier 2 the space of one more file."""
        if self._file_count <= FILES_COUNT_MIN or not self._room.has_tier2:
            return True
        return self._room.free_bytes(self._directory) >= self._options.file_size_bytes

    def _measure(self, *spares: LogFile) -> None:
        """Measure the disk space, and wake the waiters. New spares move from makeable to ready in one step."""
        problem = None
        try:
            by_room = self._makeable_by_room()
        except OSError as error:
            by_room, problem = 0, str(error)
        with self._changed:
            self._ready.extend(spares)
            self._problem = self._problem or problem
            by_bound = max(0, self._options.files_max - self._file_count)
            self._makeable_count = 0 if self._problem is not None else min(by_bound, by_room)
            self._changed.notify_all()


def fill_zeros(file: File, start: int, end: int) -> None:
    """Write zeros from `start` to `end`; the caller syncs the remainder at the end."""
    unsynced = 0
    while start < end:
        piece = min(_FILL_PIECE_BYTES, end - start)
        file.pwritev([_ZEROS if piece == _FILL_PIECE_BYTES else memoryview(_ZEROS)[:piece]], start)
        start += piece
        unsynced += piece
        if unsynced >= _FILL_SYNC_BYTES:
            file.datasync()
            unsynced = 0
