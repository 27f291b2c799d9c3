"""The options of the source: strings from Spark, checked, to a frozen record."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.model.cut import HEAD, CutChoice, PastCut, StreamCut, is_saved, parse_choice
from millrace.model.quantities import parse_duration
from millrace.model.selection import ANY, Selection, is_pattern
from millrace.model.slice import Slice

from .cut_lists import BETWEEN, parse_cuts
from .errors import OptionError
from .kafka_names import kafka_advice
from .option_values import (
    address_of,
    choice_of,
    count_of,
    duration_of,
    flag_of,
    named_options,
    names_of,
    size_of,
    stream_names_of,
    value_format_of,
    values_of,
)
from .table_options import missing_reason
from .values.formats import Mode, ValueFormat

COLUMN_NAMES: Final = ("value", "key", "timestamp", "stream", "segment", "offset", "index", "headers")
DEFAULT_COLUMNS: Final = COLUMN_NAMES[:-1]
CURSOR_HOLD_S: Final = 7 * 86400.0
CURSOR_HOLD_S_MAX: Final = 10_000 * 86400
CURSOR_NAME_SIZE_BYTES_MAX: Final = 255

Cuts = CutChoice | tuple[StreamCut, ...]
"""One cut for all streams, or one for each named stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The streams to read, and the limits.

    Attributes:
        start_cut: streams without a cut here are read from their heads.
        end_cut: None reads a batch up to its tail, a query without an end.
        key: read the events of this key only; None for all.
        max_bytes, max_events: limit of one micro-batch; None for no limit.
        partition_bytes: approximate bytes per task; None for one task per open segment.
        min_partitions: at least this many tasks, if segments can be divided into as many.
        cursor: the name of the query on the server; None for a generated one.
        cursor_hold_s: how long the server retains unread events after the query last set its cursor.
        columns: the columns for Spark, which cannot prune those of a Python source.
        value_format: None leaves values unchanged; otherwise the columns of a schema are decoded from them.
        mode: how to handle an event whose value does not match that format and schema.
        outage_timeout_s: how long a running query waits, each time, for an unreachable server.
    """

    address: str
    selection: Selection
    start_cut: Cuts = HEAD
    end_cut: Cuts | None = None
    key: str | None = None
    max_bytes: int | None = None
    max_events: int | None = None
    partition_bytes: int | None = None
    min_partitions: int = 1
    cursor: str | None = None
    cursor_hold_s: float = CURSOR_HOLD_S
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    value_format: ValueFormat | None = None
    mode: Mode = Mode.FAILFAST
    fail_on_data_loss: bool = True
    outage_timeout_s: float = math.inf
    token: str = field(default="", repr=False)
    tls: bool = False

    def start_of(self, stream: str) -> CutChoice:
        """Return the cut at which reading a stream begins."""
        choice = _of_stream(self.start_cut, stream)
        return HEAD if choice is None else choice

    def end_of(self, stream: str) -> CutChoice | None:
        """Return the cut at which reading a stream ends; None for no end.

        Raises:
            OptionError: `endCut` has cuts, but none of the stream.
        """
        if self.end_cut is None:
            return None
        choice = _of_stream(self.end_cut, stream)
        if choice is None:
            raise OptionError("endCut", f"has no cut of {stream}")
        return choice


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options from Spark; their names ignore case.

    Raises:
        OptionError: an option is missing, unknown or wrong; names it.
    """
    given = named_options(options, OPTION_NAMES, verbatim=_VERBATIM, advise=kafka_advice)
    if not given.get("address"):
        raise OptionError("address", missing_reason("address", given))
    if not any(given.get(name) for name in ("stream", "streamPattern", "slice")):
        raise OptionError("stream", "missing")
    for name in _OF_A_SLICE:
        if "slice" in given and name in given:
            raise OptionError(name, f"is given, and the option slice has it: {given['slice']}")
    values = values_of(given, _OPTIONS)
    if "part" in values:
        part: Slice = values.pop("part")
        values |= {"names": (part.stream,), "start_cut": part.start, "end_cut": part.end, "key": part.key}
    values["selection"] = selection = Selection(values.pop("names", ()), values.pop("patterns", ()))
    if values.pop("with_headers", False) and "headers" not in values.get("columns", ()):
        values["columns"] = (*values.get("columns", DEFAULT_COLUMNS), "headers")
    if "value_format" not in values and "mode" in given:
        raise OptionError("mode", "is about values that are decoded: it goes with valueFormat")
    for name in _OF_PLAIN_ROWS:
        if "value_format" in values and name in given:
            raise OptionError(name, "goes without valueFormat: there the schema names the columns")
    for name in ("startCut", "endCut"):
        field_name = _OPTIONS[name][0]
        if (cuts := values.get(field_name)) is not None:
            values[field_name] = _fixed(name, cuts, selection)
    return SourceOptions(**values)


def _fixed(option: str, cuts: Cuts, selection: Selection) -> Cuts:
    """Return cuts that do not depend on the time of their use, checked against the streams.

    Raises:
        OptionError: a cut of a stream that is not read, or an end for some of the named streams only.
    """
    if isinstance(cuts, PastCut):
        return cuts.at(time.time_ns() // 1000)
    each = (cuts,) if isinstance(cuts, StreamCut) else cuts
    if not isinstance(each, tuple):
        return cuts
    for cut in each:
        if cut.stream not in selection.names and not selection.matches(cut.stream):
            names = ", ".join((*selection.names, *selection.patterns))
            raise OptionError(option, f"is a cut of {cut.stream}, and what is read is {names}")
    left = [name for name in selection.names if name not in {cut.stream for cut in each}]
    if option == "endCut" and left:
        raise OptionError(option, f"has no cut of {', '.join(left)}")
    return each


def _of_stream(cuts: Cuts, stream: str) -> CutChoice | None:
    """Return the cut of a stream, None if there are cuts but none of it."""
    if not isinstance(cuts, tuple):
        return cuts
    return next((cut for cut in cuts if cut.stream == stream), None)


def _names(text: str) -> tuple[str, ...]:
    for name in names_of(text):
        if is_pattern(name):
            raise ValueError(f"{name} is a pattern: write streamPattern={name}")
    return stream_names_of(text)


def _patterns(text: str) -> tuple[str, ...]:
    """Return the patterns in a list like `plant/sensor-*`."""
    patterns = names_of(text)
    for pattern in patterns:
        if not is_pattern(pattern):
            raise ValueError(f"{pattern!r} has no {ANY}, which stands for any characters: write stream={pattern}")
    return patterns


def _cuts(text: str) -> Cuts:
    return parse_cuts(text) if BETWEEN in text and not is_saved(text) else parse_choice(text)


def _cursor(text: str) -> str:
    if not text.isprintable() or not 1 <= len(text.encode()) <= CURSOR_NAME_SIZE_BYTES_MAX:
        raise ValueError(f"{text[:80]!r} is not 1 to {CURSOR_NAME_SIZE_BYTES_MAX} bytes of printable text")
    return text


def _hold(text: str) -> float:
    hold_s = parse_duration(text)
    if not 1 <= hold_s <= CURSOR_HOLD_S_MAX:
        raise ValueError(f"{text!r} is not between a second and {CURSOR_HOLD_S_MAX // 86400} days")
    return hold_s


def _columns(text: str) -> tuple[str, ...]:
    """Return the names in a list like `key, value`."""
    names = names_of(text.lower())
    for name in names:
        if name not in COLUMN_NAMES:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(COLUMN_NAMES)}")
    return names


def _mode(text: str) -> Mode:
    return choice_of(Mode, text.upper())


_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "address": ("address", address_of),
    "stream": ("names", _names),
    "streamPattern": ("patterns", _patterns),
    "slice": ("part", Slice.parse),
    "startCut": ("start_cut", _cuts),
    "endCut": ("end_cut", _cuts),
    "key": ("key", str),
    "maxBytesPerTrigger": ("max_bytes", size_of),
    "maxEventsPerTrigger": ("max_events", count_of),
    "partitionBytes": ("partition_bytes", size_of),
    "minPartitions": ("min_partitions", count_of),
    "cursor": ("cursor", _cursor),
    "cursorHold": ("cursor_hold_s", _hold),
    "columns": ("columns", _columns),
    "includeHeaders": ("with_headers", flag_of),
    "valueFormat": ("value_format", value_format_of),
    "mode": ("mode", _mode),
    "failOnDataLoss": ("fail_on_data_loss", flag_of),
    "outageTimeout": ("outage_timeout_s", duration_of),
    "token": ("token", str),
    "tls": ("tls", flag_of),
}
"""For each option of Spark its field, and its parser, which raises ValueError for an invalid value."""
OPTION_NAMES: Final = tuple(_OPTIONS)
_VERBATIM: Final = ("key", "slice")
"""Options whose blanks are significant."""
_OF_A_SLICE: Final = ("stream", "streamPattern", "startCut", "endCut", "key")
_OF_PLAIN_ROWS: Final = ("columns", "includeHeaders")
