"""What is said about a log in an object store, from figures that were made up."""

import pytest

from benchmarks.log_appender import LogAppenderResult
from benchmarks.log_reader import LogReaderResult
from benchmarks.object_log import (
    CASES,
    LIMITS_S,
    Case,
    append_rows,
    cost_rows,
    dollars_a_month,
    lease_puts_per_s,
    recovery_row,
)
from benchmarks.report import Row, Unit, Verdict


def result(*, p50_s: float, puts_per_s: float) -> LogAppenderResult:
    return LogAppenderResult(
        p50_s=p50_s,
        p99_s=2 * p50_s,
        appends=1000,
        puts=int(puts_per_s * 10),
        payload_bytes=100_000,
        elapsed_s=10.0,
        processors=0.5,
    )


def rows(over_round_trip: float) -> dict[Case, Row]:
    """Return the rows where each median is that of the store times a factor, and that of bare PUTs as it is."""
    results = {
        case: [result(p50_s=case.latency_s * (over_round_trip if case.clients else 1.0), puts_per_s=20.0)] * 3
        for case in CASES
    }
    return dict(zip(results, append_rows(results, gateway="versitygw"), strict=True))


@pytest.mark.parametrize(("over_round_trip", "verdict"), [(1.3, Verdict.MET), (1.7, Verdict.MISSED)])
def test_one_and_sixteen_clients_without_a_bound_are_promised_a_median(
    over_round_trip: float, verdict: Verdict
) -> None:
    found = rows(over_round_trip)
    limited = {case for case in found if case.is_limited}
    assert {(case.clients, case.puts_per_s_max) for case in limited} == {(1, 0.0), (16, 0.0)}
    assert {found[case].verdict for case in limited} == {verdict}
    assert {row.verdict for case, row in found.items() if case not in limited} == {Verdict.NOTED}
    for case in limited:
        assert found[case].reference is not None
        assert found[case].ratio == pytest.approx(case.latency_s * over_round_trip / LIMITS_S[case.latency_s])


def test_all_others_are_compared_with_a_bare_put_of_the_same_run() -> None:
    found = rows(1.5)
    for case, row in found.items():
        assert f"{case.payload_size:,} B" in row.name
        if case.clients and not case.is_limited:
            assert row.reference_name == "a bare PUT"
            assert row.ratio == pytest.approx(1.5)
    assert sum(row.reference is None for row in found.values()) == 2


def test_conditions_name_tail_puts_bytes_and_dollars() -> None:
    row = next(row for case, row in rows(1.2).items() if case.clients == 16)
    for text in ("p99 12.0 ms", "20.0 PUTs a second", "10.0 kB/s", "1.20 x a bare PUT", "263 $ a month", "versitygw"):
        assert text in row.conditions


def test_a_million_puts_cost_five_dollars() -> None:
    assert dollars_a_month(1e6 / (365.25 * 24 * 3600 / 12)).value == pytest.approx(5.0)
    assert str(dollars_a_month(20.0)) == "263 $ a month"


def test_an_idle_server_pays_for_its_lease_alone_and_a_busy_one_for_the_most_puts_under_the_bound() -> None:
    results = {case: [result(p50_s=0.01, puts_per_s=20.0 if case.puts_per_s_max else 900.0)] for case in CASES}
    idle, busy = cost_rows(results)
    assert lease_puts_per_s() == 1.0
    assert idle.figure == dollars_a_month(1.0)
    assert busy.figure == dollars_a_month(21.0)
    assert busy.ratio == 1.0


@pytest.mark.parametrize(("elapsed_s", "verdict"), [(1.4, Verdict.MET), (1.6, Verdict.MISSED)])
def test_half_of_the_log_has_half_of_the_time(elapsed_s: float, verdict: Verdict) -> None:
    read = LogReaderResult(size_bytes=128_000_000, objects=1000, gets=1000, elapsed_s=elapsed_s, cpu_s=1.0)
    row = recovery_row(read, latency_s=0.03, gateway="versitygw")
    assert row.figure.unit is Unit.SECONDS
    assert row.verdict is verdict
