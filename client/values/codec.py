"""The interface of value formats: a decoder makes rows of values, an encoder values of rows.

Both work on whole columns. Where a batch holds something that is malformed, Arrow does not say where: then the halves
of it are tried, and theirs, until what is malformed stands alone. So a good batch costs nothing more, and a bad row
some twenty tries.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

T = TypeVar("T")


class MalformedError(Exception):
    """Something in a batch is not what the format and the schema say. Never leaves this package."""

    def __init__(self, reason: str, *, column: str | None = None) -> None:
        super().__init__(reason, column)
        self.reason = reason
        self.column = column


class MalformedValue(NamedTuple):
    """A value, or a row, that is not what the format and the schema say.

    Attributes:
        number: of it among those that were given, from 0.
        column: in which of its columns; None if it is malformed as a whole.
    """

    number: int
    reason: str
    column: str | None = None

    def __str__(self) -> str:
        return self.reason if self.column is None else f'column "{self.column}" {self.reason}'


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """The rows of some values that follow each other.

    Attributes:
        columns: the rows, in the order of the values; of malformed ones none.
        events: of each row, the number of its value, ascending.
        rows: of each row, its number among those of the value, from 0.
        malformed: in the order of the values.
    """

    columns: pa.RecordBatch
    events: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    malformed: tuple[MalformedValue, ...] = ()


class Decoder(Protocol):
    """Makes rows of values."""

    def decode(self, values: pa.BinaryArray) -> Iterator[DecodedRows]:
        """Yield the rows of all values, none of which is null, in their order and in batches of bounded size."""
        ...


def sift(
    start: int, end: int, work: Callable[[int, int], T], *, ends_at_first: bool = False
) -> tuple[list[tuple[int, T]], list[MalformedValue]]:
    """Return what `work(start, end)` returns, in one piece, or in several without those that are malformed.

    Args:
        work: raises MalformedError where something from `start` up to `end` is malformed.
        ends_at_first: look for the first that is malformed only, and leave out what follows it.

    Returns:
        The pieces with the number of their first, and what is malformed with its reason; both ascend.
    """
    if start == end:
        return [], []
    try:
        return [(start, work(start, end))], []
    except MalformedError as error:
        if end - start == 1:
            return [], [MalformedValue(start, error.reason, error.column)]
    middle = (start + end) // 2
    pieces, malformed = sift(start, middle, work, ends_at_first=ends_at_first)
    if malformed and ends_at_first:
        return pieces, malformed
    more_pieces, more_malformed = sift(middle, end, work, ends_at_first=ends_at_first)
    return pieces + more_pieces, malformed + more_malformed


def groups(sizes: npt.NDArray[np.int64], *, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of groups of neighbours of about this size, each of at least one."""
    ends = np.cumsum(sizes)
    start, taken = 0, 0
    while start < len(sizes):
        end = max(int(np.searchsorted(ends, taken + size_bytes, side="right")), start + 1)
        yield start, end
        start, taken = end, int(ends[end - 1])
