import io
import json

import pytest
from rich.console import Console

from benchmarks.report import (
    Bound,
    Quantity,
    Report,
    Row,
    Section,
    SyncRate,
    Target,
    Unit,
    Verdict,
    as_json,
    as_markdown,
    as_table,
)
from tests.support.tables import table


def row(*, figure: float, reference: float, bound: Bound, ratio: float) -> Row:
    return Row(
        name="appends",
        figure=Quantity(figure, Unit.SECONDS),
        reference_name="bare disk",
        reference=Quantity(reference, Unit.SECONDS),
        target=Target(bound, ratio),
    )


@table(
    ("figure", "bound", "verdict"),
    [
        (1.5, Bound.AT_MOST, Verdict.MET),
        (1.6, Bound.AT_MOST, Verdict.MISSED),
        (1.5, Bound.AT_LEAST, Verdict.MET),
        (1.4, Bound.AT_LEAST, Verdict.MISSED),
    ],
)
def test_verdict_compares_the_ratio_with_the_target(figure: float, bound: Bound, verdict: Verdict) -> None:
    assert row(figure=figure, reference=1.0, bound=bound, ratio=1.5).verdict is verdict


def test_a_row_without_a_target_is_only_noted() -> None:
    assert Row(name="floor", figure=Quantity(1.0, Unit.SECONDS)).verdict is Verdict.NOTED


def test_a_target_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="no reference"):
        Row(name="appends", figure=Quantity(1.0, Unit.SECONDS), target=Target(Bound.AT_MOST, 1.5))


def test_figures_of_different_units_are_not_compared() -> None:
    with pytest.raises(ValueError, match="compares s with B"):
        Row(name="appends", figure=Quantity(1.0, Unit.SECONDS), reference=Quantity(1.0, Unit.BYTES))


@table(
    ("quantity", "text"),
    [
        (Quantity(0.000088, Unit.SECONDS), "88.0 µs"),
        (Quantity(0.0, Unit.SECONDS), "0.00 ns"),
        (Quantity(12.34, Unit.SECONDS), "12.3 s"),
        (Quantity(2_700_000_000, Unit.BYTES_PER_SECOND), "2.70 GB/s"),
        (Quantity(570_000, Unit.EVENTS_PER_SECOND), "570 k events/s"),
        (Quantity(12, Unit.EVENTS_PER_SECOND), "12.0 events/s"),
    ],
)
def test_quantities_print_three_digits_and_a_prefix(quantity: Quantity, text: str) -> None:
    assert str(quantity) == text


@pytest.fixture
def report() -> Report:
    met = row(figure=1.0, reference=1.0, bound=Bound.AT_MOST, ratio=1.5)
    synced = Row(
        name="bare", figure=Quantity(2.0, Unit.SECONDS), syncs=SyncRate(8_000.0, "own count"), conditions="100 B"
    )
    return Report(
        {"kernel": "Linux"},
        (
            Section("ours", (met, synced)),
            Section("redis", skipped="apt-get install redis-server"),
            Section("x", failed="E"),
        ),
    )


def test_json_holds_every_figure_in_base_units(report: Report) -> None:
    ours, redis, failed = json.loads(json.dumps(as_json(report)))["sections"]

    assert ours["rows"][0]["ratio"] == 1.0
    assert ours["rows"][0]["verdict"] == "met"
    assert ours["rows"][1]["syncs_per_s"] == 8_000.0
    assert redis["skipped"] == "apt-get install redis-server"
    assert failed["failed"] == "E"


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_what_a_reader_sees_names_figures_verdicts_syncs_and_what_is_missing(report: Report, form: str) -> None:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(as_table(report))
    seen = console.export_text() if form == "table" else as_markdown(report)

    for text in (
        "appends",
        "1.00 s",
        "met",
        "8,000 (own count)",
        "not measured",
        "apt-get install redis-server",
        "Linux",
    ):
        assert text in seen
