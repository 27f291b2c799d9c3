"""Recovers a log in an object store, and closes the epochs of earlier owners.

Theory. A claim of the container adds its epoch to those in the manifest before it looks at the log. Each of these
epochs is then read in order, from the first batch that is needed, and closed with a fence at the first sequence that
has no object. The fence and a batch of the earlier owner compete for one name, by put-if-absent: either the batch was
there first, and is part of the log, or the fence is, and the batch can never be acknowledged. So recovery reads all
batches that were or will be acknowledged in these epochs. The next epoch continues with the sequence of the fence.

An epoch whose last acknowledged batches are missing gets no fence, so that an operator can put them back: their names
stay free. The manifest and the lease of the last owner show which batches were acknowledged.

An earlier owner had several puts under way, so objects may follow the first gap. The first row that applies decides
whether something is missing there:

    a fence is at the gap, or before it                 the epoch had ended there
    a fence follows                                     corrupt: all before a fence was there when it was put
    a batch follows that proves the gap acknowledged    corrupt
    batches follow                                      they were never acknowledged, and can be deleted
    no batch of a later epoch follows, and the gap is   corrupt: the newest objects are missing
    known to be acknowledged
    nothing follows                                     the end of the epoch

A claimant that stalled during recovery may have been superseded: unread objects were deleted then, and its fence would
take the name of a batch that was acknowledged. So once it has closed all others, it checks its own epoch. A later
claimant closes that one, too, before it deletes anything, and fences stay: if the epoch has no object, recovery was
complete.

Fences stay, so a stale fence may have the name of a batch that was deleted. A fence below the first batch that the
manifest needs therefore means nothing: each epoch that the manifest names ends after that batch, since epochs that end
before are dropped in the same change. From there on the lowest fence is the true one: no name before it is free.

The listing of the store only guides the read-ahead and shows what follows a gap. It never decides which batch is the
last one: the fence does.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.model.checksum import Buffer
from millrace.server.errors import ObjectExistsError, ObjectNotFoundError, StorageError
from millrace.server.object_store import ObjectStore
from millrace.wire.limits import MIB
from millrace.wire.schema.log import LOG_FILE_HEADER_SIZE_BYTES

from .batch import Batch, decode_file_header, decode_runs, salvage_runs
from .log_end import Ending
from .log_objects import LogObject, LogPoint, decode_log_object, encode_fence, is_fence_size, parse_log_name
from .report import NOTHING_ACCEPTED, AcceptedLoss, Damage, LogOwner, RecoveredBatch, RecoveryReport

logger = logging.getLogger(__name__)

READS_COUNT_MAX: Final = 64
"""Objects that are read concurrently,"""
READS_SIZE_BYTES_MAX: Final = 64 * MIB
"""as long as they are not larger together than this, or there is only one."""


@dataclass(slots=True)
class _Epoch:
    """The objects of an epoch, as listed: sizes of batches by sequence, and sequences of fences."""

    batches: dict[int, int] = field(default_factory=dict)
    fences: list[int] = field(default_factory=list)

    def next_listed(self, sequence: int) -> int | None:
        """Return the first batch after a sequence."""
        return min((each for each in self.batches if each > sequence), default=None)


class ObjectRecovery:
    """One pass over a log in an object store. Belongs to one event loop; used once.

    Args:
        prefix: of the keys of the log.
        epochs: as the manifest names them, oldest first. All but the last are closed.
        from_sequence: the first batch that any start needs, according to the manifest.
        acknowledged: the last batch that is known to be acknowledged; 0 if none is.
        owner: the expected owner, None for any.
        closes: whether to put fences; without, nothing is changed, and the log may grow meanwhile.
        create: puts fences, instead of `store.create`.

    Attributes:
        report: the outcome; valid, like all of the following, once `batches` is exhausted.
        last: the last batch; None if none was read.
        objects: every stored batch of the log, in order: its point and its size.
        garbage: names of objects that no start will need.
        is_begun: whether the last epoch has objects.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        epochs: Sequence[int],
        from_sequence: int,
        owner: LogOwner | None,
        acknowledged: int = 0,
        closes: bool = True,
        create: Callable[[str, Sequence[Buffer]], Awaitable[object]] | None = None,
    ) -> None:
        self._store = store
        self._create = create or store.create
        self._prefix = prefix
        self._epochs = epochs
        self._from_sequence = max(1, from_sequence)
        self._owner = owner
        self._acknowledged = acknowledged
        self._closes = closes
        self._listed: dict[int, _Epoch] = {}
        self._accepted = NOTHING_ACCEPTED
        # The next sequence, and the checksum that its batch remembers; None if unknown.
        self._position = self._from_sequence
        self._chain: int | None = None
        self._open_epochs: list[int] = []
        self.report = RecoveryReport()
        self.last: Batch | None = None
        self.objects: list[tuple[LogPoint, int]] = []
        self.garbage: list[str] = []
        self.is_begun = False

    async def batches(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> AsyncGenerator[RecoveredBatch | Damage, None]:
        """Yield the content of the log from that sequence on, in order; salvaged runs come before the damage.

        See `Log.recover`. Safe to cancel: a fence that was put stays, as the epoch has ended anyway.

        Raises:
            FolderVersionError: an object was written by another version, or for another container or server.
            StorageError: the store cannot be read, or rejects a fence.
        """
        self._accepted = accepted
        await self._list()
        if 0 < from_sequence < self._from_sequence:
            reason = f"the log begins with batch {self._from_sequence}"
            for damage in self._tell(self._gap(self._epochs[0], from_sequence, self._from_sequence - 1, reason=reason)):
                yield damage
        self._position = max(self._from_sequence, from_sequence)
        self.objects.extend(self._passed_over())
        for epoch in self._epochs:
            if epoch == self._epochs[-1] and self._closes:
                self.is_begun = await self._has_objects(epoch)
                break
            async for item in self._epoch(epoch):
                yield item
            self.report.epoch_ends[epoch] = min([*self._listed[epoch].fences, self._position])
        for damage in self._missing_end():
            yield damage
        self._conclude()

    async def close_epochs(self) -> None:
        """Fence the epochs that were left open because acknowledged batches are missing, to accept the loss.

        Raises:
            StorageError: a missing batch has appeared; or the store rejected the fence.
        """
        for number in self._open_epochs:
            point = LogPoint(number, self._position)
            if (found := await self._fence(point, self._listed[number])) is not None and not found.is_fence:
                raise StorageError("was missing, but exists now; start over", subject=self._key(point))
        self._open_epochs.clear()

    async def _has_objects(self, epoch: int) -> bool:
        """Return whether an epoch has any objects now."""
        async for page in self._store.list(f"{self._prefix}{epoch:08d}/"):
            return bool(page)
        return False

    async def _list(self) -> None:
        """List all objects of the log."""
        async for page in self._store.list(self._prefix):
            for info in page:
                point = parse_log_name(info.key.removeprefix(self._prefix))
                if point is None:
                    continue
                epoch = self._listed.setdefault(point.epoch, _Epoch())
                if not is_fence_size(info.size):
                    epoch.batches[point.sequence] = info.size
                elif point.sequence >= self._from_sequence:
                    epoch.fences.append(point.sequence)

    def _passed_over(self) -> Iterator[tuple[LogPoint, int]]:
        """Yield the listed batches before the position: they are not read here, but still part of the log."""
        for number in self._epochs:
            epoch = self._listed.get(number, _Epoch())
            end = min([*epoch.fences, self._position])
            for sequence in sorted(epoch.batches):
                if self._from_sequence <= sequence < end:
                    yield LogPoint(number, sequence), epoch.batches[sequence]

    async def _epoch(self, number: int) -> AsyncIterator[RecoveredBatch | Damage]:
        """Read an epoch to its end, from the position on, and close it."""
        epoch = self._listed.setdefault(number, _Epoch())
        ahead = _ReadAhead(self._store, self._prefix, number, epoch.batches)
        try:
            is_first = True
            while not any(fence <= self._position for fence in epoch.fences):
                point = LogPoint(number, self._position)
                found = await self._found(point, ahead, epoch)
                if found is None:
                    lost = await self._lost_until(point, epoch)
                    if lost is not None:
                        reason = "objects of the log are missing before existing ones"
                        for damage in self._tell(self._gap(number, self._position, lost - 1, reason=reason)):
                            yield damage
                        self._position, self._chain = lost, None
                        continue
                    if not self._closes:
                        break
                    if self._lacks_end(number):
                        self._open_epochs.append(number)
                        break
                    if (found := await self._fence(point, epoch)) is None:
                        break
                if found.is_fence:
                    break
                self.objects.append((point, len(found.data)))
                for item in self._take(found, point, is_first=is_first):
                    yield item
                is_first = False
        finally:
            await ahead.close()

    def _lacks_end(self, number: int) -> bool:
        """Return whether acknowledged batches are missing from the position on, and no later epoch has any."""
        later = (epoch for each, epoch in self._listed.items() if each > number)
        return self._misses_acknowledged and not any(
            sequence >= self._position for epoch in later for sequence in epoch.batches
        )

    @property
    def _misses_acknowledged(self) -> bool:
        return self._position <= self._acknowledged > self._accepted.sequence

    def _missing_end(self) -> Iterator[Damage]:
        """Report the missing batches after the last stored one that are known to be acknowledged."""
        if not self._misses_acknowledged:
            return
        number = self._open_epochs[0] if self._open_epochs else self._epochs[0 if len(self._epochs) == 1 else -2]
        reason = f"the log ends before it, but batch {self._acknowledged} was acknowledged"
        yield from self._tell(self._gap(number, self._position, self._acknowledged, reason=reason))

    async def _found(self, point: LogPoint, ahead: "_ReadAhead", epoch: _Epoch) -> LogObject | None:
        """Return the object at a point, None if it is missing as far as is known."""
        if point.sequence in epoch.batches:
            content = await ahead.take(point.sequence)
            found = None if content is None else self._decoded(content, point)
            # Read damaged objects once more: the damage may have happened in transit.
            return found if found is not None and (found.is_fence or found.batch) else await self._get(point)
        if epoch.next_listed(point.sequence) is not None or any(fence > point.sequence for fence in epoch.fences):
            return await self._get(point)
        return None  # the fence decides

    async def _get(self, point: LogPoint) -> LogObject | None:
        try:
            return self._decoded((await self._store.get(self._key(point))).content, point)
        except ObjectNotFoundError:
            return None

    def _decoded(self, content: bytes, point: LogPoint) -> LogObject:
        return decode_log_object(content, point, owner=self._owner, place=self._key(point))

    async def _lost_until(self, point: LogPoint, epoch: _Epoch) -> int | None:
        """Return where the log continues if the batch at a point was acknowledged; None if it was not."""
        following = epoch.next_listed(point.sequence)
        fence = min((each for each in epoch.fences if each > point.sequence), default=None)
        if fence is not None:
            return fence if following is None else min(fence, following)
        for sequence in sorted(each for each in epoch.batches if each > point.sequence):
            try:
                head = await self._store.read(
                    self._key(LogPoint(point.epoch, sequence)), offset=0, size=LOG_FILE_HEADER_SIZE_BYTES
                )
            except ObjectNotFoundError:
                continue
            header = decode_file_header(head)
            if header is not None and header.sequence_floor >= point.sequence:
                return following
        return None

    async def _fence(self, point: LogPoint, epoch: _Epoch) -> LogObject | None:
        """End an epoch at a point; return the object that was there first, None if the epoch has ended there."""
        assert self._owner is not None
        while True:
            try:
                await self._create(self._key(point), [encode_fence(point, owner=self._owner)])
            except ObjectExistsError:
                if (found := await self._get(point)) is not None:
                    return found
                continue  # deleted meanwhile
            epoch.fences.append(point.sequence)
            logger.info("log epoch closed epoch=%d sequence=%d", point.epoch, point.sequence)
            return None

    def _take(self, found: LogObject, point: LogPoint, *, is_first: bool) -> Iterator[RecoveredBatch | Damage]:
        """Yield the content of an object, and add it to the report."""
        report = self.report
        report.first_sequence = report.first_sequence or point.sequence
        self._position = point.sequence + 1
        batch = found.batch
        # The first batch of an epoch may be of an owner that had no previous batch to remember.
        remembers = {self._chain, 0} if is_first else {self._chain}
        if batch is not None and (self._chain is None or batch.previous_checksum in remembers):
            self.last, self._chain = batch, batch.checksum
            report.batch_count += 1
            report.size_bytes += batch.size
            runs = [run for run, _ in decode_runs(found.data, batch)]
            yield RecoveredBatch(
                batch.sequence, batch.wall_time_us, runs, self._key(point), LOG_FILE_HEADER_SIZE_BYTES, batch.size
            )
            return
        self._chain = None
        damaged = found.damaged_batch if batch is None else None
        if damaged is None or damaged.sequence != point.sequence:
            reason = "the object is damaged" if batch is None else "it does not continue the log"
            yield from self._tell(self._gap(point.epoch, point.sequence, point.sequence, reason=reason))
            return
        intact, lost = salvage_runs(found.data, damaged)
        if intact:
            yield RecoveredBatch(
                damaged.sequence,
                damaged.wall_time_us,
                intact,
                self._key(point),
                LOG_FILE_HEADER_SIZE_BYTES,
                damaged.size,
            )
        yield from self._tell(
            Damage(
                place=self._key(point),
                offset=LOG_FILE_HEADER_SIZE_BYTES,
                size=len(found.data) - LOG_FILE_HEADER_SIZE_BYTES,
                first_sequence=point.sequence,
                last_sequence=point.sequence if lost else point.sequence - 1,
                runs=lost,
                is_complete=True,
                reason="the batch does not match its checksum",
            )
        )

    def _key(self, point: LogPoint) -> str:
        return self._prefix + point.name

    def _gap(self, epoch: int, first: int, last: int, *, reason: str) -> Damage:
        return Damage(
            place=self._key(LogPoint(epoch, first)),
            offset=0,
            size=0,
            first_sequence=first,
            last_sequence=last,
            is_bounded=False,
            reason=reason,
        )

    def _tell(self, damage: Damage) -> Iterator[Damage]:
        """Report damage whose loss is not accepted."""
        if max(damage.first_sequence, damage.last_sequence) <= self._accepted.sequence:
            logger.info("accepted log damage damage=%s", damage)
            return
        logger.error("log damaged damage=%s", damage)
        self.report.damages.append(damage)
        yield damage

    def _conclude(self) -> None:
        """Complete the report, and find objects that nobody needs."""
        report = self.report
        report.last_sequence = self._position - 1
        report.ending = Ending.CORRUPT if report.damages else Ending.END
        report.places = tuple(self._key(point) for point, _ in self.objects) or (
            self._key(LogPoint(self._epochs[-1], 0)),
        )
        report.used_file_number = self._epochs[-1]
        kept = {point for point, _ in self.objects}
        for number, epoch in self._listed.items():
            if number >= self._epochs[-1]:
                continue  # of this start, or of a later claimant
            end = min(epoch.fences, default=None)
            self.garbage.extend(
                point.name
                for point in (LogPoint(number, sequence) for sequence in sorted(epoch.batches))
                if point not in kept
                and (
                    number not in self._epochs
                    or point.sequence < self._from_sequence
                    or (end is not None and point.sequence >= end)
                )
            )
        logger.info(
            "log recovered ending=%s batches=%d bytes=%d first_sequence=%d last_sequence=%d epochs=%d damages=%d "
            "garbage=%d",
            report.ending.value, report.batch_count, report.size_bytes, report.first_sequence, report.last_sequence,
            len(self._epochs), len(report.damages), len(self.garbage),
        )  # fmt: skip


class _ReadAhead:
    """Reads the listed batches of an epoch ahead, in order."""

    def __init__(self, store: ObjectStore, prefix: str, epoch: int, batches: dict[int, int]) -> None:
        self._store = store
        self._prefix = prefix
        self._epoch = epoch
        self._batches = batches
        self._waiting: deque[int] | None = None
        self._reads: dict[int, asyncio.Task[bytes | None]] = {}

    async def take(self, sequence: int) -> bytes | None:
        """Return the object of a batch; None if it is gone. Called once for each, in order."""
        if self._waiting is None:
            self._waiting = deque(sorted(each for each in self._batches if each >= sequence))
        self._fill()
        read = self._reads.pop(sequence, None)
        if read is None:
            return await self._read(sequence)
        content = await read
        self._fill()
        return content

    async def close(self) -> None:
        """End all reads."""
        for read in self._reads.values():
            read.cancel()
        await asyncio.gather(*self._reads.values(), return_exceptions=True)

    def _fill(self) -> None:
        assert self._waiting is not None
        size = sum(self._batches[sequence] for sequence in self._reads)
        while self._waiting and len(self._reads) < READS_COUNT_MAX:
            size += self._batches[self._waiting[0]]
            if self._reads and size > READS_SIZE_BYTES_MAX:
                return
            sequence = self._waiting.popleft()
            self._reads[sequence] = asyncio.ensure_future(self._read(sequence))

    async def _read(self, sequence: int) -> bytes | None:
        try:
            return (await self._store.get(self._prefix + LogPoint(self._epoch, sequence).name)).content
        except ObjectNotFoundError:
            return None
