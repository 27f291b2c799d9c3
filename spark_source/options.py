"""The options of the source: strings from Spark, checked, to a frozen record."""

import difflib
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from millrace.client.options import parse_address
from millrace.model.cut import HEAD, CutChoice, PastCut, StreamCut, parse_choice
from millrace.model.quantities import parse_duration, parse_size
from millrace.model.slice import Slice

from .errors import OptionError
from .values.formats import Mode, ValueFormat

Choice = TypeVar("Choice", bound=StrEnum)

COLUMN_NAMES: Final = ("value", "key", "timestamp", "stream", "segment", "offset", "index", "headers")
DEFAULT_COLUMNS: Final = COLUMN_NAMES[:-1]
PARTITION_SIZE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read, and how much at a time.

    Attributes:
        end_cut: None reads a batch up to its tail, a stream forever.
        key: read the events of this key only; None for all.
        max_bytes, max_events: the most of one micro-batch; None for no limit.
        partition_bytes: about the bytes that one task reads.
        columns: what is handed to Spark; it cannot ask a Python source for fewer.
        value_format: None leaves values as they are; else the columns of a schema are decoded from them.
        mode: what becomes of an event whose value is not of that format and schema.
        outage_timeout_s: how long a query that runs waits, each time, for a server that is away.
    """

    address: str
    stream: str
    start_cut: CutChoice = HEAD
    end_cut: CutChoice | None = None
    key: str | None = None
    max_bytes: int | None = None
    max_events: int | None = None
    partition_bytes: int = PARTITION_SIZE_BYTES
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    value_format: ValueFormat | None = None
    mode: Mode = Mode.FAILFAST
    fail_on_data_loss: bool = True
    outage_timeout_s: float = math.inf
    token: str = field(default="", repr=False)
    tls: bool = False


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options that Spark was given; their names are read without regard to case.

    Raises:
        OptionError: one is missing, unknown or wrong; names it.
    """
    given: dict[str, str] = {}
    for key, value in options.items():
        name = _NAME_OF_LOWERED.get(key.lower())
        if name is None:
            raise OptionError(key, f"unknown; {_advice(key)}")
        given[name] = value if name in _VERBATIM else value.strip()
    for name in ("address",) if "slice" in given else ("address", "stream"):
        if not given.get(name):
            raise OptionError(name, "missing")
    for name in _OF_A_SLICE:
        if "slice" in given and name in given:
            raise OptionError(name, f"is given, and the option slice has it: {given['slice']}")
    values: dict[str, Any] = {}
    for name, text in given.items():
        field_name, parse = _OPTIONS[name]
        try:
            values[field_name] = parse(text)
        except ValueError as error:
            raise OptionError(name, str(error)) from None
    if "part" in values:
        part: Slice = values.pop("part")
        values |= {"stream": part.stream, "start_cut": part.start, "end_cut": part.end, "key": part.key}
    if values.pop("with_headers", False) and "headers" not in values.get("columns", ()):
        values["columns"] = (*values.get("columns", DEFAULT_COLUMNS), "headers")
    if "value_format" not in values and "mode" in given:
        raise OptionError("mode", "is about values that are decoded: it goes with valueFormat")
    for name in _OF_PLAIN_ROWS:
        if "value_format" in values and name in given:
            raise OptionError(name, "goes without valueFormat: there the schema names the columns")
    for name in ("startCut", "endCut"):
        field_name = _OPTIONS[name][0]
        if field_name not in values:
            continue
        cut = values[field_name] = _fixed(values[field_name])
        if isinstance(cut, StreamCut) and cut.stream != values["stream"]:
            raise OptionError(name, f"is a cut of {cut.stream}, and the stream is {values['stream']}")
    return SourceOptions(**values)


def segments_of(choice: CutChoice | None) -> Collection[int]:
    """Return the segments that a choice names without a request to the server."""
    return choice.places if isinstance(choice, StreamCut) else ()


def _advice(key: str) -> str:
    close = difflib.get_close_matches(key.lower(), _NAME_OF_LOWERED, n=1)
    return f"did you mean {_NAME_OF_LOWERED[close[0]]}?" if close else f"the options are {', '.join(OPTION_NAMES)}"


def _address(text: str) -> str:
    return str(parse_address(text))


def _fixed(choice: CutChoice | None) -> CutChoice | None:
    """Return a choice that means the same whenever it is used: a time ago as that of now."""
    return choice.at(time.time_ns() // 1000) if isinstance(choice, PastCut) else choice


def _size(text: str) -> int:
    size = parse_size(text)
    if not 0 < size < 1 << 63:
        raise ValueError(f"{text!r} must be above 0 and below 8 EiB")
    return size


def _duration(text: str) -> float:
    duration_s = parse_duration(text)
    if not duration_s > 0:
        raise ValueError(f"{text!r} must be above 0")
    return duration_s


def _columns(text: str) -> tuple[str, ...]:
    """Return the names in a list like `key, value`."""
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in COLUMN_NAMES:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(COLUMN_NAMES)}")
        if names.count(name) > 1:
            raise ValueError(f"{name} is named twice")
    return names


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63):
        raise ValueError(f"{text!r} is no number above 0")
    return int(text)


def _value_format(text: str) -> ValueFormat:
    return _one_of(ValueFormat, text.lower())


def _mode(text: str) -> Mode:
    return _one_of(Mode, text.upper())


def _one_of(choices: type[Choice], text: str) -> Choice:
    try:
        return choices(text)
    except ValueError:
        raise ValueError(f"{text!r} is none of {', '.join(choices)}") from None


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return lowered == "true"


_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "address": ("address", _address),
    "stream": ("stream", str),
    "slice": ("part", Slice.parse),
    "startCut": ("start_cut", parse_choice),
    "endCut": ("end_cut", parse_choice),
    "key": ("key", str),
    "maxBytesPerTrigger": ("max_bytes", _size),
    "maxEventsPerTrigger": ("max_events", _count),
    "partitionBytes": ("partition_bytes", _size),
    "columns": ("columns", _columns),
    "includeHeaders": ("with_headers", _flag),
    "valueFormat": ("value_format", _value_format),
    "mode": ("mode", _mode),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "outageTimeout": ("outage_timeout_s", _duration),
    "token": ("token", str),
    "tls": ("tls", _flag),
}
"""Each option of Spark with the field that keeps it, and what reads it: raises ValueError where it is wrong."""
OPTION_NAMES: Final = tuple(_OPTIONS)
_VERBATIM: Final = ("key", "slice")
"""Options whose blanks belong to them."""
_OF_A_SLICE: Final = ("stream", "startCut", "endCut", "key")
_OF_PLAIN_ROWS: Final = ("columns", "includeHeaders")
_NAME_OF_LOWERED: Final = {name.lower(): name for name in OPTION_NAMES}
