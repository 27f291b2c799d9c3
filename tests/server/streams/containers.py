"""Real containers for tests of streams: on a real folder, under a clock that the test moves."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.model.block_packing import pack_block
from millrace.model.key_range import KEY_SPACE, equal_ranges
from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.local import local_container
from millrace.server.container.options import ContainerOptions
from millrace.server.container.running import OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.kinds.registry import KINDS
from millrace.server.kinds.streams.catalog import Catalog
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.server.kinds.streams.tables import StreamArchive
from millrace.server.kinds.writers.expiry_plan import step_us
from millrace.server.kinds.writers.options import WritersOptions
from millrace.server.kinds.writers.uptime import Uptime
from millrace.server.ownership import FolderOwnership
from millrace.server.streams import MetricsOptions, ScalingLoop, StreamsOptions
from millrace.wire import messages as m
from millrace.wire.append_scan import scan_run
from millrace.wire.framing import encode_append_header
from millrace.wire.limits import KIB
from tests.support.clock import ManualClock
from tests.support.databases import FaultyDatabases
from tests.support.internal import Appender
from tests.support.servers import SMALL_WAL
from tests.support.storage import MemoryStorage

SERVER_ID = uuid.UUID(int=7)
COUNTED_S = step_us(WritersOptions()) / 1e6
"""So much counts between two records of uptime."""

WHOLE = [m.KeyRangeRecord(0, KEY_SPACE - 1)]


def halves() -> list[m.KeyRangeRecord]:
    """Return the two halves of the key space."""
    return [m.KeyRangeRecord(key_range.low, key_range.last) for key_range in equal_ranges(2)]


@dataclass
class Streams:
    """A container with everything that runs streams."""

    opened: OpenContainer
    controller: StreamCommands
    catalog: Catalog
    runner: ScalingLoop
    uptime: Uptime
    clock: ManualClock

    async def append(self, segment_id: int, payload: bytes, *, events: int = 1, **writer: Any) -> None:
        """Store an append durably; `writer` is the fields of a writer."""
        frames = encode_append_header(
            request_id=1, segment_id=segment_id, payload=payload, event_count=events, **writer
        )
        frames = bytes(frames) + payload
        run = scan_run(bytearray(frames), memoryview(frames), start=0, end=len(frames))
        assert run is not None
        owner = Appender()
        self.opened.container.append(run, owner)
        await owner.settled.wait()

    async def write(self, segment_id: int, keys: list[str], *, size: int = 10) -> None:
        """Store a block of events durably."""
        block = bytes(pack_block([b"v" * size] * len(keys), keys=keys))
        await self.append(segment_id, block, events=len(keys))

    async def run(self, duration_s: float) -> None:
        """Let time pass, and record the uptime as often as it takes to count it."""
        while duration_s > 0:
            self.clock.move(min(duration_s, COUNTED_S))
            duration_s -= COUNTED_S
            await self.uptime.record()

    async def tagged(self, tag: str) -> list[str]:
        names, more = await self.catalog.names_with_tag(tag, prefix="", after="", count_max=100)
        assert not more
        return names


@asynccontextmanager
async def streams_in(
    folder: Path,
    *,
    storage: MemoryStorage,
    clock: ManualClock,
    options: StreamsOptions | None = None,
    boot: str = "",
    files: FileSystem | None = None,
    idle_bytes_max: int = 0,
) -> AsyncIterator[Streams]:
    """Open what is in `folder`, and close it without a flush, as a kill would leave it.

    Args:
        idle_bytes_max: by default every idle entity is evicted at once, which shows a missing pin.
    """
    cache = PageCache(CacheOptions())
    container_options = ContainerOptions(
        flush_age_s=3600.0, checkpoint_interval_s=3600.0, idle_bytes_max=idle_bytes_max
    )
    local = await local_container(
        0,
        folder,
        files=files or FaultyDatabases(busy_timeout_s=0.0),
        storage=storage,
        kinds=KINDS,
        server_id=SERVER_ID,
        options=container_options,
    )
    opened = await open_container(
        local.environment(
            FolderOwnership(local.next_epoch),
            cache=cache,
            container_options=container_options,
            wal_options=SMALL_WAL,
            clock=clock,
            metrics=Metrics(),
            page_size_bytes=4 * KIB,
            on_failure=lambda error: None,
        )
    )
    uptime = Uptime(opened.container, WritersOptions(), boot=boot)
    controller = StreamCommands(opened.container)
    catalog = Catalog(opened.container.state, opened.checkpoints.archive(StreamArchive))
    runner = ScalingLoop(
        container=opened.container,
        streams=controller,
        catalog=catalog,
        uptime=uptime,
        options=options or StreamsOptions(),
        metrics=MetricsOptions(streams_count_max=2, cursors_count_max=2),
    )
    await runner.load()
    try:
        yield Streams(opened, controller, catalog, runner, uptime, clock)
    finally:
        await opened.close(log_s=5.0, flush_s=0.0)
        await cache.close()
