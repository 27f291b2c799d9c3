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
# An answer out of memory takes tens of microseconds; one that waits for a stalled disk may take its time-out.
_REQUEST_BUCKETS_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# From a lone small append to the largest batch: how well group commit works.
_BATCH_BUCKETS_BYTES: Final = tuple(4**power for power in range(4, 14))


class Series:
    """How often values were how large; for one thread at a time.

    It takes a tenth of the time of the library's histogram, which is for any number of threads: it is asked with each
    batch of the log.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the counts as Prometheus wants them: each with those of the smaller buckets."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        counts = accumulate(self._counts)
        family.add_metric(labels, buckets=list(zip(bounds, counts, strict=True)), sum_value=self._sum)


class Histogram(Series, Collector):
    """A histogram without labels.

    Args:
        buckets: the upper bounds, ascending; what is above all of them is counted as well.
    """

    def __init__(self, name: str, documentation: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        super().__init__(buckets)
        self._name = name
        self._documentation = documentation
        registry.register(self)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the counts."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=[])
        self.add_to(family, [])
        yield family


class LabelledHistogram(Collector):
    """A histogram with one label, which has few values."""

    def __init__(
        self, name: str, documentation: str, *, label: str, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = buckets
        self._series: dict[str, Series] = {}
        registry.register(self)

    def series(self, value: str) -> Series:
        """Return what counts for a value of the label."""
        series = self._series.get(value)
        if series is None:
            series = self._series[value] = Series(self._bounds)
        return series

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the counts of each value of the label."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
        for value, series in list(self._series.items()):
            series.add_to(family, [value])
        yield family


class Metrics:
    """All metrics, in a registry of their own: several servers may live in one process (tests, demos)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.wal_sync_seconds = Histogram(
            "millrace_wal_sync_seconds",
            "Time of one write of the log with its sync: every acknowledgement waits for one. If it rises, look at the "
            "disk; `millrace doctor` measures it.",
            buckets=_SYNC_BUCKETS_S,
            registry=self.registry,
        )
        self.wal_batch_bytes = Histogram(
            "millrace_wal_batch_bytes",
            "Size of one batch of the log. Small batches with slow syncs: few appends arrive together.",
            buckets=_BATCH_BUCKETS_BYTES,
            registry=self.registry,
        )
        self.request_seconds = LabelledHistogram(
            "millrace_request_seconds",
            "Time from the arrival of a request to its answer, by message type. Of APPEND, compare with "
            "millrace_wal_sync_seconds: the rest is time in the queue. A READ that waits at a tail is not counted.",
            label="type",
            buckets=_REQUEST_BUCKETS_S,
            registry=self.registry,
        )
        self.wal_waits_total = Counter(
            "millrace_wal_waits_total",
            "Times that the log had to wait for a file to be made ready. If it keeps rising, disk or tier 2 are slow.",
            registry=self.registry,
        )
        self.wal_damages_total = Counter(
            "millrace_wal_damages_total",
            "Damaged ranges found when a log was recovered. Alert on any: `millrace verify` names them.",
            registry=self.registry,
        )
        self.task_failures_total = Counter(
            "millrace_task_failures_total",
            "Background tasks that ended when they should not, and the server with them. The log says why.",
            ["task"],
            registry=self.registry,
        )
