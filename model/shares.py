"""Divides an amount among segments in proportion to their content."""

from collections.abc import Mapping


def shares_of(amount: int, held: Mapping[int, int]) -> dict[int, int]:
    """Return the share of each; in total the amount, or everything if that is less.

    The remainder of rounding goes to the largest fractions, the lower id first.
    """
    total = sum(held.values())
    if total <= amount:
        return dict(held)
    shares = {each: amount * size // total for each, size in held.items()}
    by_rest = sorted(held, key=lambda each: (-(amount * held[each] % total), each))
    for each in by_rest[: amount - sum(shares.values())]:
        shares[each] += 1
    return shares
