"""When the event loop writes and syncs a batch itself, rather than the log thread.

Theory. To wake the log thread, and to be woken by it, costs about as much as a good disk takes to sync a small batch.
So while one peer sends one thing at a time, the loop writes and syncs it, having nothing else to do. Such a thing is an
append, a decision, or all of a transaction from its beginning to its commit: what is gathered in one turn of the loop
for one batch. But a sync holds up everybody whom the loop serves. So the loop does it only while all of this holds, and
the thread does it otherwise:

    the log is idle, and the batch is small and alone at the end of the loop's turn
    the batch before was alone, too      with more to write, the loop has work to do while the disk syncs
    nobody else was heard since then     another peer waits at most for the one sync that began before it spoke
    no sync was slow lately              a sync slower than `SLOW_S`, of loop or thread, is followed by a pause of
                                         `PAUSE_FACTOR` times as long

A sync cannot be interrupted: a disk that stalls for a second while the loop waits for it holds up all peers for that
second. The pause bounds how often: of any long time the loop waits for slow syncs at most for one part in
`PAUSE_FACTOR`.
"""

from typing import Final

SLOW_S: Final = 0.002
"""What another peer may have to wait: to wake a thread twice takes a twentieth of this."""
PAUSE_FACTOR: Final = 20


class InlineSyncPolicy:
    """Knows from what the log did last whether the loop may write the next batch itself."""

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
        """Note a batch, of the loop or the thread, and how long its write and sync took.

        Args:
            is_alone: whether it was one run, or what was gathered in one turn of the loop.
        """
        self._was_lone = is_alone
        self._is_shared = False
        if duration_s > SLOW_S:
            self._paused_until_s = max(self._paused_until_s, now_s + PAUSE_FACTOR * duration_s)
