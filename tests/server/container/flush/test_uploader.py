"""Which chunks are published for a tail, and what becomes of those that they replace."""

import asyncio
from dataclasses import replace

import pytest

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.catch_up_reader import CatchUpReader
from millrace.server.container.container import SegmentContainer
from millrace.server.container.flush.uploader import Uploader
from millrace.server.container.memtable import LinkedExtent
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.container.state.sparse_index import SPACING_BYTES
from millrace.server.errors import NoSpaceError, StorageError
from millrace.server.ownership import FolderOwnership
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.server.container.extents import extent
from tests.server.container.states import new_state, waiting
from tests.support.clock import ManualClock
from tests.support.memory_log import LogMedium, MemoryLog
from tests.support.protocol import RefusedError
from tests.support.scenario import Scenario
from tests.support.servers import QUIET
from tests.support.storage import FaultyStorage

OPTIONS = ContainerOptions(flush_size_bytes=KIB, chunk_size_bytes_max=4 * KIB, chunk_size_bytes_small=KIB)


class Tier2:
    """A container of one segment, and an uploader over a storage that a test holds."""

    def __init__(self, options: ContainerOptions = OPTIONS) -> None:
        self.storage = FaultyStorage()
        self.state = new_state()
        reader = CatchUpReader(storage=self.storage, cache=PageCache(CacheOptions()))
        self.container = SegmentContainer(
            state=self.state,
            log=MemoryLog(LogMedium()),
            reader=reader,
            options=options,
            clock=ManualClock(),
            ownership=FolderOwnership(1),
        )
        self.uploader = Uploader(self.container, storage=self.storage, container_epoch=1, page_size_bytes=KIB)
        self.segment = self.another()

    def another(self) -> Segment:
        """Add a segment, which is appended to from now on."""
        number = self.state.take_id()
        self.segment = Segment(segment_id=number, name=f"raw/{number}", created_us=0)
        self.state.segments.add(self.segment)
        return self.segment

    def append(self, *payloads: bytes) -> None:
        segment = self.segment
        segment.event_count += len(payloads)
        held = extent(segment.length, *payloads, end_events=segment.event_count)
        segment.index.add(held.offset, events=held.start_events, wall_time_us=held.wall_time_us)
        segment.length = held.end
        segment.admit_as_durable()
        self.state.hold(segment, held)

    def merge(self, *payloads: bytes) -> Segment:
        """Merge another segment of these events into the segment; that stays the one which is appended to."""
        target, source = self.segment, self.another()
        for payload in payloads:
            self.append(payload)
        target.event_count += len(payloads)
        self.state.link(
            LinkedExtent(
                target_id=target.segment_id,
                offset=target.length,
                size=source.length,
                source_id=source.segment_id,
                source_offset=0,
                event_count=len(payloads),
                sequence=9,
                end_events=target.event_count,
                wall_time_us=17,
            )
        )
        target.length += source.length
        target.admit_as_durable()
        self.segment = target
        return source

    async def content(self) -> bytes:
        content = b""
        while len(content) < self.segment.length:
            content += b"".join(await self.container.reads.read(self.segment, len(content), 1 << 20))
        return content


@pytest.mark.asyncio
async def test_a_tail_becomes_chunks_of_bounded_size_and_is_dropped() -> None:
    tier2 = Tier2()
    for number in range(9):
        tier2.append(bytes([number]) * KIB)
    while tier2.segment.tail:
        await tier2.uploader.upload([tier2.segment])
    assert [chunk.length for chunk in tier2.segment.chunks] == [4 * KIB, 4 * KIB, KIB]
    assert [(chunk.start_events, chunk.end_events) for chunk in tier2.segment.chunks] == [(0, 4), (4, 8), (8, 9)]
    assert (tier2.state.tail_bytes, tier2.state.unflushed, tier2.segment.flushed_offset) == (0, {}, 9 * KIB)
    assert await tier2.content() == b"".join(bytes([number]) * KIB for number in range(9))


@pytest.mark.asyncio
async def test_a_small_last_chunk_is_written_again_with_what_follows() -> None:
    tier2 = Tier2()
    for content in (b"a" * 10, b"b" * 20, b"c" * KIB):
        tier2.append(content)
        await tier2.uploader.upload([tier2.segment])
    assert [chunk.length for chunk in tier2.segment.chunks] == [30 + KIB]
    replaced = waiting(tier2.state.garbage, DeleteAfter.COPY)
    assert sorted([*replaced, tier2.segment.chunks[0].name]) == sorted(tier2.storage.names())
    tier2.append(b"d")
    await tier2.uploader.upload([tier2.segment])
    assert len(tier2.segment.chunks) == 2, "a chunk that is not small stays as it is"


@pytest.mark.asyncio
async def test_no_byte_is_written_again_more_often_than_its_chunk_can_double() -> None:
    """Behaviour 65: neither many small chunks nor many copies of the same bytes."""
    tier2 = Tier2()
    written = 0
    for number in range(3 * KIB // 4):
        tier2.append(b"%03d " % number)
        await tier2.uploader.upload([tier2.segment])
        written += tier2.segment.chunks[-1].length
        assert len(tier2.segment.chunks) <= 10 + number // 256
    doublings = 8  # from 4 bytes to 1 KiB
    assert written <= (1 + doublings) * tier2.segment.length
    assert await tier2.content() == b"".join(b"%03d " % number for number in range(3 * KIB // 4))


@pytest.mark.asyncio
async def test_small_chunks_before_a_damaged_one_stay_as_they_are() -> None:
    """Behaviour 41."""
    tier2 = Tier2()
    for content in (b"a" * 40, b"b" * 20, b"c" * 10):
        tier2.append(content)
        await tier2.uploader.upload([tier2.segment])
    kept = tier2.segment.chunks[:2]
    assert [chunk.length for chunk in tier2.segment.chunks] == [40, 20, 10]
    tier2.storage.replace(tier2.storage.names()[1], bytes(kept[1].size))
    tier2.append(b"d" * 100)
    await tier2.uploader.upload([tier2.segment])
    assert tier2.segment.chunks[:2] == kept
    assert [chunk.length for chunk in tier2.segment.chunks] == [40, 20, 110]


@pytest.mark.asyncio
async def test_a_chunk_of_a_segment_that_was_truncated_meanwhile_is_deleted_at_once() -> None:
    tier2 = Tier2()
    tier2.append(b"a" * 10)

    def truncate(when: str, action: str, name: str) -> None:
        tier2.segment.start_offset = 10
        tier2.state.release(tier2.segment, 10)

    tier2.storage.on_step = truncate
    await tier2.uploader.upload([tier2.segment])
    assert tier2.segment.chunks == []
    assert waiting(tier2.state.garbage, DeleteAfter.NOW) == tier2.storage.names()


@pytest.mark.asyncio
async def test_uploads_of_one_tail_at_the_same_time_publish_it_once() -> None:
    tier2 = Tier2()
    tier2.append(b"a" * 10)
    published: list[str] = []

    def note(when: str, action: str, name: str) -> None:
        if (when, action) == ("before", "publish"):
            published.append(name)

    tier2.storage.on_step = note
    await asyncio.gather(*[tier2.uploader.upload([tier2.segment]) for _ in range(3)])
    assert published == [chunk.name for chunk in tier2.segment.chunks]
    assert await tier2.content() == b"a" * 10


@pytest.mark.asyncio
async def test_small_merged_segments_are_joined_with_what_is_beside_them() -> None:
    """Behaviour 65: many small commits make few chunks."""
    tier2 = Tier2()
    target = tier2.segment
    tier2.append(b"flushed ")
    await tier2.uploader.upload([target])
    tier2.append(b"first ")
    for number in range(100):
        tier2.merge(b"part %02d " % number)
    tier2.append(b"last ")
    content = await tier2.content()

    await tier2.uploader.upload([target])

    assert [(chunk.start_offset, chunk.end_offset, chunk.end_events) for chunk in target.chunks] == [
        (0, len(content), 103)
    ]
    assert await tier2.content() == content
    assert len(tier2.state.segments) == 1
    assert tier2.state.tail_bytes == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("payloads", [[b"damaged "], [b"d" * SPACING_BYTES] * 9], ids=["joined", "copied alone"])
async def test_a_damaged_merged_segment_holds_up_nothing(payloads: list[bytes]) -> None:
    """Behaviour 41: what is before and after it is flushed, and it is read where it is."""
    tier2 = Tier2()
    target = tier2.segment
    tier2.append(b"first ")
    source = tier2.merge(*payloads)
    size = source.length
    damage = DamagedRange(size - len(payloads[-1]), size, "the log")
    source.damages.append(damage)
    tier2.append(b"last ")

    while target.tail:
        await tier2.uploader.upload([target])

    assert tier2.uploader.candidates() == [source], "it is flushed for itself"
    while source.tail:
        await tier2.uploader.upload([source])
    assert [(chunk.start_offset, chunk.end_offset) for chunk in target.chunks] == [(0, 6), (6 + size, 11 + size)]
    assert set(tier2.storage.names()) == {chunk.name for chunk in target.chunks + source.chunks} | set(
        waiting(tier2.state.garbage, DeleteAfter.NOW)
    )
    assert (tier2.state.tail_bytes, tier2.state.unflushed) == (0, {})
    assert tier2.state.replay_from == tier2.state.sequence + 1, "no part of the log is held"
    source.damages.remove(damage)
    assert await tier2.content() == b"first " + b"".join(payloads) + b"last "


@pytest.mark.asyncio
@pytest.mark.parametrize("is_deletion", [False, True])
async def test_a_damaged_merged_segment_goes_with_its_part_of_the_target(is_deletion: bool) -> None:
    """Behaviours 19 and 20."""
    tier2 = Tier2()
    target, source = tier2.segment, tier2.merge(b"damaged ")
    source.damages.append(DamagedRange(0, 8, "the log"))
    tier2.append(b"last ")
    while tier2.state.unflushed:
        await tier2.uploader.upload(tier2.uploader.candidates())
    assert target.unreadable == [source.link]
    if is_deletion:
        tier2.state.delete_segments([target.segment_id])
    else:
        target.start_offset = 8
        tier2.state.release(target, 8)
    assert source.deleted
    assert (target.unreadable, tier2.state.merged) == ([], {})


@pytest.mark.asyncio
@pytest.mark.parametrize("is_deletion", [False, True])
async def test_what_is_truncated_or_deleted_during_a_copy_is_not_kept(is_deletion: bool) -> None:
    """Behaviours 19 and 20: retention inside of a run of merged segments."""
    tier2 = Tier2()
    target = tier2.segment
    tier2.append(b"first ")
    for number in range(10):
        tier2.merge(b"part %d " % number)
    content = await tier2.content()
    inside = len(b"first ") + 4 * len(b"part 0 ") + 1

    def take(when: str, action: str, name: str) -> None:
        if is_deletion:
            tier2.state.delete_segments([target.segment_id])
        else:
            target.start_offset = inside
            tier2.state.release(target, inside)

    tier2.storage.on_step = take
    await tier2.uploader.upload([target])
    if is_deletion:
        assert waiting(tier2.state.garbage, DeleteAfter.NOW) == tier2.storage.names()
    else:
        assert [chunk.end_offset for chunk in target.chunks] == [len(content)]
        assert b"".join(await tier2.container.reads.read(target, inside, 100)) == content[inside:]
    assert len(tier2.state.segments) == 1 - is_deletion
    assert (tier2.state.tail_bytes, tier2.state.unflushed, tier2.state.merged) == (0, {}, {})


@pytest.mark.asyncio
async def test_what_was_merged_and_goes_while_it_is_copied_stops_no_other() -> None:
    """Behaviour 19: a truncation after all that was merged deletes the segment that was merged."""
    tier2 = Tier2()
    target = tier2.segment
    tier2.merge(*[b"x" * SPACING_BYTES] * 9)
    tier2.append(b"last")
    other = tier2.another()
    tier2.append(b"other")

    def truncate(when: str, action: str, name: str) -> None:
        tier2.storage.on_step = lambda *_: None
        target.start_offset = 9 * SPACING_BYTES
        tier2.state.release(target, 9 * SPACING_BYTES)

    tier2.storage.on_step = truncate
    await tier2.uploader.upload([target])
    await tier2.uploader.upload([target, other])
    assert [chunk.start_offset for chunk in target.chunks] == [9 * SPACING_BYTES]
    assert len(other.chunks) == 1
    assert waiting(tier2.state.garbage, DeleteAfter.NOW) == [
        name for name in tier2.storage.names() if name not in {target.chunks[0].name, other.chunks[0].name}
    ]


@pytest.mark.asyncio
async def test_a_merged_segment_that_is_too_short_is_named_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Behaviour 41: the log may have lost the end of what was merged."""
    tier2 = Tier2()
    target, source = tier2.segment, tier2.another()
    tier2.append(b"b" * 10)
    target.length = target.next_offset = 11
    tier2.state.link(
        LinkedExtent(
            target_id=target.segment_id, offset=0, size=11, source_id=source.segment_id, source_offset=0,
            event_count=1, sequence=9, end_events=1, wall_time_us=17,
        )
    )  # fmt: skip
    other = tier2.another()
    tier2.append(b"c" * 10)
    await tier2.uploader.upload([target, other])
    assert f"error={target.name}: " in caplog.text
    assert f"those of {source.name} up to 11, which ends at 10" in caplog.text
    assert (len(other.chunks), target.chunks, target.flushed_offset) == (1, [], 11)


@pytest.mark.asyncio
async def test_a_failed_upload_changes_nothing() -> None:
    tier2 = Tier2()
    tier2.append(b"a" * 10)
    tier2.storage.failing = True
    with pytest.raises(StorageError):
        await tier2.uploader.upload([tier2.segment])
    assert (tier2.segment.chunks, tier2.segment.tail.size) == ([], 10)
    assert not any(waiting(tier2.state.garbage, each) for each in DeleteAfter)
    assert await tier2.content() == b"a" * 10


@pytest.mark.asyncio
async def test_chunks_become_smaller_while_tier_2_has_no_room_for_a_whole_one() -> None:
    """Behaviour 103."""
    tier2 = Tier2()
    for number in range(8):
        tier2.append(bytes([number]) * KIB)
    tier2.storage.capacity_bytes = 3 * KIB
    await tier2.uploader.upload([tier2.segment])
    with pytest.raises(NoSpaceError):
        await tier2.uploader.upload([tier2.segment])
    assert [chunk.length for chunk in tier2.segment.chunks] == [2 * KIB]

    tier2.storage.capacity_bytes = None
    while tier2.segment.tail:
        await tier2.uploader.upload([tier2.segment])
    assert [chunk.length for chunk in tier2.segment.chunks] == [2 * KIB, 4 * KIB, 2 * KIB]


@pytest.mark.asyncio
async def test_a_truncation_inside_of_what_was_merged_is_flushed_and_started_with(scenario: Scenario) -> None:
    """Behaviours 19 and 20: chunks of the merged bytes that are wholly before the start are not referred to."""
    small = replace(QUIET, chunk_size_bytes_max=8 * KIB, flush_size_bytes=4 * KIB)
    rest = bytes([30]) * 5_000 + b"".join(bytes([number]) * 10_000 for number in range(31, 40))
    async with scenario.running(container=small) as run, run.peer() as peer:
        target, source = await peer.create_segment("raw/a"), await peer.create_segment("raw/b")
        for number in range(40):
            await peer.store(source, bytes([number]) * 10_000)
        await run.opened.flusher.flush()
        await peer.ask(m.SealSegment(source), m.SegmentInfo)
        await peer.ask(m.MergeSegment(target_id=target, source_id=source), m.SegmentInfo)
        await peer.ask(m.TruncateSegment(target, 305_000), m.SegmentInfo)
        await run.opened.flusher.flush()
        chunks = run.container.segment(target).chunks
        assert chunks
        assert all(chunk.end_offset > 305_000 for chunk in chunks)
        assert await peer.read_all(target, start=305_000) == rest
        await run.opened.flusher.checkpoint()
    async with scenario.running(container=small) as run, run.peer() as peer:
        assert await peer.read_all(target, start=305_000) == rest


@pytest.mark.asyncio
async def test_merged_segments_are_flushed_with_their_target() -> None:
    """There may be many more of them than of all others, and each pass asks for what may be flushed."""
    tier2 = Tier2()
    tier2.append(b"first ")
    merged = [tier2.merge(b"merged ") for _ in range(3)]

    assert list(tier2.state.unmerged.values()) == tier2.uploader.candidates() == [tier2.segment]
    assert all(source.segment_id in tier2.state.unflushed for source in merged)
    await tier2.uploader.upload([tier2.segment])
    assert (tier2.state.unmerged, tier2.state.unflushed) == ({}, {})


@pytest.mark.asyncio
async def test_a_missing_chunk_of_a_merged_segment_holds_no_part_of_the_log(scenario: Scenario) -> None:
    """Behaviour 41: over starts, and the bytes are read again once the chunk is put back."""
    storage = scenario.storage
    container = replace(QUIET, idle_bytes_max=0)
    async with scenario.running(container=container) as run, run.peer() as peer:
        target, source = await peer.create_segment("raw/a"), await peer.create_segment("raw/b")
        await peer.store(source, b"merged ")
        await run.opened.flusher.flush()
        (name,) = storage.names()
        data = await storage.read(name, offset=0, size=1 << 20)
        await peer.ask(m.SealSegment(source), m.SegmentInfo)
        await peer.ask(m.MergeSegment(target_id=target, source_id=source), m.SegmentInfo)
        await storage.delete(name)
        run.container.reader.forget(run.container.segment(target))
        await peer.store(target, b"last")
        await run.opened.flusher.flush()
        await run.opened.flusher.checkpoint()
        await run.opened.flusher.copy()
        state = run.state
        assert (state.tail_bytes, state.replay_from) == (0, state.sequence + 1)
    async with scenario.running(container=container) as run, run.peer() as peer:
        assert await peer.read_all(target, start=7) == b"last"
        with pytest.raises(RefusedError, match="damaged or missing in tier 2") as caught:
            await peer.read_all(target)
        assert caught.value.code is ErrorCode.SEGMENT_DAMAGED
        await storage.publish(name, [data])
        assert await peer.read_all(target) == b"merged last"
        state = run.state
        await peer.ask(m.TruncateSegment(target, 7), m.SegmentInfo)
        await run.opened.flusher.checkpoint()
        await run.opened.flusher.copy()
        assert (state.merged, state._held) == ({}, {})
        assert name not in storage.names(), "it goes with its part of the target"
