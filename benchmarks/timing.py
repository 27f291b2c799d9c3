"""Latencies and rates of repeated work, within a time budget."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .report import Quantity, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """The distribution of one repeated operation, in seconds."""

    p50_s: float
    p99_s: float
    p999_s: float
    max_s: float
    count: int
    # Wall time of all operations together, gaps included.
    elapsed_s: float

    @classmethod
    def of(cls, samples_s: Sequence[float], *, elapsed_s: float) -> "Latencies":
        """Summarise measured durations; at least one."""
        p50, p99, p999 = np.percentile(samples_s, [50.0, 99.0, 99.9]).tolist()
        return cls(p50_s=p50, p99_s=p99, p999_s=p999, max_s=max(samples_s), count=len(samples_s), elapsed_s=elapsed_s)

    @property
    def per_s(self) -> float:
        """Operations per second."""
        return self.count / self.elapsed_s

    @property
    def p50(self) -> Quantity:
        """The median as a figure of the report."""
        return Quantity(self.p50_s, Unit.SECONDS)

    def tail(self) -> str:
        """Return the rest of the distribution for a row's conditions: shared disks stall now and then."""
        p99, p999 = Quantity(self.p99_s, Unit.SECONDS), Quantity(self.p999_s, Unit.SECONDS)
        return f"p99 {p99}, p99.9 {p999}, {self.count:,} samples"


def repeat(work: Callable[[int], object], *, count: int, budget_s: float, warm_up: int = 20) -> Latencies:
    """Time `work(index)` up to `count` times or for `budget_s`, whichever ends first.

    Some calls that do not count come before. The index continues from the warm-up, so that a loop over a file does not
    begin on what it has just written.
    """
    clock = time.perf_counter
    for index in range(warm_up):
        work(index)
    samples_s: list[float] = []
    begin = previous = clock()
    for index in range(warm_up, warm_up + count):
        work(index)
        now = clock()
        samples_s.append(now - previous)
        previous = now
        if now - begin > budget_s:
            break
    return Latencies.of(samples_s, elapsed_s=previous - begin)
