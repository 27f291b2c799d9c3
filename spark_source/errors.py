"""What the data source raises. Spark shows the text of an error, so each names what the user can change.

SourceError                 the root; has `retriable`
+-- OptionError             an option is missing, unknown or wrong; has `option`  (also a ValueError)
+-- SchemaError             a column that there is not, or not so; has `column`  (also a ValueError)
+-- CheckpointError         an offset of a checkpoint that does not fit the stream
+-- DataLossError           events between two batches were truncated away; has `missing`
+-- MalformedValueError     a value that is not what `valueFormat` and the schema say; has its position
+-- RowError                a row that can be no event; has `column`, `row` and `partition`
+-- IdentityError           Spark does not say which query and batch a task belongs to
+-- ReplacedError           the writer id is that of another query, or of a newer run of this one; final
+-- TransactionLostError    what tasks wrote was aborted before the driver committed it; retriable
"""

from collections.abc import Sequence
from dataclasses import dataclass


class SourceError(Exception):
    """Root of what the data source raises.

    Attributes:
        retriable: whether the same query or batch may simply be run again: nothing is done twice by that, and time
            alone can mend what was wrong.
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
    """A column that there is not, or not so."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        return f'column "{self.column}": {self.reason}'


class CheckpointError(SourceError):
    """An offset of a checkpoint that does not fit the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRange:
    """Bytes of a segment that were to be read and were truncated away.

    Attributes:
        start_index: events of the block at `start_offset` that were read before.
        end_offset: None: up to the end of the segment, which was deleted, so that its end is not known any more.
        events: how many are missing, None where nothing counts them.
    """

    segment_id: int
    start_offset: int
    start_index: int
    end_offset: int | None
    events: int | None = None

    def __str__(self) -> str:
        end = "its end, wherever that was" if self.end_offset is None else self.end_offset
        counted = "" if self.events is None else f" ({self.events} events)"
        return f"segment {self.segment_id} from {self.start_offset}.{self.start_index} to {end}{counted}"


class DataLossError(SourceError):
    """Events that were to be read were truncated away."""

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
    """A value that is not what the option `valueFormat` and the schema say."""

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
    """A row that can be no event.

    Attributes:
        column: which of its values.
        row: which one of its task, counted from 0.
        partition: of the task, as Spark counts them.
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
    """Spark does not say which query, run and batch a task belongs to."""


class ReplacedError(SourceError):
    """The writer id is that of another query, or of a newer run of this one: to try again is no use."""


class TransactionLostError(SourceError):
    """What tasks wrote was aborted before the driver committed it: nothing of the batch is in the streams.

    Run the batch again. If no task names its transaction for the option `transactionLease`, that has to be longer.
    """

    retriable = True


def _malformed_value(stream: str, segment: int, offset: int, index: int, reason: str) -> MalformedValueError:
    return MalformedValueError(stream, segment=segment, offset=offset, index=index, reason=reason)


def _row_error(column: str, row: int, partition: int, reason: str) -> RowError:
    return RowError(column, row=row, partition=partition, reason=reason)
