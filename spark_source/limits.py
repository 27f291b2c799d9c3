"""Sharing what one micro-batch may hold among the segments of a stream; pure."""

from collections.abc import Mapping

from millrace.model.shares import shares_of


def share(limit: int, waiting: Mapping[int, int], *, lead: int) -> dict[int, int]:
    """Return how much of a limit each segment gets: in proportion to what waits in it, and exactly the limit in all.

    Where all that waits fits, each gets what waits. So segments that lag catch up together, and the event times of one
    segment are near to those of the others.

    Args:
        lead: a segment in which something waits; it gets at least 1.
    """
    assert limit > 0
    assert waiting[lead] > 0
    shares = shares_of(limit - 1, {**waiting, lead: waiting[lead] - 1})
    return {**shares, lead: shares[lead] + 1}
