"""The errors of the data source. Spark shows the text of an error, so each says what the user can change.

SourceError                 the root; has `retriable` +-- OptionError             an option is missing, unknown or
wrong; has `option`  (also a ValueError) +-- SchemaError             a column does not exist, or has a wrong type; has
`column`  (also a ValueError) +-- CheckpointError         an offset of a checkpoint that does not fit the stream +--
DataLossError           events between two batches were truncated; has `missing` +-- MalformedValueError     a value
that does not match `valueFormat` and the schema; has its position +-- RowError                a row cannot become an
event; has `column`, `row` and `partition` +-- IdentityError           Spark does not identify the query and batch of a
task +-- ReplacedError           another query, or a newer run of this one, uses the writer id; final +--
BatchMismatchError      a batch was committed under the same number with other streams or input; final +--
TransactionLostError    the events of tasks were aborted before the driver committed them; retriable
"""

from collections.abc import Sequence
from dataclasses import dataclass


class SourceError(Exception):
    """The base class of all errors of the data source.

    Attributes:
        retriable: whether the same query or batch may be run again: nothing is done twice by that, and it may succeed
            then.
    """

    retriable: bool = False


class OptionError(SourceError, ValueError):
    """An option is missing, unknown or wrong."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(option, reason)
        self.option = option
        self.reason = reason

    def __str__(self) -> str:
        return f'option "{self.option}": {self.reason}'


class SchemaError(SourceError, ValueError):
    """A column does not exist, or has a wrong type."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        return f'column "{self.column}": {self.reason}'


class CheckpointError(SourceError):
    """An offset in the checkpoint does not fit the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRange:
    """Bytes of a segment that were truncated before the query read them.

    Attributes:
        start_index: events of the block at `start_offset` that were read before.
        end_offset: None: up to the end of the segment, which is unknown because the segment was deleted.
        end_index: events of the block at `end_offset` that are missing.
        events: the number of missing events, None if unknown.
    """

    segment_id: int
    start_offset: int
    start_index: int
    end_offset: int | None
    events: int | None = None
    end_index: int = 0

    def __str__(self) -> str:
        end = "its end, wherever that was" if self.end_offset is None else f"{self.end_offset}"
        end += f".{self.end_index}" if self.end_index else ""
        counted = "" if self.events is None else f" ({self.events} events)"
        return f"segment {self.segment_id} from {self.start_offset}.{self.start_index} to {end}{counted}"


class DataLossError(SourceError):
    """Events were deleted before the query could read them."""

    def __init__(self, stream: str, missing: Sequence[MissingRange]) -> None:
        super().__init__(stream, missing)
        self.stream = stream
        self.missing = tuple(missing)

    def __str__(self) -> str:
        return (
            f"{self.stream}: truncated before it was read: {', '.join(map(str, self.missing))}. "
            'Set option "failOnDataLoss" to "false" to continue with what is left.'
        )


class MalformedValueError(SourceError):
    """The value of an event does not fit the option `valueFormat` and the schema."""

    def __init__(self, stream: str, *, segment: int, offset: int, index: int, reason: str) -> None:
        super().__init__(stream, segment, offset, index, reason)
        self.stream = stream
        self.segment = segment
        self.offset = offset
        self.index = index
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy it by its arguments."""
        return _malformed_value, (self.stream, self.segment, self.offset, self.index, self.reason), vars(self)

    def __str__(self) -> str:
        return (
            f"{self.stream}: the value of the event in segment {self.segment} at {self.offset}.{self.index}"
            f" is malformed: {self.reason}"
        )


class RowError(SourceError):
    """A row cannot become an event.

    Attributes:
        column: the column with the wrong value.
        row: the number of the row in its task, from 0.
        partition: the number of the partition of the task.
    """

    def __init__(self, column: str, *, row: int, partition: int, reason: str) -> None:
        super().__init__(column, row, partition, reason)
        self.column = column
        self.row = row
        self.partition = partition
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy it by its arguments."""
        return _row_error, (self.column, self.row, self.partition, self.reason), vars(self)

    def __str__(self) -> str:
        return f'column "{self.column}", row {self.row} of partition {self.partition}: {self.reason}'


class IdentityError(SourceError):
    """Spark does not say to which query, run and batch a task belongs, so nothing can be written exactly once."""


class ReplacedError(SourceError):
    """The writer id is used by another query, or by a newer run of this one. Do not try again."""


class BatchMismatchError(SourceError):
    """A batch was committed under the same writer id and number, with other streams or other input. Do not try again.

    The checkpoint was copied, restored from a backup, or used with other streams. Nothing of the batch was written. The
    text names both, and what to do.
    """


class TransactionLostError(SourceError):
    """The transaction of a batch was aborted before the driver committed it. Nothing of the batch is in the streams.

    Run the batch again. If its tasks are silent for longer than the option `transactionLease`, set a longer lease.
    """

    retriable = True


def _malformed_value(stream: str, segment: int, offset: int, index: int, reason: str) -> MalformedValueError:
    return MalformedValueError(stream, segment=segment, offset=offset, index=index, reason=reason)


def _row_error(column: str, row: int, partition: int, reason: str) -> RowError:
    return RowError(column, row=row, partition=partition, reason=reason)
