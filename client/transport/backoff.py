"""How long to wait before the next attempt.

Waits grow by a factor up to a limit, and each is shortened by a random part: clients that lost the same server do
not come back in the same instant.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The rule of the waits.

    Attributes:
        jitter: the part of each wait that is left to chance, 0 to 1.
    """

    first_s: float = 0.02
    factor: float = 2.0
    limit_s: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.limit_s:
            raise ValueError(f"first_s={self.first_s} must be above 0 and not above limit_s={self.limit_s}")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor} must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter} must be between 0 and 1")

    def wait_s(self, attempt: int, *, chance: float, retry_after_s: float = 0.0) -> float:
        """Return how long to wait after `attempt` failures in a row (from 1).

        Args:
            chance: a random number in [0, 1).
            retry_after_s: what the server asked for; never waited less.
        """
        # Beyond 64 doublings every wait is at its limit; a power that large would overflow a float some day.
        wait_s = min(self.limit_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return max(retry_after_s, wait_s * (1 - self.jitter * chance))
