"""Several interleaved rounds of the same measurements: what a noisy machine does to one round, it does to all in it."""

import statistics
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

T = TypeVar("T")
K = TypeVar("K")

ROUNDS: Final = 3


def interleaved(work: Mapping[K, Callable[[], T]], *, rounds: int = ROUNDS) -> dict[K, list[T]]:
    """Do every piece of work once a round, in the same order, and return the results of each."""
    results: dict[K, list[T]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, do in work.items():
            results[name].append(do())
    return results


def median_by(results: list[T], measure: Callable[[T], float]) -> T:
    """Return the result in the middle, the lower one of two."""
    return sorted(results, key=measure)[(len(results) - 1) // 2]


def median_of(results: list[T], measure: Callable[[T], float]) -> float:
    """Return the median of a figure."""
    return statistics.median(map(measure, results))


def spread(results: list[T], measure: Callable[[T], float]) -> str:
    """Return how far the rounds are apart, as a share of the smallest."""
    figures = [measure(result) for result in results]
    return f"{len(figures)} rounds within {max(figures) / min(figures) - 1:.0%}" if min(figures) > 0 else ""
