"""Values that one after the other are there, each once: whether what was told of them fits.

Each operation that needs a value makes it be there at one instant between its call and its answer. So it was there at
least from the first answer of its operations to the last call; two values that were there at least some time cannot
have been so at the same time (Gibbons and Korach, 1997).
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from .operations import NEVER, Operation

Value = TypeVar("Value", bound=Hashable)


@dataclass(slots=True)
class Group:
    """All about one value.

    Attributes:
        ended: the first answer of the group.
        called: the last call of the group.
        ended_by, called_by: the operations of these.
    """

    ended: int = NEVER
    called: int = -1
    ended_by: Operation | None = None
    called_by: Operation | None = None

    def add(self, called: int, answered: int, operation: Operation | None) -> None:
        """Count an operation that needed the value."""
        if answered < self.ended:
            self.ended, self.ended_by = answered, operation
        if called > self.called:
            self.called, self.called_by = called, operation

    def surrounds(self, called: int, answered: int) -> bool:
        """Return whether the value was there all the time between a call and its answer."""
        return self.ended < called and answered < self.called

    @property
    def operations(self) -> list[Operation | None]:
        """The operations that say for how long it was there at least."""
        return [self.ended_by, self.called_by]


def clashes(groups: Mapping[Value, Group]) -> Iterator[tuple[Value, Value]]:
    """Yield pairs of values that were there at the same time; at least one, if there is any."""
    forward = [(group.ended, group.called, value) for value, group in groups.items() if group.ended < group.called]
    forward.sort(key=lambda zone: zone[:2])
    for (_, end, value), (start, _, other) in pairwise(forward):
        if start < end:
            yield value, other
    starts = [start for start, _, _ in forward]
    for value, group in groups.items():
        index = bisect_left(starts, group.called)
        if group.called < group.ended and index and group.ended < forward[index - 1][1]:
            yield value, forward[index - 1][2]
