"""Divides the limit of a micro-batch among the segments of a stream; pure."""

from collections.abc import Mapping

from millrace.model.shares import shares_of


def share(limit: int, waiting: Mapping[int, int], *, lead: int) -> dict[int, int]:
    """Return the share of each segment: in proportion to its waiting events or bytes, and in total exactly the limit.

    If everything fits, each gets what it has. So lagging segments catch up together, and the event times of one segment
    stay near those of the others.

    Args:
        lead: a segment with something waiting; it gets at least 1.
    """
    assert limit > 0
    assert waiting[lead] > 0
    shares = shares_of(limit - 1, {**waiting, lead: waiting[lead] - 1})
    return {**shares, lead: shares[lead] + 1}
