import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.histogram import Histogram

latencies = st.lists(st.floats(min_value=0, max_value=1e5), min_size=1, max_size=200)


@settings(deadline=None, print_blob=True)
@given(values=latencies, percent=st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_every_percentile_is_within_its_bucket(values: list[float], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    rank = max(1, int(np.ceil(len(values) * percent / 100)))
    exact = sorted(values)[rank - 1]

    assert histogram.percentile_s(percent) == pytest.approx(exact, rel=1 / 60, abs=1e-6)


@settings(deadline=None, print_blob=True)
@given(values=latencies)
def test_many_at_once_count_as_one_by_one(values: list[float]) -> None:
    one_by_one, at_once = Histogram(), Histogram()
    for value in values:
        one_by_one.record(value)
    at_once.record_all(np.array(values))

    assert at_once.summary() == one_by_one.summary()


def test_an_empty_histogram_is_all_zero() -> None:
    summary = Histogram().summary()

    assert (summary.count, summary.mean_s, summary.p50_s, summary.max_s) == (0, 0.0, 0.0, 0.0)


def test_a_clock_that_steps_back_and_an_absurd_latency_are_counted_at_the_ends() -> None:
    histogram = Histogram()
    histogram.record(-1.0)
    histogram.record(1e9)

    assert histogram.count == 2
    assert histogram.percentile_s(50) == 0.0
    assert histogram.summary().max_s > 1e6
