"""Eviction from a full cache: a segmented LRU, as a pure policy over keys and costs.

A new entry starts on *probation*. An entry that is reused becomes *protected*, up to a share of the budget; beyond that
the least recently used protected entry returns to probation, as its newest. Victims are taken from probation, oldest
first, and from the protected entries only when probation is empty.

So a scan, however long, flows through probation and evicts only entries that were used once; reused entries stay. A
plain LRU would be emptied by every reader that catches up on more than the budget. (2Q and ARC also remember evicted
entries; they protect only entries that miss a second time, and a miss here costs a read of tier 2.)
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class SegmentedLru(Generic[Key]):
    """Costs and order of the entries of a cache; the entries themselves are elsewhere."""

    __slots__ = ("_probation", "_protected", "budget_bytes", "protected_bytes", "protected_bytes_max", "size_bytes")

    def __init__(self, *, budget_bytes: int, protected_bytes_max: int) -> None:
        assert 0 <= protected_bytes_max < budget_bytes
        self.budget_bytes = budget_bytes
        self.protected_bytes_max = protected_bytes_max
        self.size_bytes = 0
        self.protected_bytes = 0
        # Oldest first.
        self._probation: OrderedDict[Key, int] = OrderedDict()
        self._protected: OrderedDict[Key, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def __iter__(self) -> Iterator[Key]:
        yield from self._probation
        yield from self._protected

    def __contains__(self, key: Key) -> bool:
        return key in self._probation or key in self._protected

    def admit(self, key: Key, cost: int) -> list[Key]:
        """Add an entry of at most the budget; return the victims, which are removed."""
        assert key not in self
        assert 0 < cost <= self.budget_bytes
        victims = []
        while self.size_bytes + cost > self.budget_bytes:
            victims.append(self._evict())
        self._probation[key] = cost
        self.size_bytes += cost
        return victims

    def use_again(self, key: Key) -> None:
        """Protect an entry, or mark a protected one as most recently used. An entry too big to be protected stays."""
        if key in self._protected:
            self._protected.move_to_end(key)
            return
        cost = self._probation[key]
        if cost > self.protected_bytes_max:
            self._probation.move_to_end(key)
            return
        del self._probation[key]
        self._protected[key] = cost
        self.protected_bytes += cost
        while self.protected_bytes > self.protected_bytes_max:
            oldest, cost = self._protected.popitem(last=False)
            self.protected_bytes -= cost
            self._probation[oldest] = cost

    def remove(self, key: Key) -> None:
        """Remove an entry that was dropped for another reason than its cost."""
        cost = self._probation.pop(key, 0)
        if not cost:
            cost = self._protected.pop(key)
            self.protected_bytes -= cost
        self.size_bytes -= cost

    def check(self) -> None:
        """Assert the invariants, in linear time."""
        assert not self._probation.keys() & self._protected.keys()
        assert self.protected_bytes == sum(self._protected.values()) <= self.protected_bytes_max
        assert self.size_bytes == sum(self._probation.values()) + self.protected_bytes <= self.budget_bytes

    def _evict(self) -> Key:
        if self._probation:
            key, cost = self._probation.popitem(last=False)
        else:
            key, cost = self._protected.popitem(last=False)
            self.protected_bytes -= cost
        self.size_bytes -= cost
        return key
