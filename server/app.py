"""The whole server, put together: with `services` the only module that names concrete classes of all parts.

    async with Server(options) as server:
        server.address        # where clients connect

A server is a listener, a console, the limits of its connections, and the containers that it hosts (`hosting`). It binds
its ports first, then lets the host claim and open its containers, then accepts connections. When a container was
reopened after a failure, the server cuts its connections, and clients reconnect. The server exits when another server
has taken over, when it releases ownership because its own disk has failed, or if a background task fails unexpectedly.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from millrace.model.address import Address
from millrace.server.console.busy import Busy
from millrace.server.console.counters import FeedCounters
from millrace.server.container.running import OpenContainer
from millrace.server.front.connection import Connection
from millrace.server.front.connections import LAPSED, STOPPING, Connections, RejectedConnection
from millrace.server.front.counters import FrontCounters
from millrace.server.front.peer_log import PeerLog
from millrace.server.front.reader_memory import ReaderMemory
from millrace.server.front.request_memory import RequestMemory
from millrace.server.host.clock import Clock, SystemClock
from millrace.server.host.descriptors import descriptor_limit
from millrace.server.host.files import FileSystem, OsFileSystem
from millrace.server.host.listening import bind, listening, serve
from millrace.server.host.machine import Machine
from millrace.server.host.supervisor import Supervisor
from millrace.server.host.threads import SYSTEM_THREADS, Threads
from millrace.server.host.token_file import read_token
from millrace.server.host.tokens import TokenGate

from .errors import OwnershipReleasedError, ServerError
from .hosting.host import Host
from .hosting.life import CLOSING, RECOVERING
from .hosting.services import ContainerServices
from .object_store import ObjectStore
from .options import ServerOptions
from .tier2 import ChunkStorage

if TYPE_CHECKING:
    from millrace.server.console.site import ConsoleSite

logger = logging.getLogger(__name__)

SHUTDOWN_FLUSH_S_MIN: Final = 0.1
DESCRIPTORS_RESERVED_COUNT: Final = 256
"""Descriptors reserved for the next file of the log, tier 2, and the console."""
MEASURE_S_MAX: Final = 5.0
"""How long a scrape waits for lags to be measured; otherwise it shows those of the previous scrape."""
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what is listened on, and how it is reached from here


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
    # Entities that the log contradicts.
    damaged_entities: int
    request_bytes: int
    reader_bytes: int
    idle_bytes: int
    attribute_bytes: int
    # Why clients are throttled now; empty if they are not.
    throttle_reason: str
    # Whether the container is read-only: the log has failed and is not reopened yet, or has lost content.
    read_only: bool


class Server:
    """A running server; use as an async context manager, or `start` and `stop`. Closes its storage at the end.

    Args:
        files, storage, store, clock, threads: replace the real ones.

    Attributes:
        host: the containers.
        tasks: background tasks beside them.
        ended: set when the server is to stop by itself.
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
    ) -> None:
        self.options = options = options.for_storage()
        self.clock = clock or SystemClock()
        machine = Machine(files=files or OsFileSystem(), clock=self.clock, threads=threads)
        self._metrics = machine.metrics
        self.host = Host(
            options,
            machine,
            storage=storage,
            store=store,
            on_failure=self._task_failed,
            on_reopened=self._replace_connections,
        )
        self.counters = FrontCounters()
        self._feed_counters = FeedCounters()
        self.connections = Connections(options.front, counters=self.counters)
        self._request_memory = RequestMemory(bytes_max=options.front.request_bytes_max, counters=self.counters)
        self._reader_memory = ReaderMemory(
            bytes_max=options.front.reader_bytes_max,
            patience_s=options.front.reader_patience_s,
            clock=self.clock,
            counters=self.counters,
        )
        self._peer_log = PeerLog()
        self._token = options.front.token
        self._listener: asyncio.Server | None = None
        self._console: ConsoleSite | None = None
        self.tasks = Supervisor(metrics=self._metrics, on_failure=self._task_failed)
        self.ended = asyncio.Event()
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
        return self.host.container.services is not None

    @property
    def services(self) -> ContainerServices:
        """The services of the open container; only while it is open."""
        services = self.host.container.services
        assert services is not None
        return services

    @property
    def opened(self) -> OpenContainer:
        """The container that answers requests; only while it is open."""
        return self.services.opened

    async def start(self, *, on_standby: Callable[[str], None] = lambda _: None) -> None:
        """Bind the ports, lock the folder, recover, and listen.

        If a port is in use, or the object store fails its probe, the folder is left alone; no connection is accepted
        before the recovery is complete. A standby waits here for as long as another server owns the container.
        Cancelling, and an error, release everything.

        Args:
            on_standby: called with the owner, for people, while this server stands by.

        Raises:
            ConfigurationError: a folder, an address or a token file cannot be used. If another process has bound the
                address of a standby meanwhile, this is raised at its takeover.
            StorageError: the data cannot be recovered.
        """
        options = self.options
        if options.front.token_file is not None:
            self._token = await asyncio.to_thread(read_token, options.front.token_file)
        try:
            self._listener = await bind(options.listen, self._make_connection)
            if options.console is not None:  # it reports the recovery of the container
                with listening(options.console):
                    self._console = self._open_console(options.console)
            await self.host.open(on_standby=on_standby)
            self.connections.bound(descriptor_limit() - DESCRIPTORS_RESERVED_COUNT)
            await serve(self._listener)
        except BaseException:
            await self._release(flush_s=0.0)
            raise

    async def stop(self) -> None:
        """Stop: accept nothing, finish or fail requests in progress within the deadline, flush, release the folder.

        Call it after `start` has returned; to end a start that is under way, cancel it. A second call returns at once.
        """
        if not self.host.stop():
            return
        started_s = self.clock.monotonic_s()
        self.stop_listening()
        if self._console is not None:
            await asyncio.to_thread(self._console.end_feeds)
        self.host.refuse_requests()
        for connection in self.connections:
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with self.clock.timeout(self.options.shutdown_s / 2):
                await self.connections.emptied()
        if self.connections:
            logger.warning("connections cut at shutdown count=%d", len(self.connections))
            for connection in self.connections:
                connection.abort()
        elapsed_s = self.clock.monotonic_s() - started_s
        await self._release(flush_s=max(SHUTDOWN_FLUSH_S_MIN, 0.9 * self.options.shutdown_s - elapsed_s))
        logger.info("stopped duration_s=%.3f", self.clock.monotonic_s() - started_s)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._listener.close()

    async def wait_for_end(self) -> None:
        """Return when a signal requests the end of the server.

        Raises:
            BaseException: the error of a background task that should not have ended.
        """
        await self.ended.wait()
        if self.failure is not None:
            raise self.failure

    def statistics(self) -> dict[str, Any]:
        """Return records by part, as of now. May be called from any thread."""
        services = self.host.container.services
        parts: dict[str, Any] = {
            "cache": self.host.cache.statistics(),
            "front": replace(self.counters),
            "feed": replace(self._feed_counters),
            "history": self.host.statistics(),
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
                read_only=self.host.container.state is RECOVERING or container.loss is not None,
            ),
            "ownership": services.opened.environment.ownership.statistics(),
            "recovery": services.opened.summary,
            "wal": container.log.statistics(),
            **services.statistics(),
        }

    def health(self) -> str:
        """Return why the server is not healthy, empty if it is."""
        return self.host.health()

    async def _replace_connections(self) -> None:
        """Close all connections, so that clients reconnect to the container that was just reopened."""
        connections = list(self.connections)
        for connection in connections:
            connection.drain()
        # Let their last replies leave.
        await asyncio.sleep(0)
        for connection in connections:
            connection.abort()

    def _task_failed(self, name: str, error: BaseException) -> None:
        """Stop: a background task failed unexpectedly, or the container belongs to another server now."""
        self.failure = error
        self.ended.set()

    # --- the network ---

    def _make_connection(self) -> asyncio.BaseProtocol:
        container, services = self.host.container, self.host.container.services
        if services is None or container.state is CLOSING:
            return RejectedConnection(STOPPING, counters=self.counters)
        if container.may_be_superseded:
            return RejectedConnection(LAPSED, counters=self.counters)
        connection = Connection(
            handlers=services.handlers,
            options=self.options.front,
            clock=self.clock,
            counters=self.counters,
            server_id=self.host.backend.folder.server_id.bytes,
            connections=self.connections,
            memory=self._reader_memory,
            request_memory=self._request_memory,
            peer_log=self._peer_log,
            tokens=TokenGate(self._token),
            seconds=self._metrics.request_seconds,
            may_be_superseded=lambda: container.may_be_superseded,
        )
        self.connections.expect(connection)
        return connection

    def _open_console(self, address: Address) -> "ConsoleSite":
        # Imported here, because it loads the client, and a server without a console starts sooner.
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
        """Return the streams and cursors with metrics of their own. May be called from any thread."""
        services = self.host.container.services
        if services is None:
            return Busy()
        streams = services.streams
        lags, other_lags = streams.lags.rows(self.options.metrics.cursors_count_max)
        return Busy(streams=streams.traffic.rows, others=streams.traffic.others, lags=lags, other_lags=other_lags)

    async def _measure_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Update `_busy`; awaited in the loop of the console, as long as Prometheus may wait."""
        measuring = asyncio.run_coroutine_threadsafe(self._measure(), loop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEASURE_S_MAX):
                await asyncio.wrap_future(measuring)

    async def _measure(self) -> None:
        services = self.host.container.services
        if services is not None:
            # Streams that cannot be loaded now keep their previous values.
            with contextlib.suppress(ServerError):
                await services.streams.measure()

    def _own_address(self) -> str:
        """Return the address of the data port on this machine."""
        address = Address.parse(self.address, default_port=0)
        return str(Address(_LOOPBACK.get(address.host, address.host), address.port))

    async def _release(self, *, flush_s: float) -> None:
        self.host.stop()
        flushed_s = self.clock.monotonic_s() + flush_s
        self.stop_listening()
        await self.host.end_recovery()
        await self.tasks.stop()
        if self._console is not None:
            await asyncio.to_thread(self._console.close)
        # After a hand-over nothing is flushed: no checkpoint could record it, and a standby waits.
        await self.host.close(flush_s=0.0 if isinstance(self.failure, OwnershipReleasedError) else flush_s)
        left_s = max(0.0, flushed_s - self.clock.monotonic_s())
        await self.host.release(release_s=left_s + 0.1 * self.options.shutdown_s)
