"""The content of `/metrics`: counters of the parts, statistics, health, process and build.

All of it is looked up when Prometheus scrapes, in the thread of the console.
"""

import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.model.extras import DISTRIBUTION
from millrace.server.host.metric_help import Figures
from millrace.server.host.metrics import Metrics
from millrace.server.streams.cursor_lag import CursorLag

from .busy import Busy
from .metric_table import STATISTICS

Statistics = Mapping[str, Any]
"""Frozen records by the name of their part."""

UNKNOWN: Final = "unknown"
NONE: Final = "none"
OTHERS: Final = "(others)"
"""Instead of the name of a stream or a cursor; not a valid stream name."""
_BUSIEST: Final = (
    "written to one of the MILLRACE_METRICS_STREAMS_COUNT_MAX busiest streams, since it is among them; all other "
    "streams are in (others). Take rates first, then sums."
)
_SLOWEST: Final = "Shown for the MILLRACE_METRICS_CURSORS_COUNT_MAX cursors with the largest lag; (others) has"


class MetricsCollector(Collector):
    """Yields the metrics that the parts of the server count themselves."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield each of them."""
        for histogram in self._metrics.histograms:
            seconds_or_bytes = HistogramMetricFamily(
                histogram.name, histogram.documentation, labels=_names_of(histogram.label)
            )
            for value, series in histogram.all_series().items():
                seconds_or_bytes.add_metric(_names_of(value), buckets=series.buckets(), sum_value=series.sum)
            yield seconds_or_bytes
        for counter in self._metrics.counters:
            counts = CounterMetricFamily(counter.name, counter.documentation, labels=_names_of(counter.label))
            for value, count in counter.counts().items():
                counts.add_metric(_names_of(value), count)
            yield counts


class StatisticsCollector(Collector):
    """Converts the statistics of the parts into metrics, as `metric_table` declares them.

    Args:
        statistics: a part that is missing now has no metrics.
        health: why the server is not healthy, empty if it is.
        figures: the metrics of the statistics.
    """

    def __init__(
        self, statistics: Callable[[], Statistics], health: Callable[[], str], *, figures: Figures = STATISTICS
    ) -> None:
        self._statistics = statistics
        self._figures = figures
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Yield one metric for each number."""
        yield GaugeMetricFamily(
            "millrace_healthy",
            "1 while the server is healthy, 0 while /health gives a reason why it is not. Alert on 0, and on silence.",
            value=float(not self._health()),
        )
        records = self._statistics()
        for (part, field), declared in self._figures.items():
            # A log in the object store has other numbers than one in files.
            if part in records and hasattr(records[part], field):
                family = CounterMetricFamily if declared.is_counter else GaugeMetricFamily
                yield family(declared.name, declared.help, value=float(getattr(records[part], field)))


class BuildCollector(Collector):
    """Yields the versions of the build, as labels of a metric that is always 1."""

    def __init__(self) -> None:
        self._labels = {
            "version": _version_of(DISTRIBUTION),
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "uvloop": _version_of("uvloop") if "uvloop" in sys.modules else NONE,
            "platform": platform.platform(),
        }

    def collect(self) -> Iterator[Metric]:
        """Yield the one metric."""
        family = GaugeMetricFamily(
            "millrace_build_info",
            "Always 1. Its labels say which versions of Millrace, Python and uvloop run, and on what.",
            labels=list(self._labels),
        )
        family.add_metric(list(self._labels.values()), 1.0)
        yield family


class Scrape(Collector):
    """All metrics, as one peer may see them.

    Args:
        busy: the streams and cursors with metrics of their own.
        is_named: whether to name them. Otherwise streams have no rows, and the cursors are one row: a sum over streams
            would fall when a stream loses its row, and a counter must not.
    """

    def __init__(self, registry: Collector, busy: Callable[[], Busy], *, is_named: bool) -> None:
        self._registry = registry
        self._busy = busy
        self._is_named = is_named

    def collect(self) -> Iterable[Metric]:
        """Yield all."""
        yield from self._registry.collect()
        busy = self._busy()
        yield from BusyCollector(busy).collect() if self._is_named else _lag_metrics([], [*busy.lags, *busy.other_lags])


class BusyCollector(Collector):
    """Yields the busiest streams and the cursors with the largest lag; all others in one row."""

    def __init__(self, busy: Busy) -> None:
        self._busy = busy

    def collect(self) -> Iterator[Metric]:
        """Yield the bytes and events written to streams, and the lags of cursors."""
        busy = self._busy
        sizes = CounterMetricFamily(
            "millrace_stream_written_bytes",
            f"Bytes {_BUSIEST}",
            labels=["stream"],
        )
        events = CounterMetricFamily(
            "millrace_stream_written_events",
            f"Events {_BUSIEST}",
            labels=["stream"],
        )
        for name, written in [*busy.streams, (OTHERS, busy.others)]:
            sizes.add_metric([name], written.bytes)
            events.add_metric([name], written.events)
        yield from (sizes, events, *_lag_metrics(busy.lags, busy.other_lags))


def _lag_metrics(named: Sequence[CursorLag], others: Sequence[CursorLag]) -> Iterator[Metric]:
    """Yield the lags of cursors: a row for each named one, and one for the others."""
    lag_bytes = GaugeMetricFamily(
        "millrace_cursor_lag_bytes",
        f"Bytes of its stream that a cursor has not passed, so that its consumer still has to read them. "
        f"{_SLOWEST} the sum of the rest.",
        labels=["stream", "cursor"],
    )
    lag_seconds = GaugeMetricFamily(
        "millrace_cursor_lag_seconds",
        f"Age of the oldest event that a cursor has not passed, 0 if there is none. Alert on a lag that is too "
        f"long for you: the consumer is slow or gone. {_SLOWEST} the largest of the rest.",
        labels=["stream", "cursor"],
    )
    now_us = time.time_ns() // 1000
    for lag in named:
        lag_bytes.add_metric([lag.stream, lag.cursor], lag.size_bytes)
        lag_seconds.add_metric([lag.stream, lag.cursor], _age_s(lag, now_us))
    lag_bytes.add_metric([OTHERS, OTHERS], sum(lag.size_bytes for lag in others))
    lag_seconds.add_metric([OTHERS, OTHERS], max((_age_s(lag, now_us) for lag in others), default=0.0))
    yield from (lag_bytes, lag_seconds)


def registry_of(
    metrics: Metrics, *, statistics: Callable[[], Statistics], health: Callable[[], str]
) -> CollectorRegistry:
    """Return a registry of all of these, and of the library's process metrics: memory, processor time, files."""
    registry = CollectorRegistry()
    registry.register(MetricsCollector(metrics))
    registry.register(StatisticsCollector(statistics, health))
    registry.register(BuildCollector())
    ProcessCollector(registry=registry)
    return registry


def _names_of(label: str) -> list[str]:
    return [label] if label else []


def _age_s(lag: CursorLag, now_us: int) -> float:
    return max(0, now_us - lag.oldest_us) / 1e6 if lag.oldest_us else 0.0


def _version_of(distribution: str) -> str:
    """Return the version of a distribution that is installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:  # it runs out of a checkout
        return UNKNOWN
