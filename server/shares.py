"""A limit shared among identities, so that no identity can use up the places that others need.

The caller chooses the identity: the address of a host, or a name. An identity may take a place while it holds fewer
places than are free. So one identity alone gets half of the places, each of n greedy ones 1/(n+1), and an identity that
holds none gets a place while any is free. A place is never revoked.

(This is the dynamic threshold by which switches share the buffer of their ports: Choudhury and Hahne, 1998.)
"""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

Identity = TypeVar("Identity", bound=Hashable)


def has_room(*, bound: int, taken: int, held: int, more: int = 1) -> bool:
    """Return whether an identity may take more of a limit, given what it and all others hold.

    Args:
        bound, taken, more: places, bytes, or another unit.
        held: the part of `taken` that the identity holds.
    """
    # Equivalent to taking one place after the other while fewer are held than are free.
    return held + 2 * more - 1 <= bound - taken


class Shares(Generic[Identity]):
    """The places of one limit, and how many of them each identity holds. Independent of time and of the places' owners.

    Attributes:
        places_count: number of places; if it falls, holders keep their places.
    """

    def __init__(self, places_count: int) -> None:
        self.places_count = places_count
        self._held: Counter[Identity] = Counter()
        self._taken_count = 0

    def __len__(self) -> int:
        """Return how many places are taken."""
        return self._taken_count

    def count_of(self, identity: Identity) -> int:
        """Return how many places an identity holds."""
        return self._held[identity]

    def has_room(self, identity: Identity) -> bool:
        """Return whether an identity may take one more place."""
        return has_room(bound=self.places_count, taken=self._taken_count, held=self._held[identity])

    def take(self, identity: Identity) -> None:
        """Count a place as taken; the caller has checked the limit, or ignores it."""
        self._held[identity] += 1
        self._taken_count += 1

    def release(self, identity: Identity) -> None:
        """Release a place of an identity."""
        self._taken_count -= 1
        self._held[identity] -= 1
        if not self._held[identity]:
            del self._held[identity]
