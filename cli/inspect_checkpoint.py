"""A checkpoint for people: the rows of its tables, each held against its checksum."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any, Final

from millrace.server.container.checkpoint.schema import FORMAT, META, META_NUMBERS, TABLES, Table
from millrace.server.errors import ServerError

from .report import Report, Section, shown
from .survey import copied_checkpoint, opened_checkpoint

MAGIC: Final = b"SQLite format 3\0"


def inspect_checkpoint(path: Path, *, with_hex: bool, limit: int) -> Report:
    """Return the content of a checkpoint; damaged rows are shown as they are, and named.

    Args:
        with_hex: show the checksums, too.
        limit: most rows of each table, 0 for all.
    """
    report = Report("checkpoint", str(path), facts={"size": path.stat().st_size})
    try:
        with opened_checkpoint([path]):
            pass
    except ServerError as error:
        report.problems.append(str(error))
    with copied_checkpoint([path]) as copy:
        try:
            with contextlib.closing(sqlite3.connect(f"{copy.as_uri()}?mode=rw", uri=True)) as connection:
                _read_facts(report, connection)
                report.sections += [
                    _table(report, connection, table, with_hex=with_hex, limit=limit) for table in TABLES
                ]
        except (sqlite3.Error, UnicodeDecodeError) as error:
            report.problems.append(f"SQLite cannot read further: {error}")
    return report


def _read_facts(report: Report, connection: sqlite3.Connection) -> None:
    version, product, _ = connection.execute(f"SELECT * FROM {FORMAT.name}").fetchone()  # noqa: S608  # our own names
    report.facts |= {"format_version": version, "product": product}
    meta = dict(zip(META.columns, connection.execute(f"SELECT * FROM {META.name}").fetchone(), strict=True))  # noqa: S608
    report.facts |= {name: meta[name] for name in (*META_NUMBERS, "clock_history")}
    report.facts |= {f"{table.name}": meta[f"{table.name}_count"] for table in TABLES}


def _table(report: Report, connection: sqlite3.Connection, table: Table, *, with_hex: bool, limit: int) -> Section:
    columns = table.columns if with_hex else table.columns[:-1]
    rows: list[list[Any]] = []
    count = 0
    for *values, checksum in connection.execute(f"SELECT * FROM {table.name}"):  # noqa: S608  # our own names
        count += 1
        if not table.matches(tuple(values), checksum):
            report.problems.append(f"a row of {table.name} does not match its checksum: {values[:2]}")
        if not limit or len(rows) < limit:
            row = [*values, checksum] if with_hex else values
            rows.append(
                [shown(name, value) if name == "checksum" else value for name, value in zip(columns, row, strict=True)]
            )
    return Section(table.name, table.name, columns, rows, count - len(rows))
