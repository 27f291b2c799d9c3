"""The metrics that parts of the server count themselves, declared in one place.

Every name ends in its unit; counters end in `_total`. Components receive one `Metrics` and touch only their own; each
metric is for one thread at a time. What they count is made into the metrics of Prometheus by `console.metrics`: its
library is loaded with the console only, since that takes as long as a twentieth of the start of a server.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

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
    """What a metric is called, and what its help says.

    Attributes:
        label: the name of its label, which has few values; empty for a metric without one.
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
        """Count so many more, of a value of the label if there is one."""
        self._counts[value] = self._counts.get(value, 0) + by

    def counts(self) -> Mapping[str, int]:
        """Return the count of each value of the label; without a label, that of the empty one."""
        return dict(self._counts)


class Histogram(Metric):
    """How often values were how large, for each value of a label if it has one.

    Args:
        bounds: the upper bounds of the buckets, ascending; what is above all of them is counted as well.
    """

    def __init__(self, name: str, documentation: str, *, bounds: Sequence[float], label: str = "") -> None:
        super().__init__(name, documentation, label=label)
        self._bounds = bounds
        self._series: dict[str, Series] = {} if label else {"": Series(bounds)}

    def series(self, value: str = "") -> Series:
        """Return what counts, for a value of the label if there is one."""
        series = self._series.get(value)
        if series is None:
            series = self._series[value] = Series(self._bounds)
        return series

    def all_series(self) -> Mapping[str, Series]:
        """Return what has counted for each value of the label; without a label, for the empty one."""
        return dict(self._series)


class Metrics:
    """All of them; several servers may live in one process (tests, demos), and each counts apart."""

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
            "Time from the arrival of a request to its answer, by message type. Compare APPEND with "
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
            "rising. busy means that the store asks to slow down, full that it has no room or a quota is used up.",
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
            "Requests to the object store that were sent again, because the one before had no answer or was put off.",
        )
        self.store_hedges_total = Counter(
            "millrace_store_hedges_total",
            "Requests to the object store that were sent a second time beside a slow first one, by kind. There are at "
            "most 5 for 100 requests of a kind. create is a batch of the log.",
            label="kind",
        )
        self.task_failures_total = Counter(
            "millrace_task_failures_total",
            "Background tasks that failed. Then the server ends, too. The log messages say why.",
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
