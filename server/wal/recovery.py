"""Recovers a log after a restart, in whatever state it was left.

Theory. Batches carry consecutive sequences, the salt of their file, and the checksum of the batch before. One batch is
written at a time, and the next only when its sync has returned; so no acknowledged batch can be missing or unreadable
unless the disk failed. Recovery walks the files in order and checks at each place for the batch that must come next. If
it is not there, the first row that applies says what happened:

    a batch of the expected sequence was met in a wrong place  a misdirected write: it is taken from there
    the next file with batches starts with the expected one    the log moved on; the rest here means nothing
    a later batch follows, and the run table here is intact    corrupt: the runs that fail are named
    a later batch follows, but a file before it is missing     corrupt: the missing file is named, not this one
    a later batch follows                                      corrupt: up to it, contents unknown
    nothing follows                                            the end of the log (see `log_end`)

A batch is yielded only when the next one confirms the chain or the log ends: a batch whose checksum differs from the
one that its successor stores is an old one, at a place where a write was lost.

The last batch may never have been synced, although it can be read: `Recovery.last` gives its place, so that it can be
written and synced again before any request is answered from its content.

Files missing at the end leave no gap; `missing_files` detects them by the log head.

Accepted losses are not reported any more: damage up to the accepted sequence, and in files up to the accepted number,
is skipped. Above them the log continues in a file that was not used before.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from millrace.server.errors import FolderVersionError
from millrace.server.host.files import FileSystem
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES, LOG_FILE_VERSION

from .batch import Batch, FileHeader, decode_batch, decode_damaged_batch, decode_file_header, decode_runs, salvage_runs
from .log_end import Ending, classify_end, find_batch, is_batch_of
from .log_head import LogHead
from .logfile import log_file_number
from .missing_files import find_missing, missing_between
from .report import NOTHING_ACCEPTED, AcceptedLoss, Damage, FoundFile, LogOwner, RecoveredBatch, RecoveryReport

logger = logging.getLogger(__name__)


def log_paths(files: FileSystem, directory: Path) -> list[Path]:
    """Return the log files in a folder, by number."""
    return [directory / name for name in files.list_directory(directory) if log_file_number(name) is not None]


class Recovery:
    """One pass over the files of a log, or over some of them. It changes nothing. Blocking; use it in one thread, once.

    Attributes:
        found: the files, by number; complete, like all of the following, when `batches` is exhausted.
        end: the file in which the log continues, at `report.end_offset`; None if there is no file.
        last: the last valid batch, and its file, which may be one before `end`; None if there is no batch.
        chain: the checksum that the next batch must remember; None if it is unknown.
        report: the outcome.
    """

    def __init__(
        self, files: FileSystem, paths: Sequence[Path], *, owner: LogOwner | None, newest: LogHead | None = None
    ) -> None:
        """Take the files of one log, or some of them.

        Args:
            files: the file system.
            paths: the files, by number.
            owner: the expected owner, None for any.
            newest: the log head, None to ignore missing files.
        """
        self._files = files
        self._owner = owner
        self._newest = newest
        self.found = [FoundFile(number=log_file_number(path.name) or 0, path=path) for path in paths]
        self.end: FoundFile | None = None
        self.last: tuple[FoundFile, Batch] | None = None
        self.chain: int | None = None
        self.report = RecoveryReport(places=tuple(found.path.name for found in self.found))
        self._from_sequence = 0
        self._accepted = NOTHING_ACCEPTED
        # Contents of the files that are being read, by index.
        self._contents: dict[int, bytes] = {}
        # The next sequence; 0 before the first batch.
        self._expected = 0
        # The batch that waits for its successor to confirm it.
        self._held: tuple[FoundFile, memoryview, Batch] | None = None
        # Whole batches that were found where earlier ones belong, by sequence.
        self._displaced: dict[int, tuple[memoryview, Batch]] = {}

    @property
    def named_number(self) -> int:
        """The number of the file that is named as the newest; 0 if none is."""
        named = self._newest.named if self._newest is not None else None
        return named.number if named is not None else 0

    @property
    def next_number(self) -> int:
        """The number for the next file: above all given numbers, including those of lost files."""
        return max([self.named_number, *(file.number for file in self.found)]) + 1

    @property
    def used_number(self) -> int:
        """The highest number of a file that batches were, or may have been, written to; 0 if there is none."""
        used = [file.number for file in self.found if file.last_sequence or file.is_damaged]
        return max([self.named_number, *used])

    def batches(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> Iterator[RecoveredBatch | Damage]:
        """Yield the content of the log from that sequence on, in order; salvaged runs come before the damage.

        Damage whose loss was accepted is neither yielded nor reported.

        Frames are views of the content of a whole file, which stays in memory as long as any of them is kept.

        Raises:
            FolderVersionError: a file was written by a newer version, or for another container or server.
            OSError: a file cannot be read.
        """
        self._from_sequence, self._accepted = from_sequence, accepted
        report = self.report
        for index, file in enumerate(self.found):
            self._load(index)
            if file.header is None:
                size = min(file.size_bytes, LOG_FILE_HEADER_BLOCK_BYTES)
                reason = "the file header is damaged"
                yield from self._damage(file, reason=reason, size=size, is_complete=True)
            if self.end is None:
                yield from self._walk(index)
            del self._contents[index]
        if self._newest is not None:
            for damage in find_missing(self.found, self._newest, next_sequence=max(1, self._expected)):
                yield from self._tell(damage)
        report.last_sequence = max(0, self._expected - 1)
        report.used_file_number = self.used_number
        if report.damages:
            report.ending = Ending.CORRUPT
        self._log_report()

    def _walk(self, index: int) -> Iterator[RecoveredBatch | Damage]:
        """Read one file, until the log ends in it or continues in the next."""
        file = self.found[index]
        view = memoryview(self._contents[index])
        offset: int | None = LOG_FILE_HEADER_BLOCK_BYTES
        while offset is not None:
            batch = decode_batch(view, offset, file.salt)
            if batch is not None and batch.sequence == self._expected and batch.previous_checksum == self.chain:
                # The fast path: all batches of a sound log. Everything else is left to `_accept`.
                held, self._held = self._held, (file, view, batch)
                self._advance(file, batch)
                offset = batch.end
                if held is not None and held[2].sequence >= self._from_sequence:
                    yield _recovered(held[0].path.name, held[1], held[2])
                continue
            if batch is not None and self._is_acceptable(file, batch):
                yield from self._accept(file, view, batch)
                offset = batch.end
                continue
            displaced = self._displaced.pop(self._expected, None)
            if displaced is not None:
                file.is_damaged = True
                yield from self._accept(file, *displaced)
                continue
            offset = yield from self._resolve(index, view, offset)

    def _is_acceptable(self, file: FoundFile, batch: Batch) -> bool:
        if not self._expected:
            return True
        # Without the salt of the header, only the chain distinguishes a batch of this use of the file from an earlier
        # one.
        return batch.sequence == self._expected and (
            file.salt is not None or self.chain is None or batch.previous_checksum == self.chain
        )

    def _accept(self, file: FoundFile, view: memoryview, batch: Batch) -> Iterator[RecoveredBatch | Damage]:
        """Accept a batch that is the first, breaks the chain, or is out of place."""
        if not self._expected and 0 < self._from_sequence < batch.sequence:
            yield from self._damage(
                file,
                reason=f"files before this one are missing, with batches {self._from_sequence} to {batch.sequence - 1}",
                offset=batch.offset,
                sequences=(self._from_sequence, batch.sequence - 1),
                is_bounded=False,
            )
        if self._held is not None and self.chain is not None and batch.previous_checksum != self.chain:
            held_file, _, held = self._held
            self._held = None
            self.report.batch_count -= 1
            held_file.is_damaged = True
            yield from self._damage(
                held_file,
                reason="not the batch that its successor remembers",
                offset=held.offset,
                size=held.size,
                sequences=(held.sequence, held.sequence),
            )
        yield from self._release()
        self._held = (file, view, batch)
        self._advance(file, batch)

    def _advance(self, file: FoundFile, batch: Batch) -> None:
        """Count a batch in and expect the next."""
        report = self.report
        if not report.first_sequence:
            report.first_sequence = batch.sequence
        if file.salt is None:
            file.salt = batch.salt
        file.last_sequence = batch.sequence
        self.last = (file, batch)
        self._expected = batch.sequence + 1
        self.chain = batch.checksum
        report.batch_count += 1
        report.size_bytes += batch.size

    def _release(self) -> Iterator[RecoveredBatch]:
        """Hand out the batch that was held back."""
        held, self._held = self._held, None
        if held is not None and held[2].sequence >= self._from_sequence:
            yield _recovered(held[0].path.name, held[1], held[2])

    def _resolve(
        self, index: int, view: memoryview, offset: int
    ) -> Generator[RecoveredBatch | Damage, None, int | None]:
        """Decide why the next batch is not at `offset`, by the table in the module docstring.

        Return where in this file to continue; None if the log continues in the next file, or has reached its `end`.
        """
        file = self.found[index]
        expected = self._expected or (file.header.sequence_floor + 1 if file.header else 1)
        partial = decode_damaged_batch(view, offset, file.salt)
        if partial is not None and (partial.sequence < expected or (self._expected and partial.sequence != expected)):
            partial = None
        later = self._find_later(index, offset, partial=partial, expected=expected)
        other, elsewhere = self._find_elsewhere(index, expected) if later is None else (index, None)
        if elsewhere is not None:
            is_head_unreadable = elsewhere.offset > LOG_FILE_HEADER_BLOCK_BYTES and partial is None
            if elsewhere.sequence == expected or (is_head_unreadable and not is_batch_of(view, offset, file.salt)):
                return None
        self._displaced = {key: value for key, value in self._displaced.items() if key >= expected}
        yield from self._release()
        if later is None and elsewhere is None and not self._displaced:
            self._end_at(index, offset)
            return None
        if partial is not None:
            yield from self._salvage(file, view, partial)
            return partial.end
        if later is not None:
            end, follower = later.offset, later.sequence
        elif elsewhere is not None:
            end, follower = len(view), elsewhere.sequence
        else:
            end, follower = offset, min(self._displaced)
        ends_in_order = self._ending(index, offset)[0] is not Ending.TORN
        lost = (expected, follower - 1)
        missing = missing_between(self.found, file, self.found[other], lost=lost) if ends_in_order else None
        if missing is None and (follower - 1 > self._accepted.sequence or later is not None):
            file.is_damaged = True
        file.last_sequence = follower - 1
        self._expected = follower
        self.chain = None
        if missing is not None:
            yield from self._tell(missing)
            return None
        yield from self._damage(
            file,
            reason="valid batches follow unreadable bytes",
            offset=offset,
            size=end - offset,
            sequences=lost,
            is_bounded=later is not None,
        )
        return None if elsewhere is not None else end

    def _find_later(self, index: int, offset: int, *, partial: Batch | None, expected: int) -> Batch | None:
        """Return the batch of this file with which the log continues after `offset`.

        A batch whose successor has a lower sequence is out of place: its write was misdirected and destroyed another
        batch. Such batches are remembered, since they are missing from their own places.
        """
        data, salt = self._contents[index], self.found[index].salt
        sequence_min = expected if partial is None else partial.sequence + 1
        partial_end = 0 if partial is None else partial.end
        found = find_batch(data, offset if partial is None else offset + 1, salt=salt, sequence_min=sequence_min)
        while found is not None:
            follower = find_batch(data, found.offset + 1, salt=salt, sequence_min=sequence_min)
            if found.offset >= partial_end and (follower is None or follower.sequence > found.sequence):
                return found
            whole = decode_batch(memoryview(data), found.offset, salt)
            if whole is not None:
                self._displaced[whole.sequence] = (memoryview(data), whole)
            found = follower
        return None

    def _find_elsewhere(self, index: int, expected: int) -> tuple[int, Batch | None]:
        """Return the first batch of the later files with which the log may continue, and the index of its file."""
        for later in range(index + 1, len(self.found)):
            self._load(later)
            found = find_batch(
                self._contents[later],
                LOG_FILE_HEADER_BLOCK_BYTES,
                salt=self.found[later].salt,
                sequence_min=expected,
            )
            if found is not None:
                return later, found
        return index, None

    def _salvage(self, file: FoundFile, view: memoryview, batch: Batch) -> Iterator[RecoveredBatch | Damage]:
        """Salvage every run whose frames all match their checksums from a damaged batch with an intact table."""
        intact, lost = salvage_runs(view, batch)
        file.is_damaged = True
        file.last_sequence = batch.sequence
        self.report.first_sequence = self.report.first_sequence or batch.sequence
        self._expected = batch.sequence + 1
        # The checksum is computed from these bytes, not from the undamaged ones.
        self.chain = None
        if intact and batch.sequence >= self._from_sequence:
            yield RecoveredBatch(batch.sequence, batch.wall_time_us, intact, file.path.name, batch.offset, batch.size)
        yield from self._damage(
            file,
            reason="the batch does not match its checksum",
            offset=batch.offset,
            size=min(batch.size, len(view) - batch.offset),
            sequences=(batch.sequence, batch.sequence if lost else batch.sequence - 1),
            runs=lost,
            is_complete=True,
        )

    def _damage(
        self,
        file: FoundFile,
        *,
        reason: str,
        offset: int = 0,
        size: int = 0,
        sequences: tuple[int, int] = (1, 0),
        runs: tuple[tuple[int, int, int], ...] = (),
        is_complete: bool = False,
        is_bounded: bool = True,
    ) -> Iterator[Damage]:
        """Report damage to a file, see `_tell`."""
        return self._tell(
            Damage(
                place=file.path.name,
                offset=offset,
                size=size,
                first_sequence=sequences[0],
                last_sequence=sequences[1],
                runs=runs,
                is_complete=is_complete,
                is_bounded=is_bounded,
                reason=reason,
            )
        )

    def _tell(self, damage: Damage) -> Iterator[Damage]:
        """Report damage that is not accepted; damage wholly below the requested sequences is only in the report."""
        if self._is_accepted(damage):
            logger.info("accepted log damage damage=%s", damage)
            return
        logger.error("log damaged damage=%s", damage)
        self.report.damages.append(damage)
        if damage.is_end or max(damage.first_sequence, damage.last_sequence) >= self._from_sequence:
            yield damage

    def _is_accepted(self, damage: Damage) -> bool:
        """Return whether an operator has accepted the loss of a damaged range, or of its file."""
        if self._accepted == NOTHING_ACCEPTED:
            return False
        if damage.first_sequence <= damage.last_sequence and not damage.is_end:
            return damage.last_sequence <= self._accepted.sequence
        return (log_file_number(damage.place) or self.used_number) <= self._accepted.file_number

    def _load(self, index: int) -> None:
        """Read a whole file and check its header, once."""
        if index in self._contents:
            return
        found = self.found[index]
        file = self._files.open(found.path, read_only=True)
        try:
            data = file.pread(file.size(), 0)
        finally:
            file.close()
        self._contents[index] = data
        found.size_bytes = len(data)
        header = decode_file_header(data[:LOG_FILE_HEADER_BLOCK_BYTES])
        if header is not None:
            self._check_identity(found.path, header)
        if header is None or header.file_number != found.number or len(data) < LOG_FILE_HEADER_BLOCK_BYTES:
            found.is_damaged = True
            return
        found.header = header
        found.salt = header.salt

    def _check_identity(self, path: Path, header: FileHeader) -> None:
        if header.version != LOG_FILE_VERSION:
            raise FolderVersionError(
                f"written in version {header.version}; this server reads version {LOG_FILE_VERSION}",
                subject=str(path),
            )
        owner = LogOwner(header.container_id, header.server_id)
        if self._owner is not None and self._owner != owner:
            raise FolderVersionError(f"belongs to {owner}, not to {self._owner}", subject=str(path))

    def _end_at(self, index: int, offset: int) -> None:
        """Record where and how the log ends."""
        report = self.report
        report.ending, report.torn_bytes = self._ending(index, offset)
        self.end, report.end_offset = self.found[index], offset

    def _ending(self, index: int, offset: int) -> tuple[Ending, int]:
        """Classify the rest of a file in which no batch follows; see `classify_end`."""
        file = self.found[index]
        is_recycled = file.header is None or file.header.recycled
        return classify_end(self._contents[index], offset, salt=file.salt, is_recycled=is_recycled)

    def _log_report(self) -> None:
        report = self.report
        logger.info(
            "log recovered ending=%s batches=%d bytes=%d first_sequence=%d last_sequence=%d files=%d damages=%d",
            report.ending.value, report.batch_count, report.size_bytes, report.first_sequence, report.last_sequence,
            len(report.places), len(report.damages),
        )  # fmt: skip
        if report.torn_bytes:
            logger.warning("log torn, incomplete batch truncated bytes=%d", report.torn_bytes)


def _recovered(place: str, view: memoryview, batch: Batch) -> RecoveredBatch:
    runs = [run for run, _ in decode_runs(view, batch)]
    return RecoveredBatch(batch.sequence, batch.wall_time_us, runs, place, batch.offset, batch.size)
