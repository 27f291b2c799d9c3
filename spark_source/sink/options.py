"""The options of the sink: strings from Spark, checked, to a frozen record."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.names import checked_stream_name, checked_writer_id
from millrace.model.sequence_row import SEQUENCE_MAX
from millrace.spark_source.errors import OptionError
from millrace.spark_source.option_values import (
    address_of,
    count_of,
    duration_of,
    flag_of,
    named_options,
    stream_names_of,
    value_format_of,
    values_of,
)
from millrace.spark_source.table_options import missing_reason
from millrace.spark_source.values.formats import ValueFormat

from .identity import WRITER_ID_SIZE_BYTES_MAX

LEASE_S: Final = 600.0
LEASE_S_MIN: Final = 1.0
STREAMS_COUNT_MAX: Final = 100
"""Of a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where to write, and as whom.

    Attributes:
        streams: of each transaction; where there are several, the column `stream` says which.
        create_segments: a stream that is not there is made, with so many segments; None: it has to be there.
        writer_id: the identity whose batches are each committed once; None: that of the query.
        value_format: None: the columns are those of events; else they are encoded into values.
        key_column: with a value format: the column whose values are the keys; None: `_key`, if there is one.
        dead_letter_stream: where rows go that can be no event; None: such a row fails the batch.
        checkpoint: where the query keeps its offsets, as the options of the query say; None: they do not say it.
        batch_id: of a batch write: what it writes under this number of its writer id is committed once.
        lease_s: a transaction that nothing has named for so long is aborted by the server.
        outage_timeout_s: how long tasks and commits wait, each time, for a server that is away.
    """

    address: str
    streams: tuple[str, ...]
    create_segments: int | None = None
    writer_id: str | None = None
    checkpoint: str | None = None
    batch_id: int | None = None
    value_format: ValueFormat | None = None
    key_column: str | None = None
    dead_letter_stream: str | None = None
    lease_s: float = LEASE_S
    outage_timeout_s: float = math.inf
    token: str = field(default="", repr=False)
    tls: bool = False

    @property
    def all_streams(self) -> tuple[str, ...]:
        """Those of each transaction: the streams, and that of dead letters."""
        return self.streams if self.dead_letter_stream is None else (*self.streams, self.dead_letter_stream)

    @property
    def default_stream(self) -> str | None:
        """The stream of rows that name none; None: each has to name one."""
        return self.streams[0] if len(self.streams) == 1 else None


def parse_sink_options(options: Mapping[str, str], *, is_streaming: bool) -> SinkOptions:
    """Return the options that Spark was given; their names are read without regard to case.

    Raises:
        OptionError: one is missing, unknown or wrong; names it.
    """
    ours = {key: value for key, value in options.items() if key.lower() not in _OF_SPARK}
    given = named_options(ours, SINK_OPTION_NAMES, verbatim=("writerId", "keyColumn"))
    for name in ("address", "stream"):
        if not given.get(name):
            raise OptionError(name, missing_reason(name, given))
    if is_streaming and "batchId" in given:
        raise OptionError("batchId", "is for batch writes: the batches of a query have numbers of their own")
    if not is_streaming and ("batchId" in given) != ("writerId" in given):
        missing, other = ("writerId", "batchId") if "batchId" in given else ("batchId", "writerId")
        raise OptionError(missing, f"missing: a batch write that is to be committed once has it beside {other}")
    if "keyColumn" in given and "valueFormat" not in given:
        raise OptionError("keyColumn", "goes with valueFormat: without it the column key is the key")
    checkpoint = next((value for key, value in options.items() if key.lower() == _CHECKPOINT), None)
    parsed = SinkOptions(**values_of(given, _OPTIONS), checkpoint=checkpoint if is_streaming else None)
    if parsed.dead_letter_stream in parsed.streams:
        raise OptionError("deadLetterStream", f"{parsed.dead_letter_stream} is one of the option stream: name another")
    if len(parsed.all_streams) > STREAMS_COUNT_MAX:
        reason = f"is one more than the {STREAMS_COUNT_MAX} streams that a transaction is over at most"
        raise OptionError("deadLetterStream", reason)
    return parsed


def _streams(text: str) -> tuple[str, ...]:
    names = stream_names_of(text)
    if len(names) > STREAMS_COUNT_MAX:
        raise ValueError(f"{len(names)} streams, and a transaction is over {STREAMS_COUNT_MAX} at most")
    return names


def _segments(text: str) -> int:
    count = count_of(text)
    if count > SEGMENTS_PER_STREAM_MAX:
        raise ValueError(f"a stream has at most {SEGMENTS_PER_STREAM_MAX} segments, not {count}")
    return count


def _writer_id(text: str) -> str:
    checked_writer_id(text)
    if len(text.encode()) > WRITER_ID_SIZE_BYTES_MAX:
        raise ValueError(f"a writer id of the sink has at most {WRITER_ID_SIZE_BYTES_MAX} bytes")
    return text


def _batch_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= SEQUENCE_MAX):
        raise ValueError(f"{text!r} is no number from 0 on")
    return int(text)


def _lease(text: str) -> float:
    lease_s = duration_of(text)
    if not LEASE_S_MIN <= lease_s < math.inf:
        raise ValueError(f"{text!r} must be at least {LEASE_S_MIN:g} s")
    return lease_s


_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "address": ("address", address_of),
    "stream": ("streams", _streams),
    "createSegments": ("create_segments", _segments),
    "writerId": ("writer_id", _writer_id),
    "batchId": ("batch_id", _batch_id),
    "valueFormat": ("value_format", value_format_of),
    "keyColumn": ("key_column", str),
    "deadLetterStream": ("dead_letter_stream", checked_stream_name),
    "transactionLease": ("lease_s", _lease),
    "outageTimeout": ("outage_timeout_s", duration_of),
    "token": ("token", str),
    "tls": ("tls", flag_of),
}
"""Each option of Spark with the field that keeps it, and what reads it: raises ValueError where it is wrong."""
SINK_OPTION_NAMES: Final = tuple(_OPTIONS)
_CHECKPOINT: Final = "checkpointlocation"
_OF_SPARK: Final = frozenset({_CHECKPOINT, "queryname"})
"""Options of each streaming query, which Spark hands to its sink, too."""
