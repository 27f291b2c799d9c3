"""Latencies in logarithmic buckets: any number of samples in fixed memory, every percentile within 1.6 %.

Coordinated omission. A load generator that waits for a slow answer sends nothing meanwhile, and so asks least when the
server is worst: its percentiles then leave out what every independent client would have met. So latencies are measured
from the moment at which an event was *due* rather than sent.

Buckets as in HdrHistogram; its Python package takes values one by one only, each in twice the time.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

# Each power of two is cut into so many buckets, whose width is then at most 1/32 of their values; the middle of a
# bucket is off by half of that.
_BUCKETS_PER_DOUBLING: Final = 32
_SHIFT: Final = _BUCKETS_PER_DOUBLING.bit_length() - 1
# Microseconds up to 2^40: twelve days. More is counted as that.
_DOUBLINGS: Final = 40
_BUCKET_COUNT: Final = (_DOUBLINGS - _SHIFT + 1) * _BUCKETS_PER_DOUBLING
_LARGEST_US: Final = (1 << _DOUBLINGS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A distribution in a few figures, in seconds."""

    count: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    p999_s: float
    max_s: float


class Histogram:
    """Counts of latencies."""

    __slots__ = ("_counts", "_max_us", "_total_us", "count")

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(_BUCKET_COUNT, np.int64)
        self._total_us = 0
        self._max_us = 0
        self.count = 0

    def record(self, latency_s: float, count: int = 1) -> None:
        """Add a latency `count` times. Below 0, by a step of the clock, is counted as 0."""
        latency_us = min(max(0, round(latency_s * 1e6)), _LARGEST_US)
        self._counts[_index(latency_us)] += count
        self._total_us += latency_us * count
        self._max_us = max(self._max_us, latency_us)
        self.count += count

    def record_all(self, latencies_s: npt.NDArray[np.float64]) -> None:
        """Add many latencies at once."""
        if not len(latencies_s):
            return
        latencies_us = np.clip(np.rint(latencies_s * 1e6), 0, _LARGEST_US).astype(np.int64)
        values, counts = np.unique(latencies_us, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._counts[_index(value)] += count
        self._total_us += int(latencies_us.sum())
        self._max_us = max(self._max_us, int(values[-1]))
        self.count += len(latencies_us)

    def percentile_s(self, percent: float) -> float:
        """Return the latency that `percent` of all samples do not exceed, 0 if there are none."""
        if not self.count:
            return 0.0
        wanted = max(1, int(np.ceil(self.count * percent / 100)))
        index = int(np.searchsorted(np.cumsum(self._counts), wanted))
        return min(_middle_us(index), self._max_us) / 1e6

    def summary(self) -> Summary:
        """Return the distribution in a few figures."""
        return Summary(
            count=self.count,
            mean_s=self._total_us / self.count / 1e6 if self.count else 0.0,
            p50_s=self.percentile_s(50),
            p90_s=self.percentile_s(90),
            p99_s=self.percentile_s(99),
            p999_s=self.percentile_s(99.9),
            max_s=self._max_us / 1e6,
        )


def _index(latency_us: int) -> int:
    if latency_us < _BUCKETS_PER_DOUBLING:
        return latency_us
    doubling = latency_us.bit_length() - _SHIFT
    return (doubling << _SHIFT) + (latency_us >> (doubling - 1)) - _BUCKETS_PER_DOUBLING


def _middle_us(index: int) -> float:
    doubling, place = divmod(index, _BUCKETS_PER_DOUBLING)
    if doubling == 0:
        return place
    width = 1 << (doubling - 1)
    return (_BUCKETS_PER_DOUBLING + place) * width + (width - 1) / 2
