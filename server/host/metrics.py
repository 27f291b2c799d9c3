"""The metrics of the server, declared in one place.

Every name ends in its unit; counters end in `_total`. Components receive one `Metrics` and touch only their own.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

# A sync takes 80 us on a good disk and is stalled for up to seconds on a bad day: both ends must be seen.
_SYNC_BUCKETS_S: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
# From a lone small append to the largest batch: how well group commit works.
_BATCH_BUCKETS_BYTES: Final = tuple(4**power for power in range(4, 14))


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
