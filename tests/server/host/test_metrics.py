from millrace.server.host.metrics import Metrics


def test_every_metric_names_its_unit_and_is_ours() -> None:
    for family in Metrics().registry.collect():
        assert family.name.startswith("millrace_")
        assert family.documentation
        assert family.type == "counter" or family.name.endswith(("_seconds", "_bytes"))


def test_two_servers_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()

    one.wal_waits_total.inc()

    assert one.registry.get_sample_value("millrace_wal_waits_total") == 1
    assert other.registry.get_sample_value("millrace_wal_waits_total") == 0
