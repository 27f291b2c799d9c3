"""The limits that a payment must pass to be told, which of them are tried, and how good alerts are."""

from collections.abc import Collection
from typing import Final, NamedTuple

SMALL_CENTS: Final = 200
"""A payment of so much, or less, may be that of a thief who tries whether a card works."""
KNOWN_PAYMENTS: Final = 5
"""Of a card with fewer payments nobody knows what is usual."""


class Limits(NamedTuple):
    """What a payment must pass to be told.

    Attributes:
        minutes: a payment is `tested` that comes at most so long after a small one,
        times: and is more than so many times as large as the mean of all payments of the card before it.
        kmh: a payment is `far apart` from the one before it if somebody had to be faster than that to make both.
    """

    minutes: int
    times: int
    kmh: int


TRIALS: Final = (Limits(5, 8, 1500), Limits(10, 6, 1200), Limits(20, 4, 900), Limits(60, 2, 400), Limits(240, 1, 200))
"""From cautious to eager."""


class Score(NamedTuple):
    """How good alerts are.

    Attributes:
        told: payments that were told.
        right: those of them that were disputed.
        disputed: all that were.
    """

    told: int
    right: int
    disputed: int

    @classmethod
    def of(cls, told: Collection[int], disputed: Collection[int]) -> "Score":
        """Compare the numbers of the payments that were told with the numbers of those that were disputed."""
        return cls(len(told), len(set(told) & set(disputed)), len(disputed))

    @property
    def precision(self) -> float:
        """The part of what was told that was disputed."""
        return self.right / self.told if self.told else 0.0

    @property
    def recall(self) -> float:
        """The part of what was disputed that was told."""
        return self.right / self.disputed if self.disputed else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        return 2 * self.right / (self.told + self.disputed) if self.right else 0.0
