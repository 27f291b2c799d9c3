"""Detects the use of a client in a child of the process that created it.

After a fork parent and child would write to the same socket, and both streams of frames would be garbage. The child
cannot repair that, so every use there raises one clear error and leaves the parent's connection alone.
"""

import os
from weakref import WeakSet

from millrace.client.errors import ForkedClientError


class ForkGuard:
    """Knows whether this process is the one that created the guard.

    Checking costs an attribute, not a system call: a hook updates the guards of a child after the fork.
    """

    __slots__ = ("__weakref__", "forked")

    def __init__(self) -> None:
        self.forked = False
        _guards.add(self)

    def check(self) -> None:
        """Raise `ForkedClientError` in a child of the process that made the guard."""
        if self.forked:
            raise ForkedClientError


_guards: WeakSet[ForkGuard] = WeakSet()


def _set_guards() -> None:
    for guard in _guards:
        guard.forked = True


os.register_at_fork(after_in_child=_set_guards)
