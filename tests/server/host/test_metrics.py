from millrace.server.host.metrics import Counter, Histogram, Metrics


def test_two_servers_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()

    one.wal_waits_total.increase()

    assert one.wal_waits_total.counts() == {"": 1}
    assert other.wal_waits_total.counts() == {"": 0}


def test_all_that_are_declared_are_told() -> None:
    metrics = Metrics()

    assert {*metrics.histograms, *metrics.counters} == {*vars(metrics).values()}


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    series = Histogram("seconds", "Time.", bounds=(1.0, 2.0)).series()
    for value in (0.5, 1.0, 1.5, 7.0):
        series.observe(value)

    assert series.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert series.sum == 10.0


def test_each_value_of_a_label_has_a_count_of_its_own() -> None:
    counter = Counter("tasks", "Tasks.", label="task")
    histogram = Histogram("seconds", "Time.", bounds=(1.0,), label="type")
    assert not counter.counts()
    assert not histogram.all_series()

    counter.increase("a", by=2)
    counter.increase("b")
    histogram.series("x").observe(0.5)

    assert counter.counts() == {"a": 2, "b": 1}
    assert histogram.series("x") is histogram.all_series()["x"]
