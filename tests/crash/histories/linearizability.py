"""Whether a recorded history of concurrent operations could have happened one after the other.

A history is linearizable if each operation can be given one instant between its call and its answer such that, done in
the order of these instants, each gets the answer that it got. The search is the one of Wing and Gong (1993) with the
memory of Lowe (2017): it tries every operation that may come next, and never tries the same set of operations twice
from the same state. An operation without an answer may have happened at any instant after its call, or never.

What may come next and changes nothing comes next at once: if there is an order with it later, it can as well be here.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one client.

    Attributes:
        call: what was asked for.
        answer: what it got; None if it never got one, so that its outcome is unknown.
        called, answered: when, by one counter for all clients; `answered` is ignored without an answer.
    """

    client: int
    call: tuple[Any, ...]
    answer: tuple[Any, ...] | None
    called: int
    answered: int

    def __str__(self) -> str:
        until = "..." if self.answer is None else str(self.answered)
        return f"[{self.called:5}, {until:>5}] client {self.client}: {self.call} -> {self.answer}"


Step = Callable[[State, tuple[Any, ...], tuple[Any, ...] | None], State | None]
"""State, call and answer to the state after it; None if the call cannot get that answer in that state.

Without an answer it is the state after the call had whatever answer it gets there.
"""


def is_linearizable(history: Sequence[Operation], initial: State, step: Step[State]) -> bool:
    """Return whether the operations, all of them about one thing, could have happened one after the other."""
    operations = sorted(history, key=lambda operation: operation.called)
    ends = [float("inf") if operation.answer is None else operation.answered for operation in operations]
    required = sum(1 << place for place, operation in enumerate(operations) if operation.answer is not None)
    seen: set[tuple[int, State]] = set()
    # Sets of operations as bits, and the states after them, that are still to be continued.
    open_ends: list[tuple[int, State]] = [(0, initial)]
    while open_ends:
        done, state = open_ends.pop()
        if done & required == required:
            return True
        # What was called after another had its answer comes after that one.
        horizon = min(end for place, end in enumerate(ends) if not done >> place & 1)
        following: list[tuple[int, State]] = []
        for place, operation in enumerate(operations):
            if operation.called > horizon:
                break
            if done >> place & 1:
                continue
            after = step(state, operation.call, operation.answer)
            if after is None:
                continue
            if after != state:
                following.append((done | 1 << place, after))
            elif operation.answer is not None:
                following = [(done | 1 << place, state)]
                break
        # The first one called is tried first.
        for found in reversed(following):
            if found not in seen:
                seen.add(found)
                open_ends.append(found)
    return False
