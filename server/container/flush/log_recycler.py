"""Gives log files back that no start can need any more.

Owns through which sequence the log was recycled since the start. Does not own what makes that safe: a published copy of
a checkpoint that needs the log only from a later sequence on (`checkpointer`).
"""

from millrace.server.wal import Wal

from .selector import is_log_filling


class LogRecycler:
    """Recycles the log, never the same sequence twice."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self.recycled_sequence = 0

    @property
    def is_filling(self) -> bool:
        """Whether so much of the log is in use that bytes should be flushed soon."""
        return is_log_filling(size_bytes=self._wal.size_bytes, capacity_bytes=self._wal.capacity_bytes)

    @property
    def capacity_bytes(self) -> int:
        """What the log may grow to."""
        return self._wal.capacity_bytes

    @property
    def full_bytes(self) -> int:
        """Bytes of the log files that are full."""
        return self._wal.statistics().full_files * self._wal.file_size_bytes

    def recycle(self, through_sequence: int) -> None:
        """Give back the files that hold only batches up to this sequence."""
        assert through_sequence > self.recycled_sequence
        self._wal.recycle(through_sequence)
        self.recycled_sequence = through_sequence
