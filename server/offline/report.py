"""A finding out of facts, tables and problems that can be shown to a person or printed as JSON."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.model.figures import time_text


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a report. In JSON it is a list of objects under `name`.

    Attributes:
        omitted: rows that were left out because of a limit.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    omitted: int = 0


@dataclass(slots=True)
class Report:
    """The result of an inspection.

    Attributes:
        limit: most rows of a table, 0 for all.
    """

    kind: str
    path: str
    facts: dict[str, Any] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    # Problems, a sentence each.
    problems: list[str] = field(default_factory=list)
    # Further facts for people.
    notes: list[str] = field(default_factory=list)
    limit: int = 0

    def add_table(self, name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a section with as many rows as the limit allows."""
        kept = rows[: self.limit or None]
        self.sections.append(Section(name, title, columns, kept, len(rows) - len(kept)))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; bytes become hexadecimal text."""
        document: dict[str, Any] = {"kind": self.kind, "path": self.path}
        document |= {name: json_value(value) for name, value in self.facts.items()}
        for section in self.sections:
            document[section.name] = [
                {column: json_value(value) for column, value in zip(section.columns, row, strict=True)}
                for row in section.rows
            ]
            if section.omitted:
                document[f"{section.name}_omitted"] = section.omitted
        return document | {"problems": list(self.problems), "notes": list(self.notes)}


def json_value(value: Any) -> Any:
    """Return a value as a JSON value."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items() if not str(name).startswith("_")}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def shown(name: str, value: Any) -> Any:
    """Return a value formatted for people; its name gives its unit."""
    if name.endswith("_us") and isinstance(value, int):
        return f"{value} ({time_text(value)})" if value else str(value)
    if (name.endswith("checksum") or name == "salt") and isinstance(value, int):
        return f"{value:#010x}" if value < 1 << 32 else f"{value:#018x}"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(json_value(value), ensure_ascii=False) if value else ""
    return value
