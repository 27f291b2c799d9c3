"""The data of the demo: published temperatures and written text. No random numbers.

Temperatures of every hour of 2010 in Seattle and San Francisco travel inside the PyPI package `vega_datasets` (they are
as smooth as means over many years); text is what the authors of Python's standard library wrote into it. Neither needs
a network.
"""

import ast
import csv
import importlib.util
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

STATIONS: Final = {"KSEA": "seattle-temps.csv", "KSFO": "sf-temps.csv"}
"""The sensors, by the names that weather stations have, with their files."""
TEXT_MODULES: Final = (
    "argparse", "asyncio.tasks", "bisect", "calendar", "collections", "concurrent.futures", "contextlib", "csv",
    "dataclasses", "datetime", "decimal", "difflib", "email.message", "enum", "fractions", "functools", "heapq",
    "hmac", "http.client", "inspect", "ipaddress", "json", "logging", "mailbox", "optparse", "os", "pathlib",
    "pickle", "platform", "random", "shutil", "smtplib", "socket", "statistics", "string", "subprocess", "tarfile",
    "tempfile", "textwrap", "threading", "timeit", "tokenize", "typing", "unittest.case", "urllib.parse", "uuid",
    "weakref", "zipfile",
)  # fmt: skip


class Reading(NamedTuple):
    """One measurement of one sensor."""

    sensor: str
    timestamp_us: int
    temp_f: float

    @property
    def key(self) -> str:
        """Its sensor and the hour of the day: the series of each hour is one that keeps its order."""
        return f"{self.sensor} {self.timestamp_us // 3_600_000_000 % 24:02}h"

    def value(self) -> bytes:
        """Return the event."""
        return json.dumps({"sensor": self.sensor, "temp_f": self.temp_f}).encode()


class Line(NamedTuple):
    """A line of text and the module that it is from."""

    module: str
    text: str


def readings() -> list[Reading]:
    """Return the measurements of both cities in the order in which they were taken.

    Raises:
        ModuleNotFoundError: the package with the measurements is not installed.
    """
    found = []
    for sensor, name in STATIONS.items():
        found += [Reading(sensor, unix_us_of(row["date"]), float(row["temp"])) for row in rows_of(name)]
    return sorted(found, key=lambda reading: (reading.timestamp_us, reading.sensor))


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a file of the package with the measurements, each by the names of its columns.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    text = (files("vega_datasets") / "_data" / name).read_text()
    yield from csv.DictReader(text.splitlines())


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield some fifty modules of the standard library, as far as they are here: name and source, parsed."""
    for module in TEXT_MODULES:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            yield module, ast.parse(Path(spec.origin).read_bytes())


def lines() -> Iterator[Line]:
    """Yield what the docstrings of these modules say, line by line."""
    for module, source in modules():
        for node in ast.walk(source):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for line in (ast.get_docstring(node) or "").splitlines():
                    if line.strip():
                        yield Line(module, line.strip())


def unix_us_of(date: str) -> int:
    """Return the moment of `2010/01/01`, `2010/01/01 00:00` or `2010/01/01 00:00:00`; local time is taken as UTC."""
    moment = datetime.strptime(date[:16], "%Y/%m/%d %H:%M" if " " in date else "%Y/%m/%d").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000
