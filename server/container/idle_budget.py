"""The bytes that idle entities may take in memory, shared by all caches of a container.

Idle is what is in memory only because it may be wanted again. Of all kinds together, what was not used for longest
leaves first. How much memory an entity takes is an estimate, made when it falls idle: nothing changes it from then on.

Nothing is evicted but by `trim`, which runs between two steps of the event loop, or between two batches of a recovery.
So within a step, an entity that was looked at is the one that is pinned: no second object for it can be loaded. Were it
evicted at once, a decision would be planned on one object, and the admitted view of another one be moved.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from millrace.wire.limits import MIB

IDLE_BYTES_MAX: Final = 128 * MIB


class EvictableCache(Protocol):
    """A cache that gives its idle entities up."""

    def evict(self, number: int) -> None:
        """Remove an idle entity from memory."""
        ...


class IdleBudget:
    """All idle entities of a container, in the order of their last use.

    Args:
        bytes_max: they take no more than this after `trim`; 0 = none is kept.

    Attributes:
        on_full: called once when they take more, until `trim` was called; has `trim` called after the current step.
    """

    def __init__(self, bytes_max: int = IDLE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.on_full: Callable[[], None] = lambda: None
        self._is_full = False
        # With the size of each; the one that was used last at the end.
        self._sizes: OrderedDict[tuple[EvictableCache, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, cache: EvictableCache, number: int, *, size_bytes: int) -> None:
        """Take in an entity that has fallen idle."""
        assert size_bytes > 0, "an entity without a size is never evicted"
        self.remove(cache, number)
        self._sizes[cache, number] = size_bytes
        self.size_bytes += size_bytes
        if self.size_bytes > self.bytes_max and not self._is_full:
            self._is_full = True
            self.on_full()

    def trim(self) -> None:
        """Evict the entities that were not used for longest, until the others fit."""
        self._is_full = False
        while self.size_bytes > self.bytes_max:
            (cache, oldest), size = self._sizes.popitem(last=False)
            self.size_bytes -= size
            cache.evict(oldest)

    def use(self, cache: EvictableCache, number: int) -> None:
        """Note that an idle entity was used."""
        self._sizes.move_to_end((cache, number))

    def remove(self, cache: EvictableCache, number: int) -> None:
        """Forget an entity that is not idle any more; one that was not is fine."""
        self.size_bytes -= self._sizes.pop((cache, number), 0)
