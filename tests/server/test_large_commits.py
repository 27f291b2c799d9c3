"""What a commit has merged is found by time and by count, and split, like what was appended."""

# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

import millrace
from millrace.client.client import Client
from millrace.client.write.options import WriterOptions
from millrace.server.app import Server
from millrace.server.container.state.segment import Segment
from tests.support.folders import tmp_path
from tests.support.servers import BUSY, QUIET, SMALL_WAL, server_options
from tests.support.settled_containers import _containers_are_settled
from tests.support.waiting import until

__all__ = ["_containers_are_settled", "tmp_path"]

pytestmark = [pytest.mark.asyncio, pytest.mark.parametrize("place", ["in memory", "in chunks"])]

NAME = "a/b"
START = datetime(2024, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
COUNT = 8000
LARGE_WAL = replace(SMALL_WAL, file_size_bytes=1 << 20)


@pytest_asyncio.fixture
async def running(tmp_path: Path, place: str) -> AsyncIterator[tuple[Client, Segment]]:
    """A stream of one segment: an event, a transaction of many, one a second and 100 to a block, and an event."""
    options = server_options(tmp_path, container=QUIET if place == "in memory" else BUSY, wal=LARGE_WAL)
    async with Server(options) as server, millrace.connect(str(server.address)) as client:
        await client.create_stream(NAME)
        async with client.writer(NAME) as writer:
            await writer.write(b"first", timestamp_us=START_US - 1)
            async with client.transaction(NAME, options=WriterOptions(block_size_bytes=26_000)) as transaction:
                for number in range(COUNT):
                    transaction.write(b"%06d" % number + bytes(190), timestamp_us=START_US + number * 1_000_000)
            await writer.write(b"last", timestamp_us=START_US + COUNT * 1_000_000)
        state = server.opened.container.state
        (segment,) = [each for each in state.segments.values() if each.stream_id]
        if place == "in chunks":
            await until(lambda: not state.merged and not segment.tail)
        else:
            assert state.merged
        yield client, segment


async def values_of(
    client: Client, *, start: millrace.CutChoice = millrace.HEAD, end: millrace.CutChoice = millrace.TAIL
) -> list[bytes]:
    async with client.reader(NAME, start=start, end=end) as reader:
        return [event.value[:6] async for event in reader]


async def test_a_time_inside_of_a_transaction_is_a_cut(running: tuple[Client, Segment]) -> None:
    """Behaviour 26: by the times of its events, not by that of the commit; as a start, and as an end."""
    client, _ = running
    for number in (0, 1, COUNT // 2, COUNT - 1):
        at = START + timedelta(seconds=number)
        cut = await client.stream_cut(NAME, at_time=at)
        assert (await values_of(client, start=cut))[0] == b"%06d" % number
        assert await client.stream_cut(NAME, at_time=at, as_end=True) == cut
    assert await values_of(client, start=await client.stream_cut(NAME, at_time=START + timedelta(days=1))) == []
    head = await client.stream_cut(NAME, at_time=START - timedelta(days=1))
    assert (await values_of(client, start=head))[0] == b"first"


async def test_a_count_inside_of_a_transaction_is_a_cut(running: tuple[Client, Segment]) -> None:
    """Behaviour 26."""
    client, _ = running
    for count in (1, 2, COUNT // 2 + 1, COUNT, COUNT + 1):
        cut = await client.stream_cut(NAME, after_events=count)
        assert len(await values_of(client, end=cut)) == count
        assert (await client.distance(millrace.HEAD, cut)).events == count


async def test_a_large_commit_is_read_in_parallel(running: tuple[Client, Segment]) -> None:
    """Every event is in one of at least eight ranges, which are about as large as was asked for."""
    client, segment = running
    ranges = await client.plan_ranges(NAME, max_bytes=segment.length // 10)
    assert len(ranges) >= 8
    assert max(part.size_bytes for part in ranges) < segment.length // 10 + 100_000

    async def read(part: millrace.SegmentRange) -> list[bytes]:
        batches = [batch async for batch in client.read_range(part)]
        return [value.as_py()[:6] for batch in batches for value in batch.column("value")]

    found = await asyncio.gather(*map(read, ranges))
    assert sorted(value for values in found for value in values) == sorted(await values_of(client))
    assert sum(map(len, found)) == COUNT + 2
