"""A container with everything that answers requests about it, without a network: its disk and its store are in memory.

    async with Scenario().running() as run:
        segment_id = await run.peer().create_segment("raw/a")

A test of what containers and streams promise needs nothing else. One of what a connection does belongs to
`tests/server/front`, over a real server.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.container import SegmentContainer
from millrace.server.container.environment import ContainerEnvironment
from millrace.server.container.ids import scope_of
from millrace.server.container.local import next_epoch
from millrace.server.container.options import ContainerOptions
from millrace.server.container.requests import ReadyReply, Reply
from millrace.server.container.running import OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.container.state.container_state import ContainerState
from millrace.server.errors import DecisionLostError, LogFailedError, PipelineBrokenError, ServerError
from millrace.server.front.handlers import Handlers
from millrace.server.front.replies import error_reply
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.host.supervisor import Supervisor
from millrace.server.hosting.services import ContainerServices
from millrace.server.kinds.registry import KINDS
from millrace.server.options import ServerOptions
from millrace.server.ownership import FolderOwnership
from millrace.server.tier2 import ChunkStorage, ScopedStorage
from millrace.server.wal import Log, LogOwner, Wal, WalOptions
from millrace.wire import messages as m
from millrace.wire.append_pipeline import AppendPipeline
from millrace.wire.append_run import AppendRun
from millrace.wire.append_scan import scan_run
from millrace.wire.framing import FrameHeader, decode, decode_header, encode
from millrace.wire.limits import KIB
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.memory_log import LogMedium, MemoryLog
from tests.support.protocol import Peer
from tests.support.servers import QUIET
from tests.support.storage import FaultyStorage

SERVER_ID: Final = uuid.UUID(int=7)
FOLDER: Final = Path("/data")
CHECKPOINT: Final = FOLDER / "checkpoint.db"
WAL: Final = FOLDER / "wal"
SESSION_ID: Final = bytes(range(16))
FRAME_TYPE_OFFSET: Final = 8


class LocalPeer(Peer):
    """Sends frames to the handlers of a container, which get them one after the other, as from a connection.

    A request that must be decided before appends holds up what is sent after it. Nothing else is a connection's: a read
    never waits at the tail, and nothing is bounded by memory for requests.
    """

    def __init__(self, handlers: Handlers) -> None:
        super().__init__()
        self._handlers = handlers
        self._container = handlers.container
        self._appends = AppendPipeline(error_reply)
        self._arrived: asyncio.Queue[tuple[FrameHeader, m.Message]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, *data: bytes) -> None:
        """Carry out frames in one turn of the loop, as far as none has to wait; what is sent next gets another."""
        frames, start = b"".join(data), 0
        while start < len(frames):
            end = start + decode_header(frames, start).length
            if frames[start + FRAME_TYPE_OFFSET] in m.APPENDS:
                limit = min(len(frames), max(end, start + self._container.run_size_bytes_max))
                run = scan_run(bytearray(frames), memoryview(frames), start=start, end=limit)
                assert run is not None
                await self._append(run)
                end = start + len(run.frames)
            else:
                await self._take(*decode(frames[start:end]))
            start = end
        await asyncio.sleep(0)

    def answer_ping(self, request_id: int) -> None:
        """Say that all before that PING was received."""
        self._appends.pong(request_id)

    async def next_message(self) -> tuple[FrameHeader, m.Message]:
        """Return the next frame."""
        return await self._arrived.get()

    async def close(self) -> None:
        """Cancel what has a task; what was decided stays so."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def settle(self) -> None:
        """Receive outcomes of appends, see `Owner`."""
        self._receive(*self._appends.take_frames())

    async def _append(self, run: AppendRun) -> None:
        writers = [run.writer_number] if run.writer_number else []
        try:
            if not self._container.is_resident(run) or self._container.clamp.is_due(run):
                pins = await self._container.loader.pin(m.Required(segments=[run.segment_id], writers=writers))
                with pins:
                    self._admit(await self._container.clamp.clamped(run))
            else:
                self._admit(run)
        except ServerError as error:
            self._appends.add([self._container.refuse(run, self, error)])
        if self._appends.has_outcomes:
            self.settle()
        while reason := self._container.throttle_reason:
            self._receive(encode(m.Throttle(0, reason)))
            room = asyncio.Event()
            self._container.wait_for_room(room.set)
            await room.wait()

    def _admit(self, run: AppendRun) -> None:
        if self._appends.is_broken(run.segment_id, run.writer_number):
            raise PipelineBrokenError("an earlier append of this pipeline failed; this one was not applied")
        self._appends.add(self._container.append(run, self))

    async def _take(self, header: FrameHeader, message: m.Message) -> None:
        if isinstance(message, m.Ping):
            self._receive(encode(m.Pong(), request_id=header.request_id))
            return
        if isinstance(message, m.Read):
            self._start(self._read(message), header)
            return
        reply: Reply | None = self._handlers.admit(message)
        if reply is None and self._handlers.precedes_appends(message):
            try:
                reply = await self._handlers.admitted(message)
            except Exception as error:  # noqa: BLE001  # as every request, it is told
                self._receive(encode(error_reply(error), request_id=header.request_id))
                return
        if isinstance(reply, ReadyReply):
            self._start(self._durable(reply), header)
        elif reply is not None:
            self._start(reply(), header)
        else:
            self._start(self._handlers.handle(message), header)

    def _start(self, reply: Awaitable[m.Message], header: FrameHeader) -> None:
        task = asyncio.create_task(self._answer(reply, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, reply: Awaitable[m.Message], header: FrameHeader) -> None:
        try:
            message = await reply
        except Exception as error:  # noqa: BLE001  # as every request, it is told
            message = error_reply(error)
        if not header.flags:
            self._receive(encode(message, request_id=header.request_id))

    async def _durable(self, reply: ReadyReply) -> m.Message:
        try:
            await self._container.in_flight.settled()
        except DecisionLostError:
            if reply.is_new:
                raise LogFailedError("the log failed, the outcome is unknown") from None
            raise
        return reply.message

    async def _read(self, message: m.Read) -> m.Data:
        with await self._container.loader.pin(m.Required(segments=[message.segment_id])):
            segment = self._container.segment(message.segment_id)
            segment.check_event_readable(message.offset, message.event_index)
            payload = b"".join(await self._container.reads.read(segment, message.offset, message.size_max))
            return m.Data(segment_id=segment.segment_id, offset=message.offset, length=segment.length, payload=payload)

    def _receive(self, *frames: bytes) -> None:
        for frame in frames:
            self._arrived.put_nowait(decode(frame))


@dataclass(frozen=True, slots=True)
class Run:
    """A container that is open."""

    services: ContainerServices

    @property
    def opened(self) -> OpenContainer:
        return self.services.opened

    @property
    def container(self) -> SegmentContainer:
        return self.services.opened.container

    @property
    def state(self) -> ContainerState:
        return self.container.state

    @property
    def sequence(self) -> int:
        """The number of the last batch of the log."""
        return self.container.state.sequence

    def peer(self, *, session_id: bytes = SESSION_ID, address: str = "127.0.0.1") -> LocalPeer:
        """Return one who sends requests."""
        return LocalPeer(self.services.handlers.of_session(session_id, address))

    async def published(self) -> None:
        """Flush everything, save a checkpoint, and copy it."""
        await self.opened.flusher.flush()
        await self.opened.flusher.checkpoint()
        await self.opened.flusher.copy()


@dataclass(kw_only=True)
class Scenario:
    """What a container leaves when it ends: its files, its log, its part of tier 2.

    Attributes:
        wal: options of a log in the files, which fails as they do; None for one that fails when a test says so.
        store: what the container uses in place of `storage`, such as a store that measures it.
        disk: a real file system with faults of databases, in place of `files`; then `folder` is a real one.
    """

    number: int = 0
    server_id: uuid.UUID = SERVER_ID
    wal: WalOptions | None = None
    storage: FaultyStorage = field(default_factory=FaultyStorage)
    files: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    log: LogMedium = field(default_factory=LogMedium)
    clock: ManualClock = field(default_factory=ManualClock)
    failures: list[ServerError] = field(default_factory=list)
    store: ChunkStorage | None = None
    disk: FileSystem | None = None
    folder: Path = FOLDER

    @property
    def checkpoint(self) -> Path:
        """The file of the checkpoint."""
        return self.folder / "checkpoint.db"

    async def environment(
        self, cache: PageCache, *, number: int | None = None, container: ContainerOptions = QUIET
    ) -> ContainerEnvironment:
        """Return what the container needs to start."""
        files = self.disk or self.files
        files.make_directories(self.folder)
        checkpoints = CheckpointStore(
            files,
            self.checkpoint,
            KINDS,
            owner=LogOwner(self.number, self.server_id),
            verified_at_once_count_max=container.verified_at_once_count_max,
        )
        storage = ScopedStorage(self.store or self.storage, scope_of(self.number))
        return ContainerEnvironment(
            container=self.number if number is None else number,
            server_id=self.server_id,
            ownership=FolderOwnership(await next_epoch(checkpoints, storage)),
            checkpoints=checkpoints,
            storage=storage,
            make_log=self._make_log,
            cache=cache,
            container_options=container,
            page_size_bytes=4 * KIB,
            clock=self.clock,
            on_failure=self.failures.append,
        )

    @asynccontextmanager
    async def running(
        self, *, container: ContainerOptions = QUIET, in_background: bool = False, flush_s: float = 0.0, **parts: Any
    ) -> AsyncIterator[Run]:
        """Open the container, and close it without a flush, as a kill would leave it.

        Args:
            in_background: whether what a server does by itself is done: flush, scale, expire.
            flush_s: how long the end may take to flush and to save a checkpoint, as an orderly stop does.
            parts: options of the server's parts.
        """
        cache = PageCache(CacheOptions())
        supervisor = Supervisor(metrics=Metrics(), on_failure=lambda name, error: None)
        opened = await open_container(await self.environment(cache, container=container))
        services = ContainerServices(opened, ServerOptions(container=container, **parts))
        if in_background:
            services.start(supervisor)
        try:
            yield Run(services)
        finally:
            await supervisor.stop()
            await opened.close(log_s=5.0, flush_s=flush_s)
            await cache.close()

    def _make_log(self) -> Log:
        if self.wal is None:
            return MemoryLog(self.log, clock=self.clock)
        owner = LogOwner(container_id=self.number, server_id=self.server_id)
        return Wal(
            self.disk or self.files, self.folder / "wal", self.wal, clock=self.clock, owner=owner, metrics=Metrics()
        )

    def copy(self) -> "Scenario":
        """Return what another process finds after a kill."""
        return replace(self, storage=self.storage.copy(), files=self.files.copy(), log=self.log.copy(), failures=[])
