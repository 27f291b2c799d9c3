"""The metrics of the server, declared in one place.

Every name ends in its unit; counters end in `_total`. Components receive one `Metrics` and touch only their own.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

# A sync takes 80 us on a good disk and is stalled for up to seconds on a bad day: both ends must be seen.
_SYNC_BUCKETS_S: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
# From a lone small append to the largest batch: how well group commit works.
_BATCH_BUCKETS_BYTES: Final = tuple(4**power for power in range(4, 14))


class Histogram(Collector):
    """How often values were how large; for one thread at a time.

    It takes a tenth of the time of the library's, which is for any number of threads: it is asked with each log batch.

    Args:
        buckets: the upper bounds, ascending; what is above all of them is counted as well.
    """

    def __init__(self, name: str, documentation: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the counts as Prometheus wants them: each with those of the smaller buckets."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        counts = accumulate(self._counts)
        yield HistogramMetricFamily(
            self._name, self._documentation, buckets=list(zip(bounds, counts, strict=True)), sum_value=self._sum
        )


class Metrics:
    """All metrics, in a registry of their own: several servers may live in one process (tests, demos)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.wal_sync_seconds = Histogram(
            "millrace_wal_sync_seconds",
            "Time of one log write with its sync.",
            buckets=_SYNC_BUCKETS_S,
            registry=self.registry,
        )
        self.wal_batch_bytes = Histogram(
            "millrace_wal_batch_bytes",
            "Size of one log batch.",
            buckets=_BATCH_BUCKETS_BYTES,
            registry=self.registry,
        )
        self.wal_waits_total = Counter(
            "millrace_wal_waits_total",
            "Times that the log had to wait for a file to be made ready.",
            registry=self.registry,
        )
        self.wal_damages_total = Counter(
            "millrace_wal_damages_total",
            "Damaged ranges found when a log was recovered.",
            registry=self.registry,
        )
        self.task_failures_total = Counter(
            "millrace_task_failures_total",
            "Background tasks that ended when they should not.",
            ["task"],
            registry=self.registry,
        )
