"""What the controller accepts and refuses, on a real container."""

import asyncio

import pytest

from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.server.errors import (
    InvalidArgumentError,
    SegmentSealedError,
    StreamNotSealedError,
    StreamSealedError,
)
from millrace.wire import messages as m
from tests.server.streams.containers import WHOLE, Streams, halves

LAST = KEY_SPACE - 1
HALF = KEY_SPACE // 2


@pytest.mark.asyncio
async def test_scaling_seals_and_creates_in_one_step(streams: Streams) -> None:
    """Behaviours 6, 22: the old segment refuses appends, the new ones take them; those before are all there."""
    stream = streams.controller.find("a/b")
    (old,) = stream.segment_ids
    await streams.append(old, b"before")
    await streams.controller.scale("a/b", sealed_ids=[old], ranges=halves(), cause="asked for")

    assert stream.epoch == 1
    assert [part.key_range for part in stream.open_parts] == [KeyRange.inclusive(*each) for each in halves()]
    with pytest.raises(SegmentSealedError):
        await streams.append(old, b"after")
    for part in stream.open_parts:
        await streams.append(part.segment_id, b"after")
    info = streams.controller.describe(stream, replaced_from=0)
    assert [(s.epoch, s.sealed_epoch, s.length, s.sealed) for s in info.segments] == [
        (1, 0, 5, 0),
        (1, 0, 5, 0),
        (0, 1, 6, 1),
    ]


@pytest.mark.asyncio
async def test_the_same_scale_again_is_a_no_op(streams: Streams) -> None:
    """Behaviour 23: also while the first one is under way, and after the next one."""
    stream = streams.controller.find("a/b")
    (old,) = stream.segment_ids
    both = [streams.controller.scale("a/b", sealed_ids=[old], ranges=halves(), cause="x") for _ in range(2)]
    await asyncio.gather(*both)
    assert stream.epoch == 1

    new = [part.segment_id for part in stream.open_parts]
    await streams.controller.scale("a/b", sealed_ids=new, ranges=WHOLE, cause="x")
    await streams.controller.scale("a/b", sealed_ids=[old], ranges=halves(), cause="x")
    await streams.controller.scale("a/b", sealed_ids=list(reversed(new)), ranges=WHOLE, cause="x")
    assert stream.epoch == 2


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [m.KeyRangeRecord(0, LAST - 1)],
        [m.KeyRangeRecord(1, LAST)],
        [m.KeyRangeRecord(0, HALF), m.KeyRangeRecord(HALF, LAST)],
        [m.KeyRangeRecord(0, HALF - 1), m.KeyRangeRecord(HALF + 1, LAST)],
        [m.KeyRangeRecord(0, LAST), m.KeyRangeRecord(5, 4)],
        [*WHOLE, *WHOLE],
    ],
)
@pytest.mark.asyncio
async def test_ranges_that_do_not_fit_are_refused(streams: Streams, ranges: list[m.KeyRangeRecord]) -> None:
    """Behaviour 23: ranges that do not cover exactly the sealed ones are refused."""
    stream = streams.controller.find("a/b")
    with pytest.raises(InvalidArgumentError, match="cover exactly"):
        await streams.controller.scale("a/b", sealed_ids=stream.segment_ids, ranges=ranges, cause="x")
    assert stream.epoch == 0
    await streams.append(stream.segment_ids[0], b"still open")


@pytest.mark.asyncio
async def test_segments_that_are_not_open_cannot_be_sealed(streams: Streams) -> None:
    stream = streams.controller.find("a/b")
    (old,) = stream.segment_ids
    for sealed_ids in ([], [old, old], [old, 999]):
        with pytest.raises(InvalidArgumentError, match="open ones"):
            await streams.controller.scale("a/b", sealed_ids=sealed_ids, ranges=halves(), cause="x")
    await streams.controller.scale("a/b", sealed_ids=[old], ranges=halves(), cause="x")
    with pytest.raises(InvalidArgumentError, match="open ones"):
        await streams.controller.scale("a/b", sealed_ids=[old], ranges=WHOLE, cause="x")


@pytest.mark.asyncio
async def test_a_seal_waits_for_a_scale_and_seals_its_segments_too(streams: Streams) -> None:
    """Behaviour 21: nothing is stored after the seal of a stream, nor in segments that were created meanwhile."""
    stream = streams.controller.find("a/b")
    (old,) = stream.segment_ids
    scaling = asyncio.create_task(streams.controller.scale("a/b", sealed_ids=[old], ranges=halves(), cause="x"))
    await asyncio.sleep(0)
    await asyncio.gather(scaling, streams.controller.seal("a/b"))

    assert stream.sealed
    assert all(streams.opened.container.segment(segment_id).sealed for segment_id in stream.segment_ids)
    for part in stream.open_parts:
        with pytest.raises(SegmentSealedError):
            await streams.append(part.segment_id, b"too late")
    with pytest.raises(StreamSealedError):
        await streams.controller.scale(
            "a/b", sealed_ids=[part.segment_id for part in stream.open_parts], ranges=WHOLE, cause="x"
        )


@pytest.mark.asyncio
async def test_only_a_sealed_stream_is_deleted_with_all_that_it_ever_had(streams: Streams) -> None:
    """Behaviours 19, 21: nothing old shines through a stream of the same name."""
    stream = streams.controller.find("a/b")
    await streams.append(stream.segment_ids[0], b"old")
    await streams.controller.scale("a/b", sealed_ids=stream.segment_ids, ranges=halves(), cause="x")
    with pytest.raises(StreamNotSealedError):
        await streams.controller.delete("a/b")
    await streams.controller.seal("a/b")
    assert await streams.controller.delete("a/b")
    assert not await streams.controller.delete("a/b")
    assert not streams.opened.container.state.segments

    again, created = await streams.controller.create("a/b", segment_count=1, configuration="")
    assert created
    assert streams.controller.describe(again).segments[0].length == 0
    assert (again.epoch, again.cuts) == (0, {})


@pytest.mark.asyncio
async def test_a_truncation_keeps_empty_segments_after_the_cut(streams: Streams) -> None:
    """Behaviour 26: a cut through a segment that never held anything stays good while it is not passed."""
    controller = streams.controller
    stream = controller.find("a/b")
    (old,) = stream.segment_ids
    await streams.append(old, bytes(10))
    await streams.append(old, bytes(10))
    await controller.scale("a/b", sealed_ids=[old], ranges=WHOLE, cause="x")
    empty = stream.segment_ids[-1]
    await controller.scale("a/b", sealed_ids=[empty], ranges=halves(), cause="x")

    await controller.truncate("a/b", [m.SavedPosition(old, 10)])
    assert empty in stream.segment_ids
    await controller.truncate("a/b", [m.SavedPosition(empty, 0)])
    assert streams.opened.container.segment(old).start_offset == 20


@pytest.mark.asyncio
async def test_a_truncation_to_where_successors_begin_keeps_a_cut_through_the_ends_good(streams: Streams) -> None:
    """Behaviour 26: a consumer who read all that was replaced has lost nothing, however often it was replaced."""
    controller = streams.controller
    stream = controller.find("a/b")
    (old,) = stream.segment_ids
    await streams.append(old, bytes(10))
    await controller.scale("a/b", sealed_ids=[old], ranges=halves(), cause="x")
    empty = [part.segment_id for part in stream.open_parts]
    await controller.scale("a/b", sealed_ids=empty, ranges=WHOLE, cause="x")
    new = stream.segment_ids[-1]

    await controller.truncate("a/b", [m.SavedPosition(new, 0)])
    assert stream.segment_ids == [old, *empty, new]
    for cut in ([(old, 10)], [(segment_id, 0) for segment_id in empty], [(new, 0)]):
        positions = [m.SavedPosition(*position, 0) for position in cut]
        await controller.save_cuts("a/b", [m.NamedCut(m.CutKind.CURSOR, "mark", positions)])

    await streams.append(new, bytes(10))
    await controller.truncate("a/b", [m.SavedPosition(new, 10)])
    assert stream.segment_ids == [new]
