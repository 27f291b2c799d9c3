"""Gives log files back that no start can need any more.

Owns through which sequence the log was recycled since the start. Does not own what makes that safe: a published copy of
a checkpoint that needs the log only from a later sequence on (`checkpointer`).
"""

from millrace.server.wal import Log


class LogRecycler:
    """Recycles the log, never the same sequence twice."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.recycled_sequence = 0

    def recycle(self, through_sequence: int) -> None:
        """Give back the files that hold only batches up to this sequence."""
        assert through_sequence > self.recycled_sequence
        self._log.recycle(through_sequence)
        self.recycled_sequence = through_sequence
