"""Rows that can be no event, as events of another stream that say why.

    value       that of the event; of one that is too large, its beginning; nothing for null; of a row that has no form
                in the format, the row as an Arrow IPC stream
    key, timestamp, headers    those of the event, as far as they can be; and these headers:
        dead-letter-error     why
        dead-letter-stream    the stream that the event was for
        dead-letter-batch     the batch that it was in
        dead-letter-format    "arrow" where the value is a row that has no form in the format
        dead-letter-size      the bytes of a value of which this is the beginning

They are written in the transaction of the batch that they were in: so each is there once, like the events beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from millrace.client.values.codec import MalformedError, MalformedValue, sift
from millrace.model.block_packing import checked_headers
from millrace.model.errors import MillraceError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX, EVENT_SIZE_BYTES_MAX, ROUTING_KEY_SIZE_BYTES_MAX

from .encoder import EncodedRows

KEPT_SIZE_BYTES: Final = 1 << 20
"""Of a value that is larger than an event can be."""
REASON_LENGTH_MAX: Final = 2000
_SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
    ]
)
_GIVEN_TYPES: Final = {
    "value": pa.binary(),
    "key": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.map_(pa.binary(), pa.binary()),
    "stream": pa.binary(),
}
"""Of what was refused. Text is read as bytes: that of Spark may not be UTF-8."""


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows of a batch that can be no event.

    Attributes:
        events: what they would be, as far as they can be: the columns of events.
        reasons: of each, with its number in the batch.
        value_format: of the values where they are not what the event would have.
    """

    events: pa.RecordBatch
    reasons: tuple[MalformedValue, ...]
    value_format: str | None = None

    @classmethod
    def by_encoder(cls, encoded: EncodedRows) -> "RefusedRows":
        """Return the rows that have no form in the format."""
        return cls(encoded.refused, encoded.reasons, "arrow")


def split_refused(
    events: pa.RecordBatch, check: Callable[[pa.RecordBatch], object], *, ends_at_first: bool = False
) -> tuple[list[pa.RecordBatch], RefusedRows]:
    """Return the events that can be written, in their order, and those that cannot.

    Args:
        check: raises MillraceError where one of its rows can be no event; `column` of the error is in which column.
        ends_at_first: look for the first that cannot only, and leave out what follows it.
    """

    def checked(start: int, end: int) -> pa.RecordBatch:
        part = events.slice(start, end - start)
        try:
            check(part)
        except MillraceError as error:
            column: str | None = getattr(error, "column", None)
            reason = str(error) if column is None else str(error).removeprefix(f"column {column!r} ")
            raise MalformedError(reason, column=column) from None
        return part

    pieces, malformed = sift(0, len(events), checked, ends_at_first=ends_at_first)
    refused = events.take(pa.array([row.number for row in malformed], pa.int64()))
    return [piece for _, piece in pieces], RefusedRows(refused, tuple(malformed))


def dead_letters(
    refused: RefusedRows, *, stream: str | None, batch: str, append_size_max: int = APPEND_SIZE_BYTES_MAX
) -> pa.RecordBatch:
    """Return the events for the dead-letter stream.

    Args:
        stream: that the events were for, unless their column `stream` says another.
        batch: its name.
        append_size_max: of the server, in bytes: the other half of an append is for key and headers.
    """
    size_max = min(EVENT_SIZE_BYTES_MAX, append_size_max // 2)
    columns = {
        name: refused.events.column(name).cast(kind).to_pylist()
        for name, kind in _GIVEN_TYPES.items()
        if name in refused.events.schema.names
    }
    rows = []
    for number, reason in enumerate(refused.reasons):
        given = {name: column[number] for name, column in columns.items()}
        value = given["value"] or b""
        notes = {
            "dead-letter-error": str(reason)[:REASON_LENGTH_MAX].encode(),
            "dead-letter-stream": given.get("stream") or (stream or "").encode(),
            "dead-letter-batch": batch.encode(),
        }
        if refused.value_format is not None:
            notes["dead-letter-format"] = refused.value_format.encode()
        if len(value) > size_max:
            notes["dead-letter-size"] = b"%d" % len(value)
            value = value[: min(KEPT_SIZE_BYTES, size_max)]
        headers = _with_notes(given.get("headers") or [], notes)
        rows.append(
            {
                "value": value,
                "key": _key(given.get("key")),
                "timestamp": given.get("timestamp"),
                "headers": list(headers.items()),
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def _key(key: bytes | None) -> str | None:
    """Return a key that can be one."""
    if key is None or len(key) > ROUTING_KEY_SIZE_BYTES_MAX:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _with_notes(given: list[tuple[bytes, Any]], notes: dict[str, bytes]) -> dict[str, bytes]:
    """Return the headers of an event with notes; without its own where they cannot be headers, or are too many."""
    try:
        headers = {name.decode(): value for name, value in given} | notes
        checked_headers(headers)
    except (MillraceError, UnicodeDecodeError, TypeError):
        return notes
    return headers
