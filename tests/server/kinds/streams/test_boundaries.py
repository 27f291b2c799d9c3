"""Which places of a segment the server takes for borders of appends, on a real container."""

import asyncio
import random
from itertools import accumulate, pairwise

import pytest

from millrace.model.block_packing import pack_block
from millrace.server.errors import CutInvalidError, SegmentTruncatedError
from millrace.server.kinds.streams.boundaries import check_border
from millrace.wire import messages as m
from tests.server.container.histories import apply
from tests.server.streams.containers import Streams

pytestmark = pytest.mark.asyncio

BLOCKS_COUNT = 40


def blocks(*, seed: int) -> list[tuple[bytes, int]]:
    """Return blocks and how many events each has: small ones, and some of which only the header is read."""
    chance = random.Random(seed)
    counts = [chance.randint(1, 4) for _ in range(BLOCKS_COUNT)]
    sizes = [chance.choice([0, 3, 200, 200, 2_000, 8_000]) for _ in counts]
    return [(bytes(pack_block([bytes(size)] * count)), count) for size, count in zip(sizes, counts, strict=True)]


async def refusal(streams: Streams, segment_id: int, offset: int, event_index: int = 0) -> CutInvalidError | None:
    """Return why a place is no border, None if it is one."""
    container = streams.opened.container
    try:
        await check_border(container, container.segment(segment_id), offset=offset, event_index=event_index)
    except CutInvalidError as error:
        return error
    return None


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_place_inside_of_an_append_is_found_out(streams: Streams, *, flushed: bool) -> None:
    """Behaviour 26: event borders only, whether the index is fine or thinned, in memory or in tier 2."""
    (segment_id,) = streams.controller.find("a/b").segment_ids
    written = blocks(seed=1)
    for number, (block, count) in enumerate(written):
        await streams.append(segment_id, block, events=count)
        streams.clock.move(0.3)
        if flushed and number % 20 == 10:
            await streams.opened.flusher.flush()
    segment = streams.opened.container.segment(segment_id)
    if flushed:
        segment.index.evict(1, segment.flushed_offset)
    borders = list(accumulate((len(block) for block, _ in written), initial=0))
    chance = random.Random(2)
    for (start, end), (_, count) in zip(pairwise(borders), written, strict=True):
        assert await refusal(streams, segment_id, start) is None
        assert await refusal(streams, segment_id, start, count) is None
        assert await refusal(streams, segment_id, start, count + 1) is not None
        for offset in {start + 1, start + 8, chance.randint(start + 1, end - 1), end - 1}:
            error = await refusal(streams, segment_id, offset)
            assert error is not None
            assert error.start_offset == start
    assert await refusal(streams, segment_id, borders[-1]) is None
    assert await refusal(streams, segment_id, borders[-1], 1) is not None


async def test_the_error_names_the_borders_around(streams: Streams) -> None:
    (segment_id,) = streams.controller.find("a/b").segment_ids
    sizes = []
    for _ in range(3):
        await streams.write(segment_id, ["k"] * 5)
        sizes.append(streams.opened.container.segment(segment_id).length)
    for request in (
        streams.controller.truncate("a/b", [m.SavedPosition(segment_id, sizes[0] + 8)]),
        streams.controller.save_cuts("a/b", [m.NamedCut(1, "x", [m.SavedPosition(segment_id, sizes[0] + 8, 0)])]),
    ):
        with pytest.raises(CutInvalidError, match=f"before it is {sizes[0]}, the next one {sizes[1]}") as refused:
            await request
        assert (refused.value.start_offset, refused.value.length) == (sizes[0], sizes[2])
    assert streams.opened.container.segment(segment_id).start_offset == 0
    assert not streams.controller.find("a/b").cuts

    await streams.controller.truncate("a/b", [m.SavedPosition(segment_id, sizes[0])])
    await streams.controller.truncate("a/b", [m.SavedPosition(segment_id, 8)])  # it is gone: nothing is to be done
    assert streams.opened.container.segment(segment_id).start_offset == sizes[0]


async def test_bytes_have_no_borders(streams: Streams) -> None:
    """A byte stream is cut anywhere, like a file."""
    (segment_id,) = streams.controller.find("a/b").segment_ids
    for _ in range(3):
        await streams.append(segment_id, bytes(range(100)))
    for offset in (1, 99, 150, 300):
        await streams.controller.truncate("a/b", [m.SavedPosition(segment_id, offset)])
        assert streams.opened.container.segment(segment_id).start_offset == offset


async def test_after_bytes_that_are_no_events_no_border_is_known(streams: Streams) -> None:
    (segment_id,) = streams.controller.find("a/b").segment_ids
    await streams.write(segment_id, ["k"])
    first = streams.opened.container.segment(segment_id).length
    await streams.append(segment_id, b"MRBK" + bytes(200))
    await streams.append(segment_id, b"x" * 100)
    await streams.opened.flusher.flush()
    with pytest.raises(CutInvalidError, match=f"no append of events starts at offset {first}"):
        await streams.controller.truncate("a/b", [m.SavedPosition(segment_id, first + 8)])


async def test_what_goes_while_it_is_looked_at_is_not_cut_again(streams: Streams) -> None:
    """Behaviours 19, 26: a look that a truncation overtakes ends with what is true then."""
    (segment_id,) = streams.controller.find("a/b").segment_ids
    for _ in range(10):
        await streams.write(segment_id, ["k"] * 3)
    segment = streams.opened.container.segment(segment_id)
    size = segment.length // 10
    await streams.opened.flusher.flush()
    segment.index.evict(0, segment.length)

    looking = asyncio.create_task(streams.controller.truncate("a/b", [m.SavedPosition(segment_id, 4 * size + 8)]))
    await asyncio.sleep(0)
    apply(streams.opened.container.state, m.SegmentTruncated(segment_id, 5 * size))
    await looking
    assert segment.start_offset == 5 * size
    with pytest.raises(SegmentTruncatedError):
        await check_border(streams.opened.container, segment, offset=4 * size)
