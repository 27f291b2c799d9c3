from prometheus_client import CollectorRegistry

from millrace.server.host.metrics import Histogram, Metrics


def test_two_servers_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()

    one.wal_waits_total.inc()

    assert one.registry.get_sample_value("millrace_wal_waits_total") == 1
    assert other.registry.get_sample_value("millrace_wal_waits_total") == 0


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("seconds", "Time.", buckets=(1.0, 2.0), registry=registry)
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(value)
    counts = [registry.get_sample_value("seconds_bucket", {"le": bound}) for bound in ("1.0", "2.0", "+Inf")]
    assert counts == [2, 3, 4]
    assert registry.get_sample_value("seconds_count") == 4
    assert registry.get_sample_value("seconds_sum") == 10.0
