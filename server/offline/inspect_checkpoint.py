"""A checkpoint for people: the rows of its tables, each compared with its checksum."""

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, PART_HEADER_SIZE_BYTES, decode_part
from millrace.server.container.checkpoint.schema import FORMAT, META_NUMBERS, Schema
from millrace.server.container.table import Table
from millrace.server.errors import ChunkCorruptError, ServerError
from millrace.server.kinds.registry import KINDS
from millrace.wire.schema.checkpoint_copy import COPY_PART_MAGIC, CopyPartHeader

from .container import copied_checkpoint, joined_copy, opened_checkpoint
from .declared import field_section, problems_of, read_fields, values_of
from .report import Report, Section, shown

SCHEMA: Final = Schema(KINDS)
MAGIC: Final = b"SQLite format 3\0"
COPY_MAGIC: Final = COPY_PART_MAGIC


def inspect_checkpoint(path: Path, *, with_hex: bool, limit: int) -> Report:
    """Return the content of a checkpoint; damaged rows are shown as they are, and reported.

    Args:
        with_hex: show the checksums, too.
        limit: most rows of each table, 0 for all.
    """
    report = Report("checkpoint", str(path), facts={"size": path.stat().st_size})
    _add_content(report, lambda: copied_checkpoint(path), with_hex=with_hex, limit=limit)
    return report


def inspect_copy(path: Path, *, with_hex: bool, limit: int) -> Report:
    """Return the content of a part of a copy of the checkpoint: its header, and the rows if it is the only part.

    The arguments are those of `inspect_checkpoint`.
    """
    data = path.read_bytes()
    header = read_fields(CopyPartHeader, data[:PART_HEADER_SIZE_BYTES], offset=0)
    report = Report("part of a copy of the checkpoint", str(path), problems=problems_of(header, what="header"))
    values = values_of(header)
    report.facts |= {"size": len(data), **{name: value for name, value in values.items() if name != "magic"}}
    if with_hex:
        report.sections.append(field_section("header", "header", header))
    name = f"{CHECKPOINT_PREFIX}{path.name}"
    try:
        decode_part(data, name=name, owner=None)
    except ChunkCorruptError as error:
        report.problems.append(error.message)
    else:
        report.facts["server_id"] = UUID(bytes=values["server_id"])
        if values["part_count"] == 1:
            _add_content(report, lambda: joined_copy([path], owner=None), with_hex=with_hex, limit=limit)
        else:
            report.notes.append("the rows are in all parts together: `millrace verify` reads them")
    return report


def _add_content(
    report: Report, lent: Callable[[], AbstractContextManager[Path]], *, with_hex: bool, limit: int
) -> None:
    """Add the content of a checkpoint and its problems; `lent` yields a file with it."""
    try:
        with opened_checkpoint(lent(), owner=None):
            pass
    except ServerError as error:
        report.problems.append(str(error))
    with lent() as copy:
        try:
            with contextlib.closing(sqlite3.connect(f"{copy.as_uri()}?mode=rw", uri=True)) as connection:
                _read_facts(report, connection)
                report.sections += [
                    _table(report, connection, table, with_hex=with_hex, limit=limit) for table in SCHEMA.tables
                ]
        except (sqlite3.Error, UnicodeDecodeError) as error:
            report.problems.append(f"SQLite cannot read further: {error}")


def _read_facts(report: Report, connection: sqlite3.Connection) -> None:
    version, product, _ = connection.execute(f"SELECT * FROM {FORMAT.name}").fetchone()  # noqa: S608  # our own names
    report.facts |= {"format_version": version, "product": product}
    table = SCHEMA.meta
    meta = dict(zip(table.columns, connection.execute(f"SELECT * FROM {table.name}").fetchone(), strict=True))  # noqa: S608
    report.facts |= {name: meta[name] for name in ("server_id", *META_NUMBERS, "clock_history")}
    report.facts |= {f"{table.name}": meta[f"{table.name}_count"] for table in SCHEMA.tables}


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
