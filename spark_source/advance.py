"""The end of a micro-batch within its limits, in segments of any streams."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from millrace.client.read.segment_scan import SegmentScan
from millrace.model.position import Mark
from millrace.model.shares import shares_of

from .limits import share
from .snapshot import Marks

T = TypeVar("T")

Scan = Callable[[int], SegmentScan]


async def advance(
    scan: Scan, start: Marks, end: Marks, *, max_events: int | None, max_bytes: int | None, turn: int
) -> dict[int, Mark]:
    """Return the end of a batch in each segment, from one mark towards another, within the limits of all of them.

    Events are counted exactly, and a batch may end inside a block for them. Bytes are those of stored blocks; a batch
    ends at block borders for them, and exceeds its limit only if a single block does.

    Args:
        turn: the number of the batch; it determines which segment comes first, and gets at least one event and one
            block, so that none starves.
    """
    waiting = [segment_id for segment_id in sorted(start) if start[segment_id].position < end[segment_id].position]
    planned_end = dict(end)
    if not waiting:
        return planned_end
    lead = waiting[turn % len(waiting)]
    if max_events is not None:
        counts = {each: end[each].events - start[each].events for each in waiting}
        planned_end |= await _advance_events(scan, start, end, counts, limit=max_events, lead=lead)
    if max_bytes is not None:
        sizes = {each: planned_end[each].offset - start[each].offset for each in waiting}
        by_bytes = await _advance_bytes(scan, start, planned_end, sizes, limit=max_bytes, lead=lead)
        planned_end |= {each: min(planned_end[each], mark) for each, mark in by_bytes.items()}
    return planned_end


async def of_each(segment_ids: Iterable[int], ask: Callable[[int], Awaitable[T]]) -> dict[int, T]:
    """Return the answer for each segment, with all requests sent concurrently."""
    asked = list(segment_ids)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))


async def _advance_events(
    scan: Scan, start: Marks, end: Marks, counts: Mapping[int, int], *, limit: int, lead: int
) -> dict[int, Mark]:
    shares = share(limit, counts, lead=lead)
    return await of_each(
        shares,
        lambda segment_id: scan(segment_id).after_events(
            start=start[segment_id], end=end[segment_id], count=shares[segment_id]
        ),
    )


async def _advance_bytes(
    scan: Scan, start: Marks, end: Marks, sizes: dict[int, int], *, limit: int, lead: int
) -> dict[int, Mark]:
    if sum(sizes.values()) <= limit:
        return {}

    def after_bytes(segment_id: int, size_bytes: int) -> Awaitable[Mark]:
        return scan(segment_id).after_bytes(start=start[segment_id], end=end[segment_id], size_bytes=size_bytes)

    first = await after_bytes(lead, shares_of(limit, sizes)[lead])
    if first == start[lead]:
        first = await scan(lead).after_block(start=start[lead], end=end[lead])
    left = limit - (first.offset - start[lead].offset)
    shares = shares_of(max(0, left), {each: size for each, size in sizes.items() if each != lead})
    return {lead: first, **await of_each(shares, lambda segment_id: after_bytes(segment_id, shares[segment_id]))}
