"""Finds the rows that cannot be events, and says why.

All rows are first checked together, column by column. Single rows are searched only if that fails.
"""

import re
import sys
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.client.errors import ColumnInvalidError
from millrace.client.write.arrow import events_of
from millrace.model.errors import InvalidArgumentError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.spark_source.values import MalformedValue
from millrace.spark_source.values.dead_letters import RefusedRows

if TYPE_CHECKING:
    from .options import SinkOptions

_COLUMNS: Final = ("value", "key", "timestamp", "headers")
_ROW: Final = re.compile(r" \(row \d+\)$")
"""What the client says of rows, which are not those of a task."""


def check_events(events: pa.RecordBatch, *, append_size_max: int = APPEND_SIZE_BYTES_MAX) -> None:
    """Check events, each column by itself, so that the error has a column.

    Args:
        append_size_max: of the server, in bytes.

    Raises:
        ColumnInvalidError: one can be no event.
    """
    for name in _COLUMNS:
        if name not in events.schema.names:
            continue
        given = events.select(list(dict.fromkeys(["value", name])))
        try:
            events_of(given, now_us=0, append_size_max=append_size_max, size_bytes_max=sys.maxsize)
        except InvalidArgumentError as error:
            raise ColumnInvalidError(name, _ROW.sub("", str(error).removeprefix(f"column {name!r} "))) from None


def split_streams(events: pa.RecordBatch, options: "SinkOptions") -> tuple[pa.RecordBatch, RefusedRows]:
    """Return the events whose column `stream` names one of the option, and the others."""
    nothing = RefusedRows(events.slice(0, 0), ())
    if "stream" not in events.schema.names:
        return events, nothing
    named = events.column("stream")
    known = pc.is_in(named, value_set=pa.array(options.streams, pa.string()).cast(named.type))
    if options.default_stream is not None:
        known = pc.or_(known, named.is_null())
    if pc.all(known, min_count=0).as_py():
        return events, nothing
    bad = np.flatnonzero(~np.asarray(known)).tolist()
    texts = named.cast(pa.binary()).take(pa.array(bad, pa.int64())).to_pylist()
    listed = ", ".join(options.streams)
    reasons = tuple(
        MalformedValue(number, f"is {_shown(text)}, and the option stream names {listed}", "stream")
        for number, text in zip(bad, texts, strict=True)
    )
    return events.filter(known), RefusedRows(events.take(pa.array(bad, pa.int64())), reasons)


def _shown(text: bytes | None) -> str:
    return "null" if text is None else text.decode(errors="replace")
