"""What a benchmark says: figures beside what limits them or competes with them, as a table, Markdown or JSON."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.table import Table


class Unit(enum.Enum):
    """What a figure counts; the value is the suffix in print."""

    SECONDS = "s"
    EVENTS_PER_SECOND = "events/s"
    APPENDS_PER_SECOND = "appends/s"
    COMMITS_PER_SECOND = "commits/s"
    BYTES_PER_SECOND = "B/s"
    BYTES = "B"
    DOLLARS_A_MONTH = "$ a month"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A figure and its unit, always the base unit: seconds, not microseconds."""

    value: float
    unit: Unit

    def __str__(self) -> str:
        scales = _SMALL if self.unit is Unit.SECONDS else _LARGE
        factor, prefix = next(((factor, prefix) for factor, prefix in scales if abs(self.value) >= factor), scales[-1])
        # "3.1 GB/s" and "88 µs", but "570 k events/s".
        space = " " if prefix and self.unit in _WORDS else ""
        return f"{_three_digits(self.value / factor)} {prefix}{space}{self.unit.value}"


_WORDS = {Unit.EVENTS_PER_SECOND, Unit.APPENDS_PER_SECOND, Unit.COMMITS_PER_SECOND, Unit.DOLLARS_A_MONTH}
# Powers of 1,000, also for bytes: disks and networks are sold by them.
_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


class Bound(enum.Enum):
    """Which side of a target is good."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True)
class Target:
    """The ratio of a figure to its reference that the design promises."""

    bound: Bound
    ratio: float

    def __str__(self) -> str:
        return f"{self.bound.value} {self.ratio:g} x"


class Verdict(enum.Enum):
    """How a row compares with its target; a row without one (floors, rivals) is only noted."""

    MET = "met"
    MISSED = "missed"
    NOTED = ""


@dataclass(frozen=True, slots=True)
class SyncRate:
    """Syncs per second while the figure was taken: without them a durable figure cannot be believed."""

    per_s: float
    # Who counted: the program itself, the rival's statistics, or the block device (which counts everybody's).
    counted_by: str

    def __str__(self) -> str:
        return f"{self.per_s:,.0f} ({self.counted_by})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured line of the report."""

    name: str
    figure: Quantity
    # What the figure is divided by: a bare loop, a sum of them, a rival, or a promise in plain numbers.
    reference_name: str = ""
    reference: Quantity | None = None
    target: Target | None = None
    # None: nothing here could count them. Rows that sync nothing say so in `conditions`.
    syncs: SyncRate | None = None
    # Sizes, clients, outstanding requests, the tail of the distribution: what a reader needs to judge the figure.
    conditions: str = ""

    def __post_init__(self) -> None:
        if self.target is not None and self.reference is None:
            raise ValueError(f"row {self.name!r} has a target and no reference")
        if self.reference is not None and self.reference.unit is not self.figure.unit:
            raise ValueError(f"row {self.name!r} compares {self.figure.unit.value} with {self.reference.unit.value}")

    @property
    def ratio(self) -> float | None:
        """The figure over its reference, if it has one."""
        if self.reference is None or self.reference.value == 0:
            return None
        return self.figure.value / self.reference.value

    @property
    def verdict(self) -> Verdict:
        """Whether the target is met; `NOTED` without a target."""
        if self.target is None or self.ratio is None:
            return Verdict.NOTED
        if self.target.bound is Bound.AT_LEAST:
            return Verdict.MET if self.ratio >= self.target.ratio else Verdict.MISSED
        return Verdict.MET if self.ratio <= self.target.ratio else Verdict.MISSED


@dataclass(frozen=True, slots=True)
class Section:
    """The rows of one module, or why there are none."""

    name: str
    rows: tuple[Row, ...] = ()
    # What to install to have these rows.
    skipped: str = ""
    # The error that ended the section; the rows before it are valid.
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """One run on one machine."""

    conditions: dict[str, str]
    sections: tuple[Section, ...]

    def rows(self) -> Iterable[Row]:
        """Yield the rows of all sections in order."""
        for section in self.sections:
            yield from section.rows


_COLUMNS = ("what", "figure", "against", "its figure", "ratio", "target", "verdict", "syncs/s")
_COLOURS = {Verdict.MET: "green", Verdict.MISSED: "bold red", Verdict.NOTED: ""}


def as_table(report: Report) -> Table:
    """Return the report for a terminal; conditions are under each row's name."""
    table = Table(caption=_sentence(report.conditions), caption_justify="left", expand=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in {"figure", "its figure", "ratio", "syncs/s"} else "left")
    for section in report.sections:
        table.add_section()
        table.add_row(f"[bold]{section.name}[/bold]")
        for row in section.rows:
            name = f"{row.name}\n[dim]{row.conditions}[/dim]" if row.conditions else row.name
            verdict = row.verdict
            cells = _cells(row)
            cells[-2] = f"[{_COLOURS[verdict]}]{verdict.value}[/]" if _COLOURS[verdict] else verdict.value
            table.add_row(name, *cells[1:])
        for word, text, colour in (("skipped", section.skipped, "yellow"), ("failed", section.failed, "bold red")):
            if text:
                table.add_row(f"[{colour}]{word}: {text}[/]")
    return table


def as_markdown(report: Report) -> str:
    """Return the report for `docs/benchmarks.md`."""
    columns = (*_COLUMNS, "conditions")
    lines = [_sentence(report.conditions), ""]
    for section in report.sections:
        lines += [f"### {section.name}", ""]
        if section.rows:
            lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
            lines += ["| " + " | ".join([*_cells(row), row.conditions]) + " |" for row in section.rows]
        if section.skipped:
            lines.append(f"Skipped: {section.skipped}")
        if section.failed:
            lines.append(f"Failed: {section.failed}")
        lines.append("")
    return "\n".join(lines)


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as plain data; every figure in its base unit."""
    return {
        "conditions": report.conditions,
        "sections": [
            {
                "name": section.name,
                "rows": [_row_as_json(row) for row in section.rows],
                "skipped": section.skipped or None,
                "failed": section.failed or None,
            }
            for section in report.sections
        ],
    }


def _row_as_json(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "figure": row.figure.value,
        "unit": row.figure.unit.value,
        "reference_name": row.reference_name or None,
        "reference": None if row.reference is None else row.reference.value,
        "ratio": row.ratio,
        "target": None if row.target is None else {"bound": row.target.bound.value, "ratio": row.target.ratio},
        "verdict": row.verdict.value or None,
        "syncs_per_s": None if row.syncs is None else row.syncs.per_s,
        "syncs_counted_by": None if row.syncs is None else row.syncs.counted_by,
        "conditions": row.conditions,
    }


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        str(row.figure),
        row.reference_name,
        "" if row.reference is None else str(row.reference),
        "" if row.ratio is None else f"{_three_digits(row.ratio)} x",
        "" if row.target is None else str(row.target),
        row.verdict.value,
        "not measured" if row.syncs is None else str(row.syncs),
    ]


def _sentence(conditions: dict[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in conditions.items())


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
