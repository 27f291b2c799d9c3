"""Catch-up reads of a container from chunks that are far away: each GET is answered after a delay.

`python -m benchmarks.store_reader JSON`, with the fields of `StoreReaderOptions`; prints a `StoreReaderResult` as JSON.
The chunks are in a folder. What is measured is the way from there to a subscription, without the network to a client.
"""

import asyncio
import json
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from millrace.server.cache import PageCache
from millrace.server.container.catch_up_reader import CatchUpReader
from millrace.server.container.state.segment import Segment
from millrace.server.host.files import OsFileSystem
from millrace.server.object_store.url import StoreUrl
from millrace.server.options import ServerOptions
from millrace.server.tier2 import (
    ChunkId,
    ChunkRecord,
    LocalStorage,
    Tier2Options,
    chunk_name,
    encode_chunk,
    parse_chunk_name,
)
from millrace.wire.limits import MIB

CHUNK_SIZE_BYTES: Final = 8 * MIB
_READ_SIZE_BYTES: Final = 1 * MIB
"""What a subscription pushes at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReaderOptions:
    """What to read, once: all segments in `folder`, `at_once` at the same time."""

    folder: str
    at_once: int
    # Of each GET.
    latency_s: float
    # Whether with the settings that a server has for a store, or with those for a folder.
    is_tuned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReaderResult:
    """What was read."""

    size_bytes: int
    elapsed_s: float
    cpu_s: float
    gets: int
    gets_at_once_max: int

    @property
    def bytes_per_s(self) -> float:
        """Bytes read per second, by all readers together."""
        return self.size_bytes / self.elapsed_s


class FarStorage(LocalStorage):
    """A folder at a distance."""

    def __init__(self, folder: Path, latency_s: float) -> None:
        super().__init__(OsFileSystem(), folder, Tier2Options(threads=16 if latency_s else 4))
        self._latency_s = latency_s
        self._under_way = 0
        self.gets = self.gets_at_once_max = 0

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Read after the delay."""
        self.gets += 1
        self._under_way += 1
        self.gets_at_once_max = max(self.gets_at_once_max, self._under_way)
        try:
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            return await super().read(name, offset=offset, size=size)
        finally:
            self._under_way -= 1


async def fill(folder: Path, *, segments: int, size: int) -> None:
    """Publish the chunks of segments of `size` bytes each, a multiple of that of a chunk."""
    storage = FarStorage(folder, 0.0)
    payload = bytes(CHUNK_SIZE_BYTES)
    for segment_id in range(1, segments + 1):
        for start in range(0, size, CHUNK_SIZE_BYTES):
            chunk = ChunkId(segment_id=segment_id, start_offset=start, length=CHUNK_SIZE_BYTES, container_epoch=1)
            pieces = encode_chunk(
                chunk, [payload], index=[], start_events=0, end_events=0, end_wall_time_us=0,
                page_size=Tier2Options().page_size_bytes,
            )  # fmt: skip
            await storage.publish(chunk_name(chunk), pieces)
    await storage.close()


async def _segments(storage: FarStorage) -> list[Segment]:
    chunks: defaultdict[int, list[ChunkRecord]] = defaultdict(list)
    for info in await storage.list("segments/"):
        chunk = parse_chunk_name(info.name)
        assert chunk is not None
        chunks[chunk.segment_id].append(ChunkRecord(chunk.start_offset, chunk.length, info.name, info.size, 0, 0, 0))
    found = []
    for segment_id, records in chunks.items():
        segment = Segment(segment_id=segment_id, name=f"raw/{segment_id}", created_us=0)
        segment.chunks.extend(records)
        segment.length = segment.next_offset = segment.flushed_offset = records[-1].end_offset
        found.append(segment)
    return found


async def run_reader(options: StoreReaderOptions) -> StoreReaderResult:
    """Read everything once."""
    storage = FarStorage(Path(options.folder), options.latency_s)
    settings = ServerOptions(store=StoreUrl.parse("s3://bucket/prefix") if options.is_tuned else None).for_storage()
    cache = PageCache(settings.cache)
    reader = CatchUpReader(storage=storage, cache=cache)
    segments = await _segments(storage)

    async def read_through(segment: Segment) -> None:
        offset = 0
        while offset < segment.length:
            found = reader.read(segment, offset, _READ_SIZE_BYTES - offset % _READ_SIZE_BYTES)
            offset += sum(map(len, found if isinstance(found, list) else await found))

    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    for start in range(0, len(segments), options.at_once):
        await asyncio.gather(*map(read_through, segments[start : start + options.at_once]))
    elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    await cache.close()
    await storage.close()
    return StoreReaderResult(
        size_bytes=sum(segment.length for segment in segments),
        elapsed_s=elapsed_s,
        cpu_s=cpu_s,
        gets=storage.gets,
        gets_at_once_max=storage.gets_at_once_max,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(run_reader(StoreReaderOptions(**json.loads(sys.argv[1])))))))
