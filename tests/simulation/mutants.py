"""Schemes that lose events, which were in use elsewhere, or are tempting. The simulation has to catch them."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from millrace.model.checksum import Buffer
from millrace.server.errors import ObjectExistsError, ObjectNotFoundError
from millrace.server.front.reply_writer import ReplyWriter
from millrace.server.object_store import ObjectStore
from millrace.server.ownership import FoundManifest, ManifestOwnership, WorkerLease
from millrace.server.ownership.claim import _ClaimAttempt
from millrace.server.wal import NOTHING_ACCEPTED, AcceptedLoss, Damage, LogOwner, ObjectWal, RecoveredBatch
from millrace.server.wal.batch import decode_file_header
from millrace.server.wal.log_objects import LogPoint, decode_log_object, encode_fence
from millrace.server.wal.object_recovery import ObjectRecovery
from millrace.wire.schema.log import LOG_FILE_HEADER_SIZE_BYTES
from millrace.wire.server_session import ServerSession


class CollectsFences(ObjectWal):
    """Deletes the fences of earlier epochs with their batches: the name is free again for a put that was under way."""

    def recycle(self, sequence: int) -> None:
        super().recycle(sequence)
        for epoch, listed in self._recovery._listed.items():
            if epoch < self._epoch:
                old = [each for each in listed.fences if each <= sequence]
                self._delete([LogPoint(epoch, each).name for each in old])
                listed.fences = [each for each in listed.fences if each > sequence]


class OneFolder(ObjectWal):
    """Has one sequence of names for all epochs, in which a claim takes a place; all is deleted when it is not needed.

    A put that was under way finds its name taken by the claim, or by a batch of a later owner, until that is deleted.
    """

    def __init__(self, store: ObjectStore, prefix: str, *arguments: Any, **options: Any) -> None:
        folder = _Folder(store, prefix)
        super().__init__(folder, prefix, *arguments, **options)
        self._recovery = _OneFolderRecovery(
            folder, prefix, epochs=options["epochs"], from_sequence=options["from_sequence"], owner=options["owner"]
        )


class _Folder:
    """A store in which epochs in the names of batches are left out."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        return await self._store.create(self.flat(key), pieces)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete([self.flat(key) for key in keys])

    def flat(self, key: str) -> str:
        return f"{self._prefix}{0:08d}/{key.rpartition('/')[2]}"


class _OneFolderRecovery(ObjectRecovery):
    """Reads up to the first name that is free, and takes that."""

    async def batches(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> AsyncGenerator[RecoveredBatch | Damage, None]:
        assert isinstance(self._store, _Folder)
        assert isinstance(self._owner, LogOwner)
        own = LogPoint(self._epochs[-1], 0)
        self._position = max(self._from_sequence, from_sequence)
        newest = 0
        while newest < own.epoch:
            key = self._store.flat(LogPoint(0, self._position).name)
            try:
                content = (await self._store.get(key)).content
            except ObjectNotFoundError:
                content = encode_fence(own._replace(sequence=self._position), owner=self._owner)
                try:
                    await self._store.create(key, [content])
                except ObjectExistsError:
                    continue
            header = decode_file_header(content[:LOG_FILE_HEADER_SIZE_BYTES])
            assert header is not None
            point = LogPoint(header.file_number, self._position)
            found = decode_log_object(content, point, owner=self._owner, place=key)
            self.objects.append((point, len(content)))
            if found.is_fence or point.epoch < newest:  # a claim, or a batch that came after one
                newest = max(newest, point.epoch)
                self._position += 1
                continue
            self._chain = None  # batches of several owners follow each other
            for item in self._take(found, point, is_first=True):
                yield item
        self._conclude()


class RepliesLate(ReplyWriter):
    """Sends whatever a request has come to, also after another server may have taken over."""

    def __init__(self, session: ServerSession, *, may_be_superseded: Callable[[], bool], **options: Any) -> None:
        super().__init__(session, may_be_superseded=lambda: False, **options)


async def begin_anew(lease: WorkerLease, container: int, **options: Any) -> ManifestOwnership:
    """Claim a container as a new one if its manifest is missing, whatever is in its log."""
    found = await _AnewClaiming(lease, container, **options).claim()
    return ManifestOwnership(lease, found, on_fenced=lease.on_fenced)


async def claim_unannounced(lease: WorkerLease, container: int, **options: Any) -> ManifestOwnership:
    """Claim a container without its epoch in the lease: until a renewal reports a batch, no rebuild finds the owner."""
    found = await _UnannouncedClaiming(lease, container, **options).claim()
    return ManifestOwnership(lease, found, on_fenced=lease.on_fenced)


class _UnannouncedClaiming(_ClaimAttempt):
    async def _announce(self, epoch: int) -> None:
        pass


class _AnewClaiming(_ClaimAttempt):
    async def _rebuilt(self, tag: str) -> FoundManifest | None:
        return None
