"""Sharing what one micro-batch may hold among the segments of a stream; pure."""

from collections.abc import Mapping


def share(limit: int, waiting: Mapping[int, int], *, lead: int | None = None) -> dict[int, int]:
    """Return how much of a limit each segment gets: in proportion to what waits in it, and exactly the limit in all.

    Where all that waits fits, each gets what waits. So segments that lag catch up together, and the event times of one
    segment are near to those of the others.

    Args:
        lead: a segment that gets at least 1, if anything waits in it.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {segment_id: limit * size // total for segment_id, size in waiting.items()}
    # What rounding left goes to those it took most from, the lower id first.
    by_rest = sorted(waiting, key=lambda segment_id: (-(limit * waiting[segment_id] % total), segment_id))
    for segment_id in by_rest[: limit - sum(shares.values())]:
        shares[segment_id] += 1
    if lead is not None and waiting.get(lead, 0) > 0 and shares[lead] == 0:
        richest = max(shares, key=lambda segment_id: (shares[segment_id], -segment_id))
        if shares[richest] > 0:
            shares[richest] -= 1
            shares[lead] = 1
    return shares
