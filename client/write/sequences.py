"""The sequences that a caller gives to the events of a named writer.

A writer that is opened again asks what of its events the server has stored: everything through one sequence, and above
that the events at or below the mark of their place (`millrace.model.sequence_row`). What its caller writes again of
those is recognised, and not sent. For the rest the server is told, with each block, below which sequence everything is
stored. That is a promise: a sequence which is not stored, and never will be, keeps it down forever.
"""

from operator import index
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.client.errors import SequencesMixedError
from millrace.model.errors import InvalidArgumentError
from millrace.model.sequence_row import NO_SEQUENCE, SEQUENCE_MAX, SEQUENCES_PER_PLACE, SequenceRow, sequence_place

from .events import WriteResult

STORED_BEFORE: Final = WriteResult(0, None, 0, 0)
"""The outcome of an event that an earlier writer of the id has stored: nothing says where."""


class SequenceTracker:
    """What the caller of one writer has numbered since the writer was opened.

    Args:
        row: what is stored when the writer is opened.
        is_plain: events without sequences are stored, so that none may have one.
        is_named: the writer has an id; without one nobody resumes.

    Attributes:
        is_required: whether an event without a sequence is refused.
        highest: what was stored when the writer was opened is not above it.
        last: the highest that was taken; -1 before the first.
    """

    __slots__ = ("_failed", "_is_named", "_is_plain", "_row", "highest", "is_required", "last")

    def __init__(self, row: SequenceRow, *, is_plain: bool, is_named: bool) -> None:
        self._row = row
        self.highest = row.highest
        self._is_plain = is_plain
        self._is_named = is_named
        self.is_required = not row.is_empty
        self.last = NO_SEQUENCE
        # The lowest that will never be stored.
        self._failed: int | None = None

    def check(self, first: int | None, count: int = 1, *, has_taken: bool) -> int:
        """Return the first of so many sequences that are about to be taken.

        Args:
            has_taken: whether the writer has taken events before.

        Raises:
            InvalidArgumentError: they do not follow what was taken, or are none.
            SequencesMixedError: events of this writer on this stream have no sequences, or this one has none.
        """
        if self.is_required and type(first) is int and self.last < first <= SEQUENCE_MAX - count + 1:
            return first  # as a rule
        if first is None:
            raise SequencesMixedError("events of this writer on this stream have sequences: give one to each")
        if not self._is_named:
            raise InvalidArgumentError("only a writer with a writer_id takes sequences")
        if self._is_plain or (has_taken and not self.is_required):
            raise SequencesMixedError("events of this writer on this stream have no sequences: give none")
        if type(first) is not int:
            try:
                first = index(first)  # of numpy, say
            except TypeError:
                raise TypeError(f"a sequence is an integer, not {type(first).__name__}") from None
        if first <= self.last:
            raise InvalidArgumentError(f"sequence {first} does not follow {self.last}: they ascend over the stream")
        if first < 0 or first + count - 1 > SEQUENCE_MAX:
            raise InvalidArgumentError(f"sequences {first} to {first + count - 1} are not in 0 to {SEQUENCE_MAX}")
        return first

    def take(self, last: int) -> None:
        """Count sequences up to this one as written."""
        self.last = last
        self.is_required = True

    def fail(self, first: int) -> None:
        """Record that a sequence will not be stored by this writer."""
        self._failed = first if self._failed is None else min(self._failed, first)

    def is_stored(self, sequence: int, *, place: int) -> bool:
        """Return whether the event was stored before the writer was opened."""
        return sequence <= self.highest and self._row.is_stored(sequence, place=place)

    def new_among(self, first: int, places: "npt.NDArray[np.uint64]") -> list[int] | None:
        """Return the indices of the events, of consecutive sequences, that were not stored before; None for all."""
        if first > self.highest:
            return None
        stored_at = self._row.stored_at
        found, at = np.unique(places, return_inverse=True)
        marks = np.fromiter(map(stored_at, found.tolist()), dtype=np.int64, count=len(found))[at]
        return np.flatnonzero(np.arange(first, first + len(places), dtype=np.int64) > marks).tolist()

    def stored_below(self, unstored: int | None) -> int:
        """Return the sequence below which all that the writer was given is stored.

        Args:
            unstored: the lowest that is taken and not known to be stored; None if there is none.
        """
        if unstored is None:
            unstored = max(self.last, self._row.through) + 1
        return unstored if self._failed is None else min(unstored, self._failed)


NO_SEQUENCES: Final = SequenceTracker(SequenceRow(), is_plain=False, is_named=False)
"""Of a writer that is not open."""


def places_without_key(first: int, count: int) -> "npt.NDArray[np.uint64]":
    """Return the place of each of so many events of consecutive sequences that have no key."""
    chunks = np.arange(first, first + count, dtype=np.int64) // SEQUENCES_PER_PLACE
    starts = range(int(chunks[0]), int(chunks[-1]) + 1)
    places: npt.NDArray[np.uint64] = np.fromiter(
        (sequence_place(chunk * SEQUENCES_PER_PLACE) for chunk in starts), dtype=np.uint64, count=len(starts)
    )
    return np.asarray(places[chunks - chunks[0]], dtype=np.uint64)
