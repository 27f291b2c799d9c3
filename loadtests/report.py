"""The result of load tests as a table for a terminal."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from benchmarks.report import Quantity, Unit

from .accounts import Result
from .histogram import Summary

GENERATOR_SHARE_MAX: Final = 0.85
_COLUMNS = ("what", "count", "rate", "bytes/s", "p50", "p90", "p99", "p99.9", "max")


def as_table(results: Sequence[Result]) -> RenderableType:
    """Return one table for all results, and what went wrong below it."""
    table = Table(
        caption="Latencies from when an event was due: waiting for a slow server counts.", caption_justify="left"
    )
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "what" else "right")
    problems = []
    for result in results:
        verdict = "[green]passed[/]" if result.passed else "[bold red]failed[/]"
        table.add_section()
        table.add_row(f"[bold]{escape(result.scenario)}[/] {verdict}\n[dim]{escape(result.description)}[/]")
        appended = _row("appends", result.append, result.appended_events, result.appended_bytes, result.duration_s)
        table.add_row(*appended)
        if result.tail_events:
            table.add_row(*_row("events at tail readers", result.tail, result.tail_events, 0, result.duration_s))
        if result.read_events:
            table.add_row(
                *_row("catch-up reads", result.read, result.read_events, result.read_bytes, result.duration_s)
            )
        if result.generator_share > GENERATOR_SHARE_MAX:
            problems.append(
                f"[yellow]{escape(result.scenario)}: the load generator itself was busy "
                f"{result.generator_share:.0%} of the time: latencies are partly its own[/]"
            )
        if not result.passed:
            problems.append(
                f"[bold red]{escape(result.scenario)}: {result.lost} lost, {result.disordered} out of order, "
                f"{result.error_count} errors[/]"
            )
            problems += [f"  {escape(error)}" for error in result.errors]
    return Group(table, *problems)


def _row(what: str, latencies: Summary, events: int, size: int, duration_s: float) -> tuple[str, ...]:
    duration_s = max(duration_s, 1e-9)
    return (
        what,
        f"{events:,} events",
        str(Quantity(events / duration_s, Unit.EVENTS_PER_SECOND)),
        str(Quantity(size / duration_s, Unit.BYTES_PER_SECOND)) if size else "",
        *(
            str(Quantity(value, Unit.SECONDS))
            for value in (latencies.p50_s, latencies.p90_s, latencies.p99_s, latencies.p999_s, latencies.max_s)
        ),
    )
