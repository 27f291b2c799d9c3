"""The bytes that idle entities may take in memory, shared by all caches of a container.

Idle is what is in memory only because it may be wanted again. Of all kinds together, what was not used for longest
leaves first. How much memory an entity takes is an estimate, made when it falls idle: nothing changes it from then on.
"""

from collections import OrderedDict
from typing import Final, Protocol

from millrace.wire.limits import MIB

IDLE_BYTES_MAX: Final = 128 * MIB


class Evicting(Protocol):
    """A cache that gives its idle entities up."""

    def evict(self, number: int) -> None:
        """Remove an idle entity from memory."""
        ...


class IdleBudget:
    """All idle entities of a container, in the order of their last use.

    Args:
        bytes_max: they take no more than this; 0 = none is kept.
    """

    def __init__(self, bytes_max: int = IDLE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        # With the size of each; the one that was used last at the end.
        self._sizes: OrderedDict[tuple[Evicting, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, cache: Evicting, number: int, *, size_bytes: int) -> None:
        """Take in an entity that has fallen idle, and evict those for which there is no room then."""
        assert size_bytes > 0, "or there is no end to them"
        self.remove(cache, number)
        self._sizes[cache, number] = size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self.bytes_max:
            (other, oldest), size = self._sizes.popitem(last=False)
            self.size_bytes -= size
            other.evict(oldest)

    def use(self, cache: Evicting, number: int) -> None:
        """Note that an idle entity was used."""
        self._sizes.move_to_end((cache, number))

    def remove(self, cache: Evicting, number: int) -> None:
        """Forget an entity that is not idle any more; one that was not is fine."""
        self.size_bytes -= self._sizes.pop((cache, number), 0)
