"""Logs of whole records that contradict one another: a container starts on each, and names what is damaged."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings

from millrace.server.container import repair
from millrace.server.container.segment_reads import SegmentReads
from millrace.server.container.state.quarantine import EntityDamage
from millrace.server.container.state.segment import Segment
from millrace.server.errors import ServerError
from millrace.server.host.files import OsFileSystem
from millrace.server.offline.container import opened_container, survey
from millrace.server.offline.findings import Verification
from millrace.server.offline.verification import verify_folder
from millrace.wire import messages as m
from tests.server.container.histories import durable_view
from tests.server.streams.containers import SERVER_ID, Streams, streams_in
from tests.support.clock import ManualClock
from tests.support.examples import examples
from tests.support.impossible_logs import (
    CONTENT_OF_OTHERS,
    WHOLE_ID,
    ImpossibleLog,
    begun,
    impossible_logs,
    log_of,
    ranges,
)
from tests.support.storage import MemoryStorage

CONTENT = b"".join(CONTENT_OF_OTHERS)
MORE = b"more"


async def content_of(streams: Streams, segment_id: int) -> bytes:
    """Return all that is served of a segment."""
    with await streams.opened.container.loader.pin(m.Required(segments=[segment_id])):
        segment = streams.opened.container.segment(segment_id)
        pieces: list[bytes] = []
        while (offset := sum(map(len, pieces))) < segment.length:
            pieces += map(bytes, await streams.opened.container.reads.read(segment, offset, segment.length - offset))
    return b"".join(pieces)


async def read_everything(reads: SegmentReads, segments: list[Segment]) -> None:
    """Read each segment from its start and its end on: what is damaged is refused, and nothing else is raised."""
    for segment in segments:
        for offset in {segment.start_offset, max(segment.start_offset, segment.flushed_offset), segment.length}:
            try:
                await reads.read(segment, offset, 100)
            except ServerError:
                continue


def damages_of(streams: Streams) -> set[EntityDamage]:
    return set(streams.opened.container.state.quarantine)


async def check_start(folder: Path, storage: MemoryStorage, *, is_last: bool) -> tuple[set[EntityDamage], object]:
    """Start a container on a folder, use what is whole, save and copy a checkpoint; return what the start found."""
    async with streams_in(folder, storage=storage, clock=ManualClock(), files=OsFileSystem()) as streams:
        container, flusher = streams.opened.container, streams.opened.flusher
        found, view = damages_of(streams), durable_view(container.state)
        assert (await content_of(streams, WHOLE_ID)).removesuffix(MORE) == CONTENT
        assert await content_of(streams, WHOLE_ID + 2) == CONTENT
        await read_everything(container.reads, list(container.state.segments.values()))
        if is_last:
            assert not container.loss
            await streams.append(WHOLE_ID, MORE)
            await streams.controller.create("other/new", segment_count=2, configuration="{}")
        await flusher.flush()
        await flusher.checkpoint()
        await flusher.copy()
        assert container.state.replay_from == container.state.sequence + 1, "damage holds no part of the log"
        assert await content_of(streams, WHOLE_ID + 2) == CONTENT
        assert damages_of(streams) == found
        return found, view


async def check(folder: Path, log: ImpossibleLog) -> None:
    container = folder / "containers" / "0000"
    await log.write(container / "wal", files=OsFileSystem(), server_id=SERVER_ID)
    verified = await asyncio.to_thread(lambda: Verification.of(verify_folder(folder)))
    with survey(opened_container(container)) as surveyed:
        expected = set(surveyed.state.quarantine)
        assert not surveyed.log_error
        assert not surveyed.record_problems
    named = [finding.what for finding in verified.findings]
    assert all(any(str(damage) in what for what in named) for damage in expected)
    storage = MemoryStorage()
    first, _ = await check_start(container, storage, is_last=False)
    assert first == expected
    with survey(opened_container(container)) as surveyed:
        assert set(surveyed.state.quarantine) == expected
    second, _ = await check_start(container, storage, is_last=True)
    assert second == expected
    if expected:
        async with streams_in(container, storage=storage, clock=ManualClock(), files=OsFileSystem()) as streams:
            await repair.accept_loss(streams.opened)
    left, _ = await check_start(container, storage, is_last=False)
    assert all(damage.accepted for damage in left)


async def check_after_checkpoint(folder: Path, log: ImpossibleLog) -> None:
    """Write the first batches, store them in a checkpoint, and start on the rest, with nothing idle in memory."""
    storage = MemoryStorage()
    before, after = ImpossibleLog(log.batches[:2]), ImpossibleLog(log.batches[2:])
    await before.write(folder / "wal", files=OsFileSystem(), server_id=SERVER_ID)
    async with streams_in(folder, storage=storage, clock=ManualClock(), files=OsFileSystem()) as streams:
        await streams.opened.flusher.flush()
        await streams.opened.flusher.checkpoint()
    await after.write(folder / "wal", files=OsFileSystem(), server_id=SERVER_ID)
    with survey(opened_container(folder)) as surveyed:
        expected = set(surveyed.state.quarantine)
    async with streams_in(folder, storage=storage, clock=ManualClock(), files=OsFileSystem()) as streams:
        assert damages_of(streams) == expected
        assert await content_of(streams, WHOLE_ID) == CONTENT
        assert await content_of(streams, WHOLE_ID + 2) == CONTENT
        await streams.opened.flusher.checkpoint()


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow])
@given(impossible_logs())
def test_a_container_starts_on_any_log_of_whole_records(log: ImpossibleLog) -> None:
    """Behaviour 96: what fits is served, the rest is named, by each start and by `verify`, until it is accepted."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder), log))


@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(impossible_logs())
@example(log_of([[m.StreamStartMoved(4, [m.SavedPosition(1, 0, 0)])]]))
def test_a_container_starts_on_any_log_that_follows_a_checkpoint(log: ImpossibleLog) -> None:
    """Behaviours 96 and 97: records name entities that are not in memory, also such as they do not pin."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check_after_checkpoint(Path(folder) / "containers" / "0000", log))


def test_an_exclusive_writer_without_a_stream_leaves_raw_segments_to_all(tmp_path: Path) -> None:
    """Behaviour 96: the record is damage of its writer alone; stream 0 stands for no stream at all."""
    opened = m.WriterRecorded(writer_number=13, writer_epoch=1, opened_us=1, writer_id="", stream_id=0, is_exclusive=1)
    asyncio.run(check(tmp_path, log_of([[opened]])))


def test_transactions_that_route_otherwise_in_the_epoch_of_an_open_one_share_its_ranges(tmp_path: Path) -> None:
    """Behaviour 96: one of them names the stream twice; the container starts, and nothing is refused."""
    other, mine = m.TransactionStream(4, 0, ranges(12)), m.TransactionStream(4, 0, ranges(13, 14))
    asyncio.run(check(tmp_path, log_of([[begun(11, streams=[other])], [begun(15, streams=[other, mine])]])))
