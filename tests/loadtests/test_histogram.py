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


@settings(deadline=None, print_blob=True)
@given(first=latencies, second=latencies)
def test_merging_is_recording_in_one(first: list[float], second: list[float]) -> None:
    left, right, whole = Histogram(), Histogram(), Histogram()
    left.record_all(np.array(first))
    right.record_all(np.array(second))
    whole.record_all(np.array(first + second))
    left.merge(right)

    assert left.summary() == whole.summary()


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


def test_a_stall_counts_for_all_the_requests_that_were_not_sent() -> None:
    """One answer of 1 s where one was due every 10 ms hides a hundred of them: half of all waited over 0.45 s."""
    naive, corrected = Histogram(), Histogram()
    for histogram in (naive, corrected):
        for _ in range(10):
            histogram.record(0.001)
    naive.record(1.0)
    corrected.record_corrected(1.0, interval_s=0.01)

    assert naive.percentile_s(90) < 0.01
    assert corrected.count == 10 + 100
    assert corrected.percentile_s(50) == pytest.approx(0.45, rel=0.05)


def test_without_an_interval_there_is_nothing_to_correct() -> None:
    histogram = Histogram()
    histogram.record_corrected(1.0, interval_s=0.0)

    assert histogram.count == 1
