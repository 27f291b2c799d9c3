"""The fields of a structure with their bytes, taken from its construct declaration.

The declarations of `millrace.wire.schema` are the specification of every byte; this module applies a declaration to
bytes and records the offset, bytes and value of each field. It continues over damaged bytes: a constant with another
value is recorded, and if the bytes end too early, the fields before that are still returned.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import construct as c

from .report import Section, shown

HEX_BYTES_SHOWN_MAX = 24
"""How much of a long field is shown; `--json` has all of it."""


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """One field.

    Attributes:
        offset: in the file.
        value: decoded; raw bytes if it cannot be decoded.
        raw: its bytes.
        problem: how it contradicts the declaration, empty if it does not.
    """

    offset: int
    name: str
    value: Any
    raw: bytes
    problem: str = ""

    @property
    def size(self) -> int:
        """Bytes of the field."""
        return len(self.raw)


def read_fields(declaration: c.Struct, data: bytes | memoryview, *, offset: int) -> list[DeclaredField]:
    """Decode the fields of a structure from the beginning of `data`; `offset` is its place in the file."""
    stream = io.BytesIO(bytes(data))
    fields: list[DeclaredField] = []
    for renamed in declaration.subcons:
        subcon = renamed.subcon if isinstance(renamed, c.Renamed) else renamed
        name, start = str(renamed.name or ""), stream.tell()
        problem = ""
        expected = None
        if isinstance(subcon, c.Const):
            expected, subcon = subcon.value, subcon.subcon
        try:
            value = subcon.parse_stream(stream)
        except (c.ConstructError, UnicodeDecodeError) as error:
            rest = data[start:]
            what = "bytes follow the structure" if isinstance(error, c.TerminatedError) else _reason(error)
            fields.append(DeclaredField(offset + start, name or "(rest)", bytes(rest), bytes(rest), what))
            return fields
        if expected is not None and value != expected:
            problem = f"is {value!r}, not {expected!r}"
        if name:
            raw = bytes(data[start : stream.tell()])
            fields.append(DeclaredField(offset + start, name, value, raw, problem))
    return fields


def values_of(fields: Sequence[DeclaredField]) -> dict[str, Any]:
    """Return the values by name, without padding."""
    return {field.name: field.value for field in fields if not field.name.startswith("reserved")}


def problems_of(fields: Sequence[DeclaredField], *, what: str) -> list[str]:
    """Return the problems of fields, a sentence for each."""
    return [f"{what}, byte {field.offset}: {field.name} {field.problem}" for field in fields if field.problem]


def field_section(name: str, title: str, fields: Sequence[DeclaredField]) -> Section:
    """Return the fields as a table, with their bytes."""
    rows = [[field.offset, field.size, field.name, _said(field), hex_text(field.raw)] for field in fields]
    return Section(name, title, ("offset", "size", "field", "value", "hex"), rows)


def hex_text(raw: bytes) -> str:
    """Return bytes in hexadecimal, in groups of four, shortened if long."""
    text = raw[:HEX_BYTES_SHOWN_MAX].hex(" ", -4)
    return f"{text} ... ({len(raw)} bytes)" if len(raw) > HEX_BYTES_SHOWN_MAX else text


def hex_dump(data: bytes, *, offset: int) -> list[list[Any]]:
    """Return rows of offset, 16 bytes in hexadecimal, and their printable characters."""
    rows: list[list[Any]] = []
    for start in range(0, len(data), 16):
        line = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        rows.append([offset + start, line.hex(" ", 4), text])
    return rows


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def _said(field: DeclaredField) -> Any:
    value = shown(field.name, field.value)
    if field.name.rpartition(".")[2] == "magic":
        value = field.raw.decode("ascii", "backslashreplace")
    elif isinstance(value, bytes) and len(value) > HEX_BYTES_SHOWN_MAX:
        value = f"{len(value)} bytes"
    return f"{value}  !! {field.problem}" if field.problem else value
