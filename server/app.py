"""The whole server, put together: with `services` the only module that names concrete classes of all parts.

    async with Server(options) as server:
        server.address        # where clients connect

Life: own the folder, claim and recover the container, listen. When the log fails, the container is recovered from what
is on disk, in the same process: until that succeeds, again and again, the one in memory answers reads; then connections
are cut, and clients come back. When another server has taken the container over, when this one gives it up since its
own disk has failed (`hand_over`), or when a background task ends for a reason that is not handled, the server stops,
rather than run on without it.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from millrace.model.address import Address
from millrace.server.console.busy import Busy
from millrace.server.console.counters import FeedCounters
from millrace.server.container.local import local_environment
from millrace.server.container.running import OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.front.connection import Connection
from millrace.server.front.connections import LAPSED, STOPPING, Connections, RejectedConnection
from millrace.server.front.counters import FrontCounters
from millrace.server.front.peer_log import PeerLog
from millrace.server.front.reader_memory import ReaderMemory
from millrace.server.front.request_memory import RequestMemory
from millrace.server.host.clock import Clock, SystemClock
from millrace.server.host.descriptors import descriptor_limit, raise_descriptor_limit
from millrace.server.host.disk_health import DiskFailure, DiskHealth
from millrace.server.host.files import FileSystem, OsFileSystem
from millrace.server.host.listening import bind, listening, serve
from millrace.server.host.memory import give_back_memory
from millrace.server.host.metrics import Metrics
from millrace.server.host.supervisor import Supervisor
from millrace.server.host.threads import SYSTEM_THREADS, Threads
from millrace.server.host.token_file import read_token
from millrace.server.host.tokens import TokenGate
from millrace.server.kinds.registry import KINDS

from .cache import PageCache
from .errors import OwnedElsewhereError, OwnerFencedError, OwnershipReleasedError, ServerError, UnsupportedStoreError
from .folder import check_writable
from .hosting.backend import Backend
from .hosting.hand_over import HandOver
from .hosting.services import ContainerServices
from .object_store import ObjectStore, StoreMonitor, when_there_is_room
from .options import ServerOptions
from .tier2 import ChunkStorage

if TYPE_CHECKING:
    from millrace.server.console.site import ConsoleSite

logger = logging.getLogger(__name__)

CONTAINER: Final = 0
"""The number of the one container that a server has."""
REOPEN_DELAY_S: Final = 1.0
REOPEN_DELAY_S_MAX: Final = 10.0
SHUTDOWN_FLUSH_S_MIN: Final = 0.1
DESCRIPTORS_RESERVED_COUNT: Final = 256
"""Connections are kept from using up those that the log needs for its next file, tier 2, and the console."""
STALL_WARNING_S: Final = 1.0
DISK_WARNING_S: Final = 10.0
MEASURE_S_MAX: Final = 5.0
"""How long a scrape waits for lags to be measured; then it tells those of the scrape before."""
GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Cyclic collection on the hot path costs a third of the throughput (measured); we make no cycles per frame."""
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what is listened on, and how it is reached from here
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""They end a server in good order. SIGHUP comes from a terminal that is closed, or that a connection to has ended."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How long the log thread waits for the interpreter when the loop is busy; the default of 5 ms is many syncs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """The server at a glance."""

    segments: int
    streams: int
    writers: int
    connections: int
    unauthenticated_connections: int
    tail_bytes: int
    unflushed_segments: int
    exclusive_writers: int
    sequences_refused_total: int
    # Segments, streams, writers, transactions and producers that the log contradicts.
    damaged_entities: int
    request_bytes: int
    reader_bytes: int
    idle_bytes: int
    attribute_bytes: int
    # Why clients are told to wait now; empty if they are not.
    throttle_reason: str
    # Whether nothing can be stored now: the log has failed and is not open again, or has lost content.
    read_only: bool


class Server:
    """A running server; use as an async context manager, or `start` and `stop`. Closes its storage at the end.

    Args:
        files, storage, store, clock, threads: in place of the real ones.
        on_standby: called with who serves, for people, while this one stands by.

    Attributes:
        failure: the error that ends the server; None while it runs, or if a signal ends it.
    """

    def __init__(
        self,
        options: ServerOptions,
        *,
        files: FileSystem | None = None,
        storage: ChunkStorage | None = None,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
        threads: Threads = SYSTEM_THREADS,
        on_standby: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.options = options = options.for_storage()
        self._files = files or OsFileSystem()
        self._clock = clock or SystemClock()
        self._threads = threads
        self._metrics = Metrics()
        self._store_monitor = StoreMonitor(self._metrics, self._clock)
        self._backend = Backend(
            options,
            files=self._files,
            clock=self._clock,
            metrics=self._metrics,
            monitor=self._store_monitor,
            on_fenced=self._fenced,
            on_failure=self._task_failed,
            on_standby=self._stands_by,
            storage=storage,
            store=store,
        )
        self.counters = FrontCounters()
        self._feed_counters = FeedCounters()
        self._cache = PageCache(options.cache)
        self._services: ContainerServices | None = None
        self._supervisor = Supervisor(metrics=self._metrics, on_failure=self._task_failed)
        self.connections = Connections(options.front, counters=self.counters)
        self._request_memory = RequestMemory(bytes_max=options.front.request_bytes_max, counters=self.counters)
        self._reader_memory = ReaderMemory(
            bytes_max=options.front.reader_bytes_max,
            patience_s=options.front.reader_patience_s,
            clock=self._clock,
            counters=self.counters,
        )
        self._peer_log = PeerLog()
        self._token = options.front.token
        self._listener: asyncio.Server | None = None
        self._console: ConsoleSite | None = None
        # What is apart from the tasks of the container, which it ends and starts again.
        self._recovery = Supervisor(metrics=self._metrics, on_failure=self._task_failed)
        self._recovering = False
        self._reopening = DiskHealth(self._clock)
        self._stopping = False
        self._on_standby = on_standby
        # Whether signals of the process are for this server.
        self._is_process = False
        # Set when the server should stop by itself.
        self._ended: asyncio.Event = asyncio.Event()
        self.failure: BaseException | None = None

    async def __aenter__(self) -> "Server":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT where clients connect."""
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return str(Address(host, port))

    @property
    def console_address(self) -> str:
        """HOST:PORT of the console, empty without one."""
        if self._console is None or self.options.console is None:
            return ""
        return str(Address(self.options.console.host, self._console.port))

    @property
    def is_open(self) -> bool:
        """Whether a container answers requests."""
        return self._services is not None

    @property
    def services(self) -> ContainerServices:
        """Everything that works on the open container; to be asked while it is open."""
        assert self._services is not None
        return self._services

    @property
    def opened(self) -> OpenContainer:
        """The container that answers requests; to be asked while it is open."""
        return self.services.opened

    async def start(self) -> None:
        """Take the ports, own the folder, recover, and listen.

        The folder is not touched where a port is in use, or where the object store cannot be relied on; nobody is let
        in before all is recovered. A standby waits here for as long as another server has the container. Cancelling
        gives back what was taken, and so does an error.

        Raises:
            ConfigurationError: a folder, an address or a token file that cannot be used. That somebody else has come to
                listen on the address of a standby is noticed at its takeover.
            StorageError: the data cannot be recovered.
        """
        options = self.options
        if options.front.token_file is not None:
            self._token = await asyncio.to_thread(read_token, options.front.token_file)
        try:
            self._listener = await bind(options.listen, self._make_connection)
            if options.console is not None:  # it says that the container is being recovered, while it is
                with listening(options.console):
                    self._console = self._open_console(options.console)
            await self._backend.open()
            opening = partial(self._open_container, is_standby=options.standby)
            await when_there_is_room(opening, name="container", clock=self._clock)
            if options.has_remote_log:
                self._recovery.start(self._hand_over().run(), name="hand over")
            self.connections.bound(descriptor_limit() - DESCRIPTORS_RESERVED_COUNT)
            await serve(self._listener)
        except BaseException:
            await self._release(flush_s=0.0)
            raise

    async def stop(self) -> None:
        """Stop: accept nothing, finish or fail what is under way within the deadline, flush, release the folder."""
        if self._stopping:
            return
        self._stopping = True
        started_s = self._clock.monotonic_s()
        if self._listener is not None:
            self._listener.close()
        if self._console is not None:
            await asyncio.to_thread(self._console.end_feeds)
        if self._open is not None:
            self._open.container.stop()
        for connection in self.connections:
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(self.options.shutdown_s / 2):
                await self.connections.emptied()
        if self.connections:
            logger.warning("connections cut at shutdown count=%d", len(self.connections))
            for connection in self.connections:
                connection.abort()
        elapsed_s = self._clock.monotonic_s() - started_s
        await self._release(flush_s=max(SHUTDOWN_FLUSH_S_MIN, 0.9 * self.options.shutdown_s - elapsed_s))
        logger.info("stopped duration_s=%.3f", self._clock.monotonic_s() - started_s)

    async def start_as_process(self) -> bool:
        """Start, and take the process for this server alone: its signals, its memory, its garbage collector.

        SIGTERM, SIGINT and SIGHUP end it in good order while it stands by, and once it serves, which it logs. In the
        rest of a start they end the process at once, as a crash would: its threads work on the folder, which is
        locked until they have ended. (One that has stood by is stopped right after its start.)

        Returns:
            Whether it serves; False if a signal has ended it while it stood by.

        Raises:
            ServerError: as `start`, or as `wait_for_end` where it stood by.
        """
        self._is_process = True
        # Not as the event loop takes it, which would cancel the start.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        starting = asyncio.create_task(self.start(), name="start")
        ending = asyncio.create_task(self._ended.wait(), name="end of the start")
        try:
            await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
            if self._backend.standing_by:
                starting.cancel()
            await asyncio.wait([starting])
        finally:
            for task in (starting, ending):
                task.cancel()  # of no effect, unless this was cancelled
            await asyncio.wait([starting, ending])
        if starting.cancelled():
            if self.failure is not None:
                raise self.failure
            logger.info("ended by a signal while it stood by")
            return False
        await starting
        self._own_process()
        return True

    def _stands_by(self, told: str) -> None:
        """Let signals end the wait for another server, and tell of it."""
        if self._is_process:
            self._handle_signals()
        self._on_standby(told)

    def _handle_signals(self) -> None:
        """End by a signal, unless the caller ignores it, as `nohup` ignores SIGHUP."""
        loop = asyncio.get_running_loop()
        for number in ENDING_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._end, number)

    def _end(self, number: signal.Signals) -> None:
        logger.info("ending signal=%s", number.name)
        self._ended.set()

    def _own_process(self) -> None:
        self._handle_signals()
        self.connections.bound(raise_descriptor_limit() - DESCRIPTORS_RESERVED_COUNT)
        self._recovery.start(give_back_memory(self._clock), name="memory")
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        folder = self.options.data_folder
        logger.info("serving address=%s console=%s data_folder=%s", self.address, self.console_address, folder)

    async def wait_for_end(self) -> None:
        """Return when a signal asks the server to end.

        Raises:
            BaseException: what ended a background task that should not have ended.
        """
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure

    def statistics(self) -> dict[str, Any]:
        """Return records by part, as of now. May be called from any thread."""
        services = self._services
        parts: dict[str, Any] = {
            "cache": self._cache.statistics(),
            "front": replace(self.counters),
            "feed": replace(self._feed_counters),
            "history": self._backend.statistics(),
        }
        if services is None:  # the container is being recovered
            return parts
        container = services.opened.container
        state = container.state
        return parts | {
            "server": ServerStatistics(
                segments=state.user_segment_count,
                streams=len(state.streams),
                writers=len(state.writers),
                connections=len(self.connections),
                unauthenticated_connections=self.connections.unauthenticated_count,
                tail_bytes=state.tail_bytes,
                unflushed_segments=len(state.unflushed),
                exclusive_writers=len(state.durable.exclusive_writers),
                sequences_refused_total=container.sequences_refused_total,
                damaged_entities=len(state.quarantine),
                request_bytes=self._request_memory.held_bytes,
                reader_bytes=self._reader_memory.held_bytes,
                idle_bytes=state.idle.size_bytes,
                attribute_bytes=state.attribute_bytes,
                throttle_reason=container.throttle_reason,
                read_only=self._recovering or container.loss is not None,
            ),
            "ownership": services.opened.environment.ownership.statistics(),
            "recovery": services.opened.summary,
            "streams": services.streams.statistics,
            "wal": container.log.statistics(),
            "transactions": services.transactions.statistics,
            "writers": services.expiry.statistics,
        }

    def health(self) -> str:
        """Return why the server is not healthy, empty if it is."""
        opened = self._open
        if self._stopping:
            return "the server is shutting down"
        if opened is None:
            state = self._backend.standing_by or "the container is being recovered"
            return "; ".join(filter(None, [state, self._backend.health()]))
        if self._recovering:
            return opened.container.refusal or "connections to the container before its recovery are being ended"
        statistics = opened.container.log.statistics()
        if statistics.write_age_s > STALL_WARNING_S:
            place = "object store" if self.options.has_remote_log else "disk"
            stalled = f"the {place} of the log has not answered for {statistics.write_age_s:.1f} s"
            return "; ".join(filter(None, [stalled, self._backend.health()]))
        problem = opened.container.refusal or self._backend.health()
        return "; ".join(filter(None, [problem, self._disk_health(opened)]))

    def _disk_health(self, opened: OpenContainer) -> str:
        """Return what the disk refuses, where the log does not tell, since it is in the store; empty if nothing."""
        failure = opened.flusher.disk_failure if self.options.has_remote_log else None
        failed_s = 0.0 if failure is None else self._clock.monotonic_s() - failure.since_s
        if failure is None or failed_s < DISK_WARNING_S:
            return ""
        return f"the disk has refused the checkpoint, or a copy of it, for {failed_s:.0f} s: {failure.error}"

    # --- the container ---

    @property
    def _open(self) -> OpenContainer | None:
        """The container that answers requests; None while there is none."""
        services = self._services  # asked once: other threads look at it, too
        return None if services is None else services.opened

    async def _open_container(self, *, is_standby: bool = False) -> None:
        options, backend = self.options, self._backend
        environment = await local_environment(
            CONTAINER,
            backend.folder.container(CONTAINER),
            files=self._files,
            storage=backend.storage,
            kinds=KINDS,
            container_options=options.container,
            wal_options=options.wal,
            clock=self._clock,
            metrics=self._metrics,
            server_id=backend.folder.server_id,
            cache=self._cache,
            page_size_bytes=options.tier2.page_size_bytes,
            on_failure=self._container_failed,
            claim=partial(backend.claim, CONTAINER, is_standby=is_standby),
            store=backend.store,
            reserve=backend.reserve,
            room=backend.room,
            threads=self._threads,
        )
        services = ContainerServices(await open_container(environment), options)
        self._services = services
        services.start(self._supervisor)
        container = services.opened.container
        # Since before it could tell, or be told.
        if backend.fence is not None:
            container.fenced(backend.fence)
        elif container.loss is None and container.must_recover:
            self._recover()

    async def _close_container(self, *, flush_s: float) -> None:
        await self._supervisor.stop()
        services, self._services = self._services, None
        if services is not None:
            await services.opened.close(log_s=self.options.shutdown_s, flush_s=flush_s)

    def _container_failed(self, error: ServerError) -> None:
        """The log failed, or the checkpoint is damaged, or another server has the container."""
        if isinstance(error, OwnerFencedError):
            self._task_failed("ownership", error)
        else:
            self._recover()

    def _fenced(self, error: OwnerFencedError) -> None:
        """Stop: another server has taken over."""
        if self._open is not None:
            self._open.container.fenced(error)
        self._task_failed("ownership", error)

    def _recover(self) -> None:
        """Open the container again, from what is on disk."""
        if not self._stopping and not self._recovering:
            self._recovering = True
            self._recovery.start(self._reopen(), name="reopen")

    async def _reopen(self) -> None:
        """Open the container again, until it runs: its log may fail once more before all of the old one is released."""
        while not self._stopping and self._open is not None and self._open.container.must_recover:
            await self._open_again()
        self._recovering = False

    async def _open_again(self) -> None:
        """Open the container again, until that succeeds; meanwhile the one in memory answers reads."""
        before, folder = self._open, self._backend.folder.container(CONTAINER)
        assert before is not None
        await self._supervisor.stop()
        delay_s = REOPEN_DELAY_S
        while not self._stopping:
            try:
                with self._reopening.watched():
                    await before.end_storing()
                    await asyncio.to_thread(check_writable, self._files, folder)
                    await self._open_container()
                break
            except (OwnedElsewhereError, OwnerFencedError, UnsupportedStoreError) as error:
                self._backend.fenced(OwnerFencedError(str(error)))
                break
            except (ServerError, OSError) as error:
                logger.error("recovery failed retry_after_s=%.1f error=%s", delay_s, error)
                before.container.stay_failed(f"the log failed, and could not be opened again: {error}")
                await self._clock.sleep(delay_s)
                delay_s = min(2 * delay_s, REOPEN_DELAY_S_MAX)
        if self._open is not before:
            try:
                await self._replace_connections()
            finally:  # a server that stops may end this in between
                await before.release()

    async def _replace_connections(self) -> None:
        """Let clients come back, to the container that was opened in the step before."""
        connections = list(self.connections)
        for connection in connections:
            connection.drain()
        # Let what they are told of that leave.
        await asyncio.sleep(0)
        for connection in connections:
            connection.abort()

    def _hand_over(self) -> HandOver:
        """Return what gives up the container if the disk of this machine has failed, and another server waits."""
        return HandOver(
            clock=self._clock,
            patience_s=self._backend.lease_s,
            failure=self._disk_failure,
            other_leases=self._backend.other_leases,
            give_up=partial(self._task_failed, "hand over"),
        )

    def _disk_failure(self) -> DiskFailure | None:
        """Return what the disk does that keeps the container from serving; None while it serves, or for a stop."""
        opened = self._open
        if self._stopping or opened is None:
            return None
        if self._recovering:
            return self._reopening.failure
        return opened.flusher.disk_failure if opened.container.is_full else None

    def _task_failed(self, name: str, error: BaseException) -> None:
        """Stop: a background task ended for a reason that is not handled, or the container is not ours any more."""
        self.failure = error
        self._ended.set()

    # --- the network ---

    def _make_connection(self) -> asyncio.BaseProtocol:
        services = self._services
        if services is None or self._stopping:
            return RejectedConnection(STOPPING, counters=self.counters)
        if self._may_be_superseded():
            return RejectedConnection(LAPSED, counters=self.counters)
        connection = Connection(
            handlers=services.handlers,
            options=self.options.front,
            clock=self._clock,
            counters=self.counters,
            server_id=self._backend.folder.server_id.bytes,
            connections=self.connections,
            memory=self._reader_memory,
            request_memory=self._request_memory,
            peer_log=self._peer_log,
            tokens=TokenGate(self._token),
            seconds=self._metrics.request_seconds,
            may_be_superseded=self._may_be_superseded,
        )
        self.connections.expect(connection)
        return connection

    def _may_be_superseded(self) -> bool:
        return self._backend.may_be_superseded

    def _open_console(self, address: Address) -> "ConsoleSite":
        # Loaded here, since with it comes the client, and a server without a console starts sooner.
        from millrace.server.console.access import Access
        from millrace.server.console.api import Api
        from millrace.server.console.feeds import Feeds
        from millrace.server.console.liveness import loop_answers
        from millrace.server.console.site import ConsoleSite

        access = Access(token=self._token, host=address.host)
        feeds = Feeds(address=self._own_address, access=access, options=self.options.feed, counters=self._feed_counters)
        api = Api(address=self._own_address, access=access, statistics=self.statistics, health=self.health)
        return ConsoleSite(
            host=address.host,
            port=address.port,
            metrics=self._metrics,
            statistics=self.statistics,
            health=self.health,
            busy=self._busy,
            measure=partial(self._measure_from, asyncio.get_running_loop()),
            is_live=partial(loop_answers, asyncio.get_running_loop()),
            access=access,
            proxies=self.connections.proxies,
            feeds=feeds,
            api=api,
        )

    def _busy(self) -> Busy:
        """Return the streams and cursors that have metrics of their own. May be called from any thread."""
        services = self._services
        if services is None:
            return Busy()
        streams = services.streams
        lags, other_lags = streams.lags.rows(self.options.metrics.cursors_count_max)
        return Busy(streams=streams.traffic.rows, others=streams.traffic.others, lags=lags, other_lags=other_lags)

    async def _measure_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bring `_busy` up to now; awaited in the loop of the console, as long as Prometheus may wait."""
        measuring = asyncio.run_coroutine_threadsafe(self._measure(), loop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEASURE_S_MAX):
                await asyncio.wrap_future(measuring)

    async def _measure(self) -> None:
        if self._services is not None:
            # What cannot be loaded now stays as it was measured before.
            with contextlib.suppress(ServerError):
                await self._services.streams.measure()

    def _own_address(self) -> str:
        """Return where this machine reaches the data port."""
        address = Address.parse(self.address, default_port=0)
        return str(Address(_LOOPBACK.get(address.host, address.host), address.port))

    async def _release(self, *, flush_s: float) -> None:
        flushed_s = self._clock.monotonic_s() + flush_s
        if self._listener is not None:
            self._listener.close()
        await self._recovery.stop()
        if self._console is not None:
            await asyncio.to_thread(self._console.close)
        # Of one that was given up nothing is flushed: no checkpoint would tell of it, and another server waits.
        await self._close_container(flush_s=0.0 if isinstance(self.failure, OwnershipReleasedError) else flush_s)
        await self._cache.close()
        left_s = max(0.0, flushed_s - self._clock.monotonic_s())
        await self._backend.close(release_s=left_s + 0.1 * self.options.shutdown_s)
