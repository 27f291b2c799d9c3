"""One run of the benchmarks: where it writes, how long it takes, and what it has measured already.

A ratio means something only when both its figures come from the same run. So a row asks the session for its floor or
its rival, which is measured on first use and remembered.
"""

import os
import platform
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Where a sync costs nothing, no durable figure means anything.
_VOLATILE = {"tmpfs", "ramfs", "devtmpfs"}


class AbsentError(Exception):
    """A rival cannot be measured here; the text names what to install."""


class Session:
    """What the rows of one run share."""

    def __init__(self, directory: Path, *, effort: float = 1.0) -> None:
        """Measure in `directory`, which is on the disk to be judged, and scale all counts and times by `effort`."""
        self.directory = directory
        self.effort = effort
        self._measured: dict[Hashable, Any] = {}
        self._absent: dict[Hashable, AbsentError] = {}

    def once(self, measure: Callable[["Session"], T]) -> T:
        """Return what `measure` returned the first time in this run.

        Raises:
            AbsentError: `measure` found its subject absent, now or the first time.
        """
        if measure in self._absent:
            raise self._absent[measure]
        if measure not in self._measured:
            try:
                self._measured[measure] = measure(self)
            except AbsentError as error:
                self._absent[measure] = error
                raise
        result: T = self._measured[measure]
        return result

    def count(self, full: int) -> int:
        """Scale a number of operations by the effort of this run; at least 1."""
        return max(1, int(full * self.effort))

    def seconds(self, full_s: float) -> float:
        """Scale a time budget by the effort of this run."""
        return full_s * self.effort


def machine(directory: Path) -> dict[str, str]:
    """Describe what the figures were taken on, and how busy it was."""
    filesystem = _filesystem(directory)
    warning = " (SYNCS ARE FREE HERE: durable figures mean nothing)" if filesystem in _VOLATILE else ""
    return {
        "processor": f"{os.cpu_count()} x {_processor()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "disk": f"{directory} on {filesystem}{warning}",
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _filesystem(directory: Path) -> str:
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    best_point, best_type = "", "unknown"
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, point, kind, *_ = line.split()
        # The last of equal mount points hides those before it.
        if directory.resolve().is_relative_to(point) and len(point) >= len(best_point):
            best_point, best_type = point, kind
    return best_type
