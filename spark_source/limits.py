"""Sharing what one micro-batch may hold among the segments of a stream; pure."""

from collections.abc import Mapping

from millrace.model.shares import shares_of


def share(limit: int, waiting: Mapping[int, int], *, lead: int | None = None) -> dict[int, int]:
    """Return how much of a limit each segment gets: in proportion to what waits in it, and exactly the limit in all.

    Where all that waits fits, each gets what waits. So segments that lag catch up together, and the event times of one
    segment are near to those of the others.

    Args:
        lead: a segment that gets at least 1, if anything waits in it.
    """
    shares = shares_of(limit, waiting)
    if lead is not None and waiting.get(lead, 0) > 0 and shares[lead] == 0:
        richest = max(shares, key=lambda segment_id: (shares[segment_id], -segment_id))
        if shares[richest] > 0:
            shares[richest] -= 1
            shares[lead] = 1
    return shares
