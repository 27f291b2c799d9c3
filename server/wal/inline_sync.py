"""Policy for inline sync: when the event loop writes and syncs a batch itself, instead of the log thread.

Theory. Waking the log thread, and being woken by it, costs about as much as a good disk takes to sync a small batch. So
while one peer sends one item at a time, the loop writes and syncs it, having nothing else to do. An item is an append,
a decision, or a whole transaction from its beginning to its commit: whatever is gathered in one turn of the loop for
one batch. But a sync blocks all peers of the loop. So the loop does it only while all of this holds, and the thread
does it otherwise:

    the log is idle, and the batch is small and alone at the end of the loop's turn
    the batch before was alone, too      with more to write, the loop can work while the disk syncs
    no other peer has sent since then    another peer waits at most for the one sync that began before it sent
    no sync was slow lately              a sync slower than `SLOW_S`, of loop or thread, is followed by a pause of
                                         `PAUSE_FACTOR` times as long

A sync cannot be interrupted: a disk that stalls for a second while the loop waits for it blocks all peers for that
second. The pause bounds how often: over a long time the loop waits for slow syncs at most for one part in
`PAUSE_FACTOR`.
"""

from typing import Final

SLOW_S: Final = 0.002
"""The longest acceptable delay of another peer: waking a thread twice takes a twentieth of this."""
PAUSE_FACTOR: Final = 20


class InlineSyncPolicy:
    """Decides from the recent activity of the log whether the loop may write the next batch itself."""

    __slots__ = ("_is_shared", "_paused_until_s", "_was_lone")

    def __init__(self) -> None:
        self._was_lone = True
        self._is_shared = False
        self._paused_until_s = 0.0

    def allows(self, now_s: float) -> bool:
        """Return whether the loop may write a small batch that is alone."""
        return self._was_lone and not self._is_shared and now_s >= self._paused_until_s

    def share(self) -> None:
        """Note that the loop serves several peers: the next batch is the thread's."""
        self._is_shared = True

    def wrote(self, *, is_alone: bool, duration_s: float, now_s: float) -> None:
        """Record a batch, of the loop or the thread, and the duration of its write and sync.

        Args:
            is_alone: whether it was one run, or was gathered in one turn of the loop.
        """
        self._was_lone = is_alone
        self._is_shared = False
        if duration_s > SLOW_S:
            self._paused_until_s = max(self._paused_until_s, now_s + PAUSE_FACTOR * duration_s)
