"""Two containers over one storage, each with a log and a checkpoint of its own."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.environment import ContainerEnvironment
from millrace.server.container.ids import container_of, scope_of
from millrace.server.container.local import next_epoch
from millrace.server.container.running import OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.errors import StorageError
from millrace.server.kinds.registry import KINDS
from millrace.server.kinds.segments.commands import SegmentCommands
from millrace.server.ownership import FolderOwnership
from millrace.server.tier2 import ChunkId, ScopedStorage, chunk_name
from millrace.wire.append_scan import scan_run
from millrace.wire.framing import encode_append_header
from millrace.wire.limits import KIB
from tests.server.container.states import waiting
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.internal import Appender
from tests.support.memory_log import LogMedium, MemoryLog
from tests.support.servers import QUIET
from tests.support.storage import FaultyStorage

pytestmark = pytest.mark.asyncio

ONE, OTHER = 0, 0x7FFF


@dataclass
class Home:
    """What a container leaves, but for its part of the storage."""

    number: int
    storage: FaultyStorage
    files: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    log: LogMedium = field(default_factory=LogMedium)
    clock: ManualClock = field(default_factory=ManualClock)

    @property
    def path(self) -> Path:
        return Path("/data/checkpoint.db")

    def names(self) -> set[str]:
        """The names of its chunks and copies."""
        return {name for name in self.storage.names("") if name.startswith(scope_of(self.number))}

    async def environment(self, cache: PageCache, *, number: int | None = None) -> ContainerEnvironment:
        self.files.make_directories(self.path.parent)
        checkpoints = CheckpointStore(self.files, self.path, KINDS)
        storage = ScopedStorage(self.storage, scope_of(self.number))
        return ContainerEnvironment(
            container=self.number if number is None else number,
            server_id=uuid.UUID(int=7),
            ownership=FolderOwnership(await next_epoch(checkpoints, storage)),
            checkpoints=checkpoints,
            storage=storage,
            make_log=lambda: MemoryLog(self.log, clock=self.clock),
            cache=cache,
            container_options=replace(QUIET, orphan_grace_s=0.0),
            page_size_bytes=4 * KIB,
            clock=self.clock,
            on_failure=lambda error: None,
        )

    @asynccontextmanager
    async def opened(self, cache: PageCache) -> AsyncIterator[OpenContainer]:
        container = await open_container(await self.environment(cache))
        try:
            yield container
        finally:
            await container.close(log_s=5.0, flush_s=0.0)


async def append(opened: OpenContainer, segment_id: int, payload: bytes) -> None:
    frames = bytes(encode_append_header(request_id=1, segment_id=segment_id, payload=payload)) + payload
    run = scan_run(bytearray(frames), memoryview(frames), start=0, end=len(frames))
    assert run is not None
    owner = Appender()
    opened.container.append(run, owner)
    await owner.settled.wait()


async def content(opened: OpenContainer, name: str) -> bytes:
    segment = opened.container.state.segments.find(name)
    assert segment is not None
    pieces, offset = b"", 0
    while offset < segment.length:
        pieces += b"".join(await opened.container.reads.read(segment, offset, segment.length - offset))
        offset = len(pieces)
    return pieces


async def published(opened: OpenContainer) -> None:
    """Let tier 2 have everything, and a copy of the checkpoint."""
    await opened.flusher.flush()
    await opened.flusher.checkpoint()
    await opened.flusher.copy()


async def test_neither_of_two_containers_reads_or_deletes_what_the_other_has() -> None:
    """Section 2 of the design: nothing acknowledged is lost, with another container in the same storage."""
    storage, cache = FaultyStorage(), PageCache(CacheOptions())
    homes = [Home(ONE, storage), Home(OTHER, storage)]
    async with homes[0].opened(cache) as one, homes[1].opened(cache) as other:
        for opened, home in ((one, homes[0]), (other, homes[1])):
            control = SegmentCommands(opened.container)
            for name in ("raw/kept", "raw/doomed"):
                segment = await control.create(name)
                assert container_of(segment.segment_id) == home.number
                await append(opened, segment.segment_id, f"{name} of {home.number}".encode() * 100)
            await published(opened)
        assert one.container.state.segments.find("raw/kept") is not other.container.state.segments.find("raw/kept")

        # What one deletes, and whatever it takes for an orphan, is its own.
        before = homes[1].names()
        doomed = one.container.state.segments.find("raw/doomed")
        assert doomed is not None
        await SegmentCommands(one.container).delete(doomed)
        await published(one)
        for _ in range(3):
            await published(one)
        assert homes[1].names() == before

    orphans = {}
    for home in homes:
        chunk = ChunkId(segment_id=(home.number << 48) + 99, start_offset=0, length=9, container_epoch=1)
        orphans[home.number] = f"{scope_of(home.number)}{chunk_name(chunk)}"
        await storage.publish(orphans[home.number], [b"left over"])
    async with homes[0].opened(cache) as one:
        before = homes[1].names()
        await one.clean_tier2()
        garbage = waiting(one.container.state.garbage, DeleteAfter.COPY)
        assert [scope_of(ONE) + name for name in garbage] == [orphans[ONE]]
        await published(one)
        assert orphans[ONE] not in storage.names()
        assert homes[1].names() == before

    for home, names in zip(homes, ({"raw/kept"}, {"raw/kept", "raw/doomed"}), strict=True):
        async with home.opened(cache) as opened:
            assert {segment.name for segment in opened.container.state.segments.values()} == names
            for name in names:
                assert await content(opened, name) == f"{name} of {home.number}".encode() * 100
    await cache.close()


async def test_a_lost_checkpoint_comes_back_from_a_copy_of_its_own_container() -> None:
    """Behaviour 41; and its epochs continue above those under which it published."""
    storage, cache = FaultyStorage(), PageCache(CacheOptions())
    homes = [Home(ONE, storage), Home(OTHER, storage)]
    for home in homes:
        for _ in range(3 if home.number == ONE else 1):
            async with home.opened(cache) as opened:
                segment = opened.container.state.segments.find("raw/a")
                if segment is None:
                    segment = await SegmentCommands(opened.container).create("raw/a")
                await append(opened, segment.segment_id, b"%d" % home.number * 100)
                await published(opened)
    for home, epoch in zip(homes, (4, 2), strict=True):
        home.files.remove(home.path)
        async with home.opened(cache) as opened:
            assert opened.environment.epoch == epoch
            assert await content(opened, "raw/a") == b"%d" % home.number * 100 * (epoch - 1)
            again = await SegmentCommands(opened.container).create("raw/b")
            assert container_of(again.segment_id) == home.number
    await cache.close()


async def test_the_checkpoint_of_another_container_and_an_epoch_of_the_past_are_refused() -> None:
    """Behaviour 47: both are named; nothing is changed."""
    storage, cache = FaultyStorage(), PageCache(CacheOptions())
    home = Home(3, storage)
    for _ in range(2):
        async with home.opened(cache):
            pass
    saved = home.files.content(home.path)
    with pytest.raises(StorageError, match="belongs to container 3, not to container 4"):
        await open_container(await home.environment(cache, number=4))
    with pytest.raises(StorageError, match="was saved in epoch 2, but this start has only epoch 2"):
        await open_container(replace(await home.environment(cache), ownership=FolderOwnership(2)))
    assert home.files.content(home.path) == saved
    await cache.close()
