"""Measures a disk: writes to a zero-filled file, each synced, like those of the log."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.server.host.files import OsFile, OsFileSystem
from millrace.wire.limits import MIB

PROBE_FILE_BYTES: Final = 16 * MIB
SUSPICIOUS_SYNC_S: Final = 25e-6
"""A sync faster than this reached no known kind of disk, unless its cache is protected against power loss."""
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})

OnWrite = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedWrites:
    """Times of writes of one size, each followed by a sync; ascending, in seconds."""

    size_bytes: int
    latencies_s: tuple[float, ...]
    elapsed_s: float

    def percentile_s(self, percent: float) -> float:
        """Return the latency percentile of synced writes, in seconds."""
        return percentile(self.latencies_s, percent)

    @property
    def rate(self) -> float:
        """Synced writes per second."""
        return len(self.latencies_s) / self.elapsed_s

    @property
    def is_suspicious(self) -> bool:
        """Whether most syncs were faster than any disk."""
        return self.percentile_s(50) < SUSPICIOUS_SYNC_S


def percentile(ascending: tuple[float, ...] | list[float], percent: float) -> float:
    """Return the value that `percent` of a hundred values do not exceed."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * percent / 100))]


@contextlib.contextmanager
def probe_file(folder: Path) -> Iterator[OsFile]:
    """Yield a zero-filled, synced file in `folder`, which is removed at the end.

    Raises:
        NoSpaceError, OSError: the file cannot be created there.
    """
    descriptor, name = tempfile.mkstemp(prefix=".millrace-probe-", dir=folder)
    os.close(descriptor)
    path = Path(name)
    try:
        file = OsFileSystem().open(path)
        try:
            file.pwritev([bytes(PROBE_FILE_BYTES)], 0)
            file.datasync()
            yield file
        finally:
            file.close()
    finally:
        path.unlink()


def measure_synced_writes(
    file: OsFile, *, size_bytes: int, duration_s: float, count_max: int, on_write: OnWrite = lambda: None
) -> SyncedWrites:
    """Write and sync until the duration or the count is reached, cycling through the file."""
    assert 0 < size_bytes <= PROBE_FILE_BYTES
    payload = os.urandom(size_bytes)
    latencies_s: list[float] = []
    position = 0
    started_s = time.perf_counter()
    deadline_s = started_s + duration_s
    while len(latencies_s) < count_max and (before_s := time.perf_counter()) < deadline_s:
        file.pwritev([payload], position)
        file.datasync()
        latencies_s.append(time.perf_counter() - before_s)
        position = position + size_bytes if position + 2 * size_bytes <= PROBE_FILE_BYTES else 0
        on_write()
    elapsed_s = time.perf_counter() - started_s
    return SyncedWrites(size_bytes=size_bytes, latencies_s=tuple(sorted(latencies_s)), elapsed_s=elapsed_s)


def file_system_of(folder: Path) -> tuple[str, str]:
    """Return the type and the mount point of the file system of a folder; empty if unknown."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return "", ""
    resolved = folder.resolve()
    best = ("", "")
    for line in lines:
        _, escaped, kind, *_ = line.split()
        # The kernel writes spaces and the like as octal numbers.
        mount = escaped.encode().decode("unicode_escape")
        # Of two mounts on one point the later one hides the earlier.
        if resolved.is_relative_to(mount) and len(mount) >= len(best[1]):
            best = (kind, mount)
    return best
