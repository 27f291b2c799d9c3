"""The metrics that the parts of the server count themselves, declared in one place.

Every name ends in its unit; counters end in `_total`. Components receive one `Metrics` and touch only their own; each
metric is for one thread at a time. `console.metrics` converts them to Prometheus metrics: its library is loaded with
the console only, since loading takes a twentieth of the startup time of a server.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

# A sync takes 80 us on a good disk and up to seconds on a stalled one: the buckets cover both ends.
_SYNC_BUCKETS_S: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
# A reply from memory takes tens of microseconds; one that waits for a stalled disk may take until its timeout.
_REQUEST_BUCKETS_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# From a lone small append to the largest batch: shows how well group commit works.
_BATCH_BUCKETS_BYTES: Final = tuple(4**power for power in range(4, 14))


class Series:
    """Counts of values by bucket; for one thread at a time.

    It takes a tenth of the time of the library's thread-safe histogram, which matters as it is updated with each batch
    of the log.

    Attributes:
        sum: of all values.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, int]]:
        """Return the counts as Prometheus wants them: each upper bound with the count of the values up to it."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class Metric:
    """The name and help of a metric.

    Attributes:
        label: name of the label, which has few values; empty for a metric without one.
    """

    def __init__(self, name: str, documentation: str, *, label: str = "") -> None:
        self.name = name
        self.documentation = documentation
        self.label = label


class Counter(Metric):
    """A number that only rises, or one for each value of a label."""

    def __init__(self, name: str, documentation: str, *, label: str = "") -> None:
        super().__init__(name, documentation, label=label)
        self._counts: dict[str, int] = {} if label else {"": 0}

    def increase(self, value: str = "", *, by: int = 1) -> None:
        """Add to the counter of a label value, or of the metric if it has no label."""
        self._counts[value] = self._counts.get(value, 0) + by

    def counts(self) -> Mapping[str, int]:
        """Return the count of each label value; without a label, under the empty one."""
        return dict(self._counts)


class Histogram(Metric):
    """A histogram, with one series for each value of its label, if it has one.

    Args:
        bounds: upper bounds of the buckets, ascending; larger values are counted as well.
    """

    def __init__(self, name: str, documentation: str, *, bounds: Sequence[float], label: str = "") -> None:
        super().__init__(name, documentation, label=label)
        self._bounds = bounds
        self._series: dict[str, Series] = {} if label else {"": Series(bounds)}

    def series(self, value: str = "") -> Series:
        """Return the series of a label value, or of the metric if it has no label."""
        series = self._series.get(value)
        if series is None:
            series = self._series[value] = Series(self._bounds)
        return series

    def all_series(self) -> Mapping[str, Series]:
        """Return the series of each label value; without a label, under the empty one."""
        return dict(self._series)


class Metrics:
    """All metrics of one server; several servers may live in one process (tests, demos), and each counts separately."""

    def __init__(self) -> None:
        self.wal_sync_seconds = Histogram(
            "millrace_wal_sync_seconds",
            "Time of one write of the log and its sync. Every acknowledgement waits for one. If it rises, check the "
            "disk; `millrace doctor` measures it.",
            bounds=_SYNC_BUCKETS_S,
        )
        self.wal_batch_bytes = Histogram(
            "millrace_wal_batch_bytes",
            "Size of one batch of the log. If batches are small and syncs slow, few appends arrive together.",
            bounds=_BATCH_BUCKETS_BYTES,
        )
        self.request_seconds = Histogram(
            "millrace_request_seconds",
            "Time from the arrival of a request to its reply, by message type. Compare APPEND with "
            "millrace_wal_sync_seconds: the difference is time in the queue. A READ that waits for new events is not "
            "counted.",
            label="type",
            bounds=_REQUEST_BUCKETS_S,
        )
        self.wal_waits_total = Counter(
            "millrace_wal_waits_total",
            "Times that the log had to wait for an empty file. If it keeps rising, the disk or tier 2 is too slow.",
        )
        self.wal_damages_total = Counter(
            "millrace_wal_damages_total",
            "Damaged ranges found when a log was recovered. Alert on any: `millrace verify` names them.",
        )
        self.store_requests_total = Counter(
            "millrace_store_requests_total",
            "Requests to the object store, by outcome. Each attempt counts. Alert if unavailable or refused keeps "
            "rising. busy means that the store rate-limits requests, full that it has no space or a quota is used up.",
            label="outcome",
        )
        self.store_request_seconds = Histogram(
            "millrace_store_request_seconds",
            "Time of one request to the object store, by kind, failed ones, too. A page of a listing is one request.",
            label="kind",
            bounds=_REQUEST_BUCKETS_S,
        )
        self.store_retries_total = Counter(
            "millrace_store_retries_total",
            "Requests to the object store that were sent again, because the previous attempt had no answer or "
            "was rate-limited.",
        )
        self.store_hedges_total = Counter(
            "millrace_store_hedges_total",
            "Requests to the object store that were sent a second time beside a slow first one, by kind. There are at "
            "most 5 for 100 requests of a kind. create is a batch of the log.",
            label="kind",
        )
        self.task_failures_total = Counter(
            "millrace_task_failures_total",
            "Background tasks that failed. The server then exits, too. See the log for the reason.",
            label="task",
        )

    @property
    def histograms(self) -> list[Histogram]:
        """All histograms."""
        return [each for each in vars(self).values() if isinstance(each, Histogram)]

    @property
    def counters(self) -> list[Counter]:
        """All counters."""
        return [each for each in vars(self).values() if isinstance(each, Counter)]
