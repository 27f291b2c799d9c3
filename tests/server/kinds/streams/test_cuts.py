"""Which cuts a stream keeps under a name."""

import pytest

from millrace.server.errors import CutInvalidError, CutTruncatedError, InvalidArgumentError, OffsetBeyondEndError
from millrace.wire import messages as m
from tests.server.streams.containers import WHOLE, Streams, halves


@pytest.mark.asyncio
async def test_cuts_are_checked_and_kept(streams: Streams) -> None:
    """Behaviour 26: the key space once, inside of the segments; a cut before the truncation is Truncated."""
    controller = streams.controller
    stream = controller.find("a/b")
    (old,) = stream.segment_ids
    await streams.append(old, bytes(10))
    await controller.scale("a/b", sealed_ids=[old], ranges=halves(), cause="x")
    low, high = (part.segment_id for part in stream.open_parts)

    async def save(*positions: tuple[int, int]) -> None:
        places = [m.SavedPosition(*each, 0) for each in positions]
        await controller.save_cuts("a/b", [m.NamedCut(m.CutKind.BOOKMARK, "mark", places)])

    for wrong in ([], [(low, 0)], [(old, 5), (low, 0)], [(low, 0), (high, 0), (high, 0)], [(12345, 0)]):
        with pytest.raises(CutInvalidError):
            await save(*wrong)
    with pytest.raises(OffsetBeyondEndError):
        await save((old, 11))
    await save((low, 0), (high, 0))
    await save((old, 5))
    assert [position.segment_id for position in stream.cuts[m.CutKind.BOOKMARK, "mark"].positions] == [old]

    await controller.truncate("a/b", [m.SavedPosition(low, 0), m.SavedPosition(high, 0)])
    with pytest.raises(CutTruncatedError):
        await save((old, 5))
    await save((old, 10))  # the same place
    await streams.append(low, bytes(10))
    await controller.truncate("a/b", [m.SavedPosition(low, 10), m.SavedPosition(high, 0)])
    assert stream.segment_ids == [low, high]
    with pytest.raises(CutTruncatedError):
        await save((old, 10))
    assert await controller.forget_cut("a/b", "mark", kind=m.CutKind.BOOKMARK)
    assert not await controller.forget_cut("a/b", "mark", kind=m.CutKind.BOOKMARK)


@pytest.mark.asyncio
async def test_names_and_kinds_of_cuts_are_checked(streams: Streams) -> None:
    positions = [m.SavedPosition(streams.controller.find("a/b").segment_ids[0], 0, 0)]
    for name, kind in (("", 1), ("x" * 256, 1), ("a\nb", 1), ("fine", 0), ("fine", 3)):
        with pytest.raises(InvalidArgumentError):
            await streams.controller.save_cuts("a/b", [m.NamedCut(kind, name, positions)])
    with pytest.raises(InvalidArgumentError, match="twice"):
        await streams.controller.save_cuts("a/b", [m.NamedCut(1, "fine", positions)] * 2)
    with pytest.raises(InvalidArgumentError, match="no cut"):
        await streams.controller.save_cuts("a/b", [])
    for cursors in (["a\nb"], ["one", "one"], [str(number) for number in range(1001)]):
        with pytest.raises(InvalidArgumentError):
            await streams.controller.create("a/new", segment_count=1, configuration="", cursors=cursors)


@pytest.mark.asyncio
async def test_several_cuts_are_kept_together_or_not_at_all(streams: Streams) -> None:
    """Behaviour 25: retention by consumption never runs between two registrations."""
    controller = streams.controller
    stream = controller.find("a/b")
    (segment_id,) = stream.segment_ids
    await streams.append(segment_id, bytes(10))
    fits, beyond = ([m.SavedPosition(segment_id, offset, 0)] for offset in (10, 11))
    with pytest.raises(OffsetBeyondEndError):
        await controller.save_cuts("a/b", [m.NamedCut(2, "one", fits), m.NamedCut(2, "other", beyond)])
    assert stream.cuts == {}
    before = streams.opened.container.state.sequence
    await controller.save_cuts("a/b", [m.NamedCut(2, "one", fits), m.NamedCut(1, "other", fits)])
    assert sorted(stream.cuts) == [(1, "other"), (2, "one")]
    assert streams.opened.container.state.sequence == before + 1


@pytest.mark.asyncio
async def test_a_cut_that_would_tear_a_segment_apart_is_refused(streams: Streams) -> None:
    """Behaviour 26: a segment is as a whole before a cut or after it, or a truncation would leave a hole."""
    controller = streams.controller
    stream, _ = await controller.create("a/c", segment_count=2, configuration="")
    low, high = stream.segment_ids
    await controller.scale("a/c", sealed_ids=[low, high], ranges=WHOLE, cause="x")
    (middle,) = (part.segment_id for part in stream.open_parts)
    await streams.write(middle, ["k"])
    await controller.scale("a/c", sealed_ids=[middle], ranges=halves(), cause="x")
    new_low, new_high = (part.segment_id for part in stream.open_parts)
    for pair in ((low, new_high), (new_low, high)):
        with pytest.raises(CutInvalidError, match=rf"segment {middle} would be before the cut and after it"):
            await controller.truncate("a/c", [m.SavedPosition(each, 0) for each in pair])
        positions = [m.SavedPosition(each, 0, 0) for each in pair]
        with pytest.raises(CutInvalidError):
            await controller.save_cuts("a/c", [m.NamedCut(m.CutKind.BOOKMARK, "x", positions)])
    assert stream.segment_ids == [low, high, middle, new_low, new_high]
    await controller.truncate("a/c", [m.SavedPosition(new_low, 0), m.SavedPosition(new_high, 0)])
    assert stream.segment_ids == [middle, new_low, new_high]
