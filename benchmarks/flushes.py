"""Syncs as the block device sees them: what counts for programs that do not count their own.

Linux counts the flush requests of a whole disk in the sixteenth field of its `stat` file. The count is of everybody
on the machine, and the kernel may serve several waiting syncs with one flush; so it is an upper bound of nothing and a
lower bound of the syncs, but a rival that claims 500,000 durable events a second at no flushes is found out.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .report import SyncRate

_FLUSHES_FIELD = 15


class FlushMeter:
    """Counts the flushes of the disk under a folder between two moments."""

    __slots__ = ("_begin", "_begin_s", "_stat", "rate")

    def __init__(self, directory: Path) -> None:
        self._stat = _stat_file(directory)
        self._begin_s = time.monotonic()
        self._begin = self._read()
        # Set by `stop`; None where the device does not count.
        self.rate: SyncRate | None = None

    def stop(self) -> None:
        """Set `rate` from what passed since the meter was made."""
        end, elapsed_s = self._read(), time.monotonic() - self._begin_s
        if end is not None and self._begin is not None:
            self.rate = SyncRate((end - self._begin) / elapsed_s, "device")

    def _read(self) -> int | None:
        if self._stat is None:
            return None
        fields = self._stat.read_text(encoding="ascii").split()
        return int(fields[_FLUSHES_FIELD]) if len(fields) > _FLUSHES_FIELD else None


@contextlib.contextmanager
def counted_flushes(directory: Path) -> Iterator[FlushMeter]:
    """Count flushes during a block; read `rate` after it."""
    meter = FlushMeter(directory)
    yield meter
    meter.stop()


def _stat_file(directory: Path) -> Path | None:
    device = directory.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not entry.exists():
        return None
    # Flushes are counted for whole disks only; a partition's folder is inside its disk's.
    entry = entry.resolve()
    return (entry.parent if (entry / "partition").exists() else entry) / "stat"
