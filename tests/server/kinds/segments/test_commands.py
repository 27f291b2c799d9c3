"""Decisions about segments, attributes and writers, also over restarts of the container."""

import asyncio
import gc
import threading
from dataclasses import replace

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.server.container.options import ContainerOptions
from millrace.server.errors import SegmentExistsError
from millrace.server.kinds.writers.commands import WriterCommands
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from millrace.wire.limits import KIB, MIB
from tests.support.internal import internal_segment
from tests.support.protocol import Peer, RefusedError, code_of, set_attribute
from tests.support.scenario import Run, Scenario
from tests.support.servers import BUSY, QUIET
from tests.support.waiting import PATIENCE_S

CONTAINERS = pytest.mark.parametrize("container", [QUIET, BUSY], ids=["log", "tier 2"])


async def stored(run: Run, container: ContainerOptions) -> None:
    """Move everything to tier 2 and into a checkpoint, where that is what the next start is to find."""
    if container is BUSY:
        await run.published()


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_creating_a_segment_twice_is_an_error(run: Run) -> None:
    """Behaviour 19: create twice: exists. Also for those who ask at the same time."""
    peers = [run.peer() for _ in range(5)]
    results = await asyncio.gather(*(peer.create_segment("raw/a") for peer in peers), return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert await code_of(peers[0].create_segment("raw/a")) is ErrorCode.SEGMENT_EXISTS


@pytest.mark.asyncio
async def test_a_name_stays_taken_when_its_requester_is_cancelled(scenario: Scenario) -> None:
    """Behaviour 19: a request that was cut off continues; were its name free, there would be two segments of it."""
    async with scenario.running() as run, run.peer() as peer:
        scenario.log.is_stalled = True
        async with run.peer() as gone:
            await gone.start(m.CreateSegment("raw/a"))
            await gone.start(m.CreateStream("raw/s", 2, ""))
            async with asyncio.timeout(PATIENCE_S):
                while len(run.container.in_flight) < 2:
                    await gone.ask(m.ListStreams("", "", 10), m.StreamList)
        creating = await peer.start(m.CreateSegment("raw/a"))
        stream = await peer.start(m.CreateStream("raw/s", 2, ""))
        scenario.log.resume()
        assert await code_of(peer.reply(creating, m.SegmentInfo)) is ErrorCode.SEGMENT_EXISTS
        assert (await peer.reply(stream, m.StreamInfo)).created == 0
        assert len((await peer.ask(m.ListSegments("raw/", "", 10), m.SegmentList)).segments) == 3


@pytest.mark.asyncio
async def test_sealing_twice_is_fine(peer: Peer) -> None:
    """Behaviour 19: seal twice: fine."""
    segment_id = await peer.create_segment("raw/a")
    for _ in range(2):
        assert (await peer.ask(m.SealSegment(segment_id), m.SegmentInfo)).sealed == 1


@pytest.mark.slow
@pytest.mark.asyncio
@CONTAINERS
async def test_truncation_moves_the_start_and_nothing_else(scenario: Scenario, container: ContainerOptions) -> None:
    """Behaviour 19: beyond the length: refused; same place twice: fine; offsets of the rest unchanged."""
    async with scenario.running(container=container) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, *(bytes([number]) * 5000 for number in range(10)))
        assert (
            await code_of(peer.ask(m.TruncateSegment(segment_id, 50_001), m.SegmentInfo)) is ErrorCode.OFFSET_BEYOND_END
        )
        for _ in range(2):
            info = await peer.ask(m.TruncateSegment(segment_id, 12_345), m.SegmentInfo)
            assert (info.start_offset, info.length) == (12_345, 50_000)
        info = await peer.ask(m.TruncateSegment(segment_id, 100), m.SegmentInfo)
        assert info.start_offset == 12_345
        content = await peer.read_all(segment_id, start=12_345)
        assert content == b"".join(bytes([number]) * 5000 for number in range(10))[12_345:]
        await stored(run, container)
    async with scenario.running(container=container) as run, run.peer() as peer:
        assert await peer.read_all(segment_id, start=12_345) == content
        assert await code_of(peer.read(segment_id, 12_344)) is ErrorCode.SEGMENT_TRUNCATED
        assert await peer.store(segment_id, b"x") == [50_000]
        await peer.ask(m.TruncateSegment(segment_id, 50_001), m.SegmentInfo)
        assert await peer.store(segment_id, b"y") == [50_001]


@pytest.mark.slow
@pytest.mark.asyncio
@CONTAINERS
async def test_nothing_old_shines_through_a_new_segment_of_the_same_name(
    scenario: Scenario, container: ContainerOptions
) -> None:
    """Behaviour 19: delete and create the same name."""
    async with scenario.running(container=container) as run, run.peer() as peer:
        old = await peer.create_segment("raw/a")
        writer = await peer.open_writer("w", old)
        fields = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch}
        await peer.store(old, b"old" * 3000, event_number=1, **fields)
        await peer.ask(set_attribute(old, "k", expected=None, value=b"old"), m.Attribute)
        await peer.ask(m.DeleteSegment(old), m.Done)
        new = await peer.create_segment("raw/a")
        assert new != old
        await peer.store(new, b"new", event_number=1, **fields)
        await stored(run, container)
    async with scenario.running(container=container) as run, run.peer() as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        assert (info.segment_id, info.length) == (new, 3)
        assert await peer.read_all(new) == b"new"
        assert (await peer.ask(m.GetAttribute(new, "k"), m.Attribute)).present == 0
        assert await code_of(peer.info(old)) is ErrorCode.SEGMENT_NOT_FOUND
        assert await code_of(peer.ask(m.DeleteSegment(old), m.Done)) is ErrorCode.SEGMENT_NOT_FOUND


@pytest.mark.slow
@pytest.mark.asyncio
@CONTAINERS
async def test_attributes_compare_and_set_across_restarts(scenario: Scenario, container: ContainerOptions) -> None:
    """Behaviour 13: attribute compare-and-set survives a restart; absent is a value."""
    steps = [(None, b"1"), (b"1", b""), (b"", b"2"), (b"2", None), (None, b"3")]
    segment_id = 0
    for expected, value in steps:
        async with scenario.running(container=container) as run, run.peer() as peer:
            segment_id = segment_id or await peer.create_segment("raw/a")
            for wrong in (None, b"", b"1", b"2", b"9"):
                if wrong != expected:
                    request = set_attribute(segment_id, "k", expected=wrong, value=b"x")
                    assert await code_of(peer.ask(request, m.Attribute)) is ErrorCode.ATTRIBUTE_CONDITION_FAILED
            await peer.ask(set_attribute(segment_id, "k", expected=expected, value=value), m.Attribute)
            found = await peer.ask(m.GetAttribute(segment_id, "k"), m.Attribute)
            assert (found.value if found.present else None) == value
            await stored(run, container)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_of_racing_compare_and_sets_one_wins_each_value(peer: Peer) -> None:
    """Behaviour 13: one winner, also among those whose records are queued together."""
    segment_id = await peer.create_segment("raw/a")
    for number in range(10):
        expected = str(number).encode() if number else None
        request = set_attribute(segment_id, "k", expected=expected, value=str(number + 1).encode())
        ids = [peer.next_id() for _ in range(5)]
        await peer.send(*(encode(request, request_id=request_id) for request_id in ids))
        while not all(request_id in peer.replies for request_id in ids):
            await peer.keep_next()
        replies = [peer.replies.pop(request_id) for request_id in ids]
        assert sum(isinstance(reply, m.Attribute) for reply in replies) == 1


@pytest.mark.slow
@pytest.mark.asyncio
@CONTAINERS
async def test_a_merge_moves_all_bytes_once(scenario: Scenario, container: ContainerOptions) -> None:
    """Behaviour 20: contiguous and atomic; repeating it is a success without effect."""
    async with scenario.running(container=container) as run, run.peer() as peer:
        target, source = await peer.create_segment("raw/target"), await peer.create_segment("raw/source")
        await peer.store(target, b"a" * 1000)
        await peer.store(source, *[b"b" * 700] * 10)
        request = m.MergeSegment(target_id=target, source_id=source)
        assert await code_of(peer.ask(request, m.SegmentInfo)) is ErrorCode.INVALID_ARGUMENT
        await peer.ask(m.SealSegment(source), m.SegmentInfo)
        for _ in range(2):
            assert (await peer.ask(request, m.SegmentInfo)).length == 8000
        await peer.store(target, b"c" * 500)
        expected = b"a" * 1000 + b"b" * 7000 + b"c" * 500
        assert await peer.read_all(target, size_max=900) == expected
        assert await code_of(peer.info(source)) is ErrorCode.SEGMENT_NOT_FOUND
        assert await code_of(peer.ask(m.GetSegment(0, "raw/source"), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
        again = await peer.create_segment("raw/source")
        await peer.store(again, b"other")
        await stored(run, container)
    for _ in range(2):
        async with scenario.running(container=container) as run, run.peer() as peer:
            assert await peer.read_all(target) == expected
            assert (await peer.ask(request, m.SegmentInfo)).length == 8500
            info = await peer.info(target)
            assert info.event_count == 12


@pytest.mark.asyncio
async def test_a_merge_by_name_can_be_repeated(scenario: Scenario) -> None:
    """Behaviour 20: also when the name is gone because of it, and after a restart; any other name is an error."""
    async with scenario.running() as run, run.peer() as peer:
        target, source = await peer.create_segment("raw/target"), await peer.create_segment("raw/source")
        other = await peer.create_segment("raw/other")
        await peer.store(source, b"bytes")
        await peer.ask(m.SealSegment(source), m.SegmentInfo)
        request = m.MergeSegment(target_id=target, source_id=0, source="raw/source")
        for _ in range(2):
            assert (await peer.ask(request, m.SegmentInfo)).length == 5
    async with scenario.running() as run, run.peer() as peer:
        assert (await peer.ask(request, m.SegmentInfo)).length == 5
        for target_id, name in ((other, "raw/source"), (target, "raw/none"), (target, "")):
            wrong = m.MergeSegment(target_id=target_id, source_id=0, source=name)
            assert await code_of(peer.ask(wrong, m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND


async def target_and_sealed_source(peer: Peer) -> tuple[int, int]:
    """Make an empty segment, and one with ten bytes that can be merged into it."""
    target, source = await peer.create_segment("raw/target"), await peer.create_segment("raw/source")
    await peer.store(source, b"0123456789")
    await peer.ask(m.SealSegment(source), m.SegmentInfo)
    return target, source


@pytest.mark.asyncio
async def test_a_merge_is_the_last_thing_that_happens_to_its_source(scenario: Scenario) -> None:
    """Behaviour 20: truncating or deleting the source after a merge that is queued takes nothing from the target."""
    async with scenario.running() as run, run.peer() as peer:
        target, source = await target_and_sealed_source(peer)
        scenario.log.is_stalled = True
        cut = await peer.start(m.TruncateSegment(source, 2))
        merge = await peer.start(m.MergeSegment(target_id=target, source_id=source))
        await peer.ask(m.ListStreams("", "", 10), m.StreamList)
        scenario.log.resume()
        await peer.reply(cut, m.SegmentInfo)
        await peer.reply(merge, m.SegmentInfo)
        assert await peer.read_all(target) == b"23456789"


@pytest.mark.asyncio
async def test_what_is_being_merged_can_be_neither_truncated_nor_deleted(scenario: Scenario) -> None:
    """Behaviour 20: the same, with the merge in front."""
    async with scenario.running() as run, run.peer() as peer:
        target, source = await target_and_sealed_source(peer)
        scenario.log.is_stalled = True
        async with run.peer() as gone:
            await gone.start(m.MergeSegment(target_id=target, source_id=source))
            await gone.ask(m.ListStreams("", "", 10), m.StreamList)
        merge = await peer.start(m.MergeSegment(target_id=target, source_id=source))
        cut, delete = await peer.start(m.TruncateSegment(source, 2)), await peer.start(m.DeleteSegment(source))
        await peer.ask(m.ListStreams("", "", 10), m.StreamList)
        scenario.log.resume()
        assert await code_of(peer.reply(cut, m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
        assert await code_of(peer.reply(delete, m.Done)) is ErrorCode.SEGMENT_NOT_FOUND
        await peer.reply(merge, m.SegmentInfo)
        assert await peer.read_all(target) == b"0123456789"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_what_the_log_refuses_leaves_no_mark(scenario: Scenario) -> None:
    """Behaviour 44: a seal or an opening that found no room in the log has neither sealed nor fenced anything."""
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        writer = await peer.open_writer("w", segment_id)
        fields = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch}
        await peer.store(segment_id, bytes(8 * KIB))
        scenario.log.capacity_bytes = scenario.log.size_bytes
        for request, kind in (
            (m.OpenWriter("w", [segment_id], 0), m.WriterOpened),
            (m.SealSegment(segment_id), m.SegmentInfo),
            (m.DeleteSegment(segment_id), m.Done),
        ):
            assert await code_of(peer.ask(request, kind)) is ErrorCode.NO_SPACE
        scenario.log.capacity_bytes = MIB
        await peer.store(segment_id, b"x", event_number=1, **fields)


@pytest.mark.asyncio
async def test_no_request_makes_or_changes_an_internal_segment(run: Run, peer: Peer) -> None:
    """Each is refused by an error that says why; reading stays possible."""
    internal = await internal_segment(run.container, "kept", "a", b"content")
    number = internal.segment_id
    raw = await peer.create_segment("raw/a")
    for request, kind in (
        (m.SealSegment(number), m.SegmentInfo),
        (m.TruncateSegment(number, 3), m.SegmentInfo),
        (m.DeleteSegment(number), m.Done),
        (m.MergeSegment(target_id=number, source_id=raw), m.SegmentInfo),
        (m.MergeSegment(target_id=raw, source_id=number), m.SegmentInfo),
        (set_attribute(number, "key", expected=None, value=b"value"), m.Attribute),
    ):
        with pytest.raises(RefusedError, match="internal") as refused:
            await peer.ask(request, kind)
        assert refused.value.reply.code == ErrorCode.INVALID_ARGUMENT
        assert not refused.value.reply.retriable
    assert await peer.settled(await peer.append(number, b"more")) == [ErrorCode.INVALID_ARGUMENT]
    assert await code_of(peer.create_segment("#kept/b")) is ErrorCode.INVALID_NAME

    info = await peer.ask(m.GetSegment(0, "#kept/a"), m.SegmentInfo)
    assert (info.segment_id, info.start_offset, info.length, info.sealed) == (number, 0, 7, 0)
    assert await peer.read_all(number) == b"content"


@pytest.mark.asyncio
async def test_internal_segments_are_neither_listed_nor_counted(scenario: Scenario) -> None:
    """Also not those that are in the checkpoint; a name of theirs is free again when they are deleted."""
    options = replace(QUIET, idle_bytes_max=0)
    async with scenario.running(container=options) as run, run.peer() as peer:
        container = run.container
        for number in range(5):
            await internal_segment(container, "kept", f"{number}", b"content")
        await peer.create_segment("raw/a")
        await run.opened.flusher.flush()
        await run.opened.flusher.checkpoint()
        await peer.create_segment("raw/b")
        await internal_segment(container, "kept", "new")
        with pytest.raises(SegmentExistsError):
            await internal_segment(container, "kept", "new")

        for prefix, names in (("", ["raw/a", "raw/b"]), ("raw/a", ["raw/a"]), ("#", []), ("#kept/", [])):
            for after in ("", "#kept/2"):
                page = await peer.ask(m.ListSegments(prefix, after, 2), m.SegmentList)
                assert ([segment.name for segment in page.segments], page.more) == (names, 0)
        assert run.state.user_segment_count == 2
        await peer.ask(m.DeleteSegment((await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)).segment_id), m.Done)
    async with scenario.running(container=options) as run:
        container = run.container
        assert len(container.state.segments) == 7
        assert run.state.user_segment_count == 1
        with container.state.segments.pin(["#kept/0"]):
            kept = container.state.segments.find("#kept/0")
            assert kept is not None
            await container.decide(m.SegmentDeleted(kept.segment_id))
        await internal_segment(container, "kept", "0")
        assert run.state.user_segment_count == 1


@pytest.mark.asyncio
async def test_applying_decisions_reads_nothing(scenario: Scenario) -> None:
    """What they are about stays in memory, also when who asked is gone: a failed read would have nobody to go to."""
    options = replace(QUIET, idle_bytes_max=0)
    async with scenario.running(container=options) as run, run.peer() as peer:
        container = run.container
        async with run.peer() as gone:
            ids = [await gone.create_segment(f"raw/{number}") for number in range(6)]
            for segment_id in ids:
                await gone.store(segment_id, b"x" * 100)
            await gone.ask(m.SealSegment(ids[4]), m.SegmentInfo)
            for name in ("seal", "update", "scale", "cut", "truncate", "delete"):
                await gone.ask(m.CreateStream(f"a/{name}", 1, ""), m.StreamInfo)
            await gone.ask(m.SealStream("a/delete"), m.StreamInfo)
            part = (await gone.ask(m.GetStream("a/scale"), m.StreamInfo)).segments[0].segment_id
            cut = (await gone.ask(m.GetStream("a/cut"), m.StreamInfo)).segments[0].segment_id
            named, unnamed = await gone.open_writer("w1", ids[0]), await gone.open_writer("", ids[0])
            await gone.open_writer("w2", ids[0])
            await run.opened.flusher.flush()
            await run.opened.flusher.checkpoint()
            await gone.create_segment("raw/last")  # the log holds its last batch

            scenario.log.is_stalled = True
            requests: list[m.Message] = [
                m.CreateSegment("raw/new"),
                m.SealSegment(ids[0]),
                m.TruncateSegment(ids[1], 50),
                m.DeleteSegment(ids[2]),
                m.MergeSegment(target_id=ids[3], source_id=ids[4]),
                set_attribute(ids[5], "key", expected=None, value=b"value"),
                m.OpenWriter("w2", [ids[0]], 0),
                m.OpenWriter("w3", [ids[0]], 0),
                m.CreateStream("a/new", 2, ""),
                m.SealStream("a/seal"),
                m.UpdateStream("a/update", '{"tags": ["x"]}'),
                m.ScaleStream("a/scale", [part], [m.KeyRangeRecord(0, 9), m.KeyRangeRecord(10, KEY_SPACE - 1)]),
                m.SaveCuts("a/cut", [m.NamedCut(1, "bookmark", [m.SavedPosition(cut, 0, 0)])]),
                m.DeleteStream("a/delete"),
            ]
            for request in requests:
                await gone.start(request)
            control = WriterCommands(container)
            expired = control.expire(marked=[named.writer_number], forgotten=[unnamed.writer_number])
            async with asyncio.timeout(PATIENCE_S):
                while len(container.in_flight) < len(requests) + 1:
                    await peer.ask(m.ListStreams("", "", 10), m.StreamList)
        # Numbers that are on their way lie below those of the checkpoint now.
        await run.opened.flusher.checkpoint()
        gc.collect()
        here, reads = threading.get_ident(), []
        scenario.files.trace(lambda sql: reads.append(sql) if threading.get_ident() == here else None)
        scenario.log.resume()
        async with asyncio.timeout(PATIENCE_S):
            await expired
            while container.in_flight:
                await peer.ask(m.ListStreams("", "", 10), m.StreamList)
        assert reads == []
        assert (await peer.info(ids[3])).length == 200
