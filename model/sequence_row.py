"""The progress of a writer on a stream, by the sequences of its events: numbers that its caller assigns.

Sequences are 0 to 2^63 - 1 and ascend over the whole stream, with gaps allowed. Blocks of different segments become
durable in any order, so one number cannot describe the stored events. A row uses two things:

    through     all events of the writer up to this sequence are stored
    marks       a step function over the key space: the highest sequence stored at each place, if above `through`

Events of one place become durable in the order of their sequences, whatever segment covers the place. So an event is
stored if and only if its sequence is at or below the mark of its place, or `through`. Scaling a stream and truncating
it do not change this.

Both ends have such rows. The server raises them when it stores blocks; a client that resumes compares its events with
one. `tests/model/test_sequence_row.py` compares the row with a plain list of places.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from .key_range import KEY_SPACE, KeyRange

SEQUENCE_MAX: Final = (1 << 63) - 1
NO_SEQUENCE: Final = -1
"""Before the first sequence: nothing is stored."""
SEQUENCES_PER_PLACE: Final = 1024
"""Consecutive sequences of events without a key that share a place: a block of them goes to one segment."""

_PIECE: Final = Struct("<Qq")
_UNJOINED_COUNT_MAX: Final = 64
"""So few pieces are not worth joining."""


def sequence_place(sequence: int) -> int:
    """Return the place of an event without a key in the key space, forever: an integer below 2^64.

    It is xxh3-64 of `sequence` // 1024 as 8 bytes, little-endian.

    >>> sequence_place(0) == sequence_place(1023) != sequence_place(1024)
    True
    """
    return xxh3_64_intdigest((sequence // SEQUENCES_PER_PLACE).to_bytes(8, "little"))


class SequenceRow:
    """The sequences that a writer has stored on a stream; see the module docstring.

    Args:
        through: everything up to it is stored.
        pieces: the marks, in the form that `pieces` returns.

    Raises:
        ValueError: this is not a valid row.
    """

    __slots__ = ("_join_above", "_lows", "_marks", "through")

    def __init__(self, through: int = NO_SEQUENCE, pieces: Iterable[tuple[int, int]] = ()) -> None:
        self.through = through
        # Piece i begins at place lows[i] and ends before lows[i + 1]. Its mark is the highest sequence stored there, or
        # NO_SEQUENCE. Scanning all pieces with each block would cost more than the block: marks that `through` has
        # reached, and neighbours with equal marks, stay until the pieces are read, or there are twice as many.
        self._lows = [0]
        self._marks = [NO_SEQUENCE]
        given = list(pieces)
        if given:
            self._lows = [low for low, _ in given]
            self._marks = [mark for _, mark in given]
        self._join_above = max(_UNJOINED_COUNT_MAX, 2 * len(self._lows))
        self._check()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SequenceRow):
            return NotImplemented
        return (self.through, self.pieces()) == (other.through, other.pieces())

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"SequenceRow(through={self.through}, pieces={self.pieces()})"

    def copy(self) -> "SequenceRow":
        """Return an independent copy."""
        other = SequenceRow(self.through)
        other._lows, other._marks = self._lows.copy(), self._marks.copy()
        other._join_above = self._join_above
        return other

    # --- what is stored ---

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever stored."""
        return self.through == NO_SEQUENCE and self._marks == [NO_SEQUENCE]

    @property
    def highest(self) -> int:
        """The highest sequence that is stored at any place, -1 if none is."""
        return max(self.through, *self._marks)

    @property
    def piece_count(self) -> int:
        """The number of pieces: at most twice as many as the last `join` left, or 64."""
        return len(self._lows)

    def stored_at(self, place: int) -> int:
        """Return the highest sequence that is stored at a place, -1 if none is."""
        return max(self.through, self._marks[bisect_right(self._lows, place) - 1])

    def is_stored(self, sequence: int, *, place: int) -> bool:
        """Return whether the event with this sequence, whose key has this place, is stored."""
        return sequence <= self.stored_at(place)

    def lowest_in(self, keys: KeyRange) -> int:
        """Return the lowest of the results of `stored_at` for the places of a range.

        The first sequence of a block to be stored there is above it.
        """
        first = bisect_right(self._lows, keys.low) - 1
        return max(self.through, min(self._marks[first : bisect_left(self._lows, keys.high)]))

    # --- what changes it ---

    def store(self, keys: KeyRange, *, last: int, stored_below: int) -> None:
        """Record a block of events in a segment, in time that grows with the pieces in its range, not with the others.

        Args:
            keys: the range of the segment: every place in it now has a mark of at least `last`.
            last: the last sequence of the block.
            stored_below: everything that the writer wrote below it is stored.
        """
        lows, marks = self._lows, self._marks
        first = self._cut(keys.low)
        end = self._cut(keys.high) if keys.high < KEY_SPACE else len(lows)
        if end - first > 1:
            self._keep(first, end, [max(mark, last) for mark in marks[first:end]])
        elif marks[first] < last:
            marks[first] = last
        self.raise_through(stored_below)
        if len(lows) > self._join_above:
            self.join()

    def raise_through(self, stored_below: int) -> bool:
        """Record that everything below `stored_below` is stored; return whether that changed the row."""
        if stored_below - 1 <= self.through:
            return False
        self.through = stored_below - 1
        return True

    def join(self) -> None:
        """Reduce the row to as few pieces as possible: at most 2 for each block above `through`, and 1."""
        through = self.through
        self._keep(0, len(self._lows), [mark if mark > through else NO_SEQUENCE for mark in self._marks])
        self._join_above = max(_UNJOINED_COUNT_MAX, 2 * len(self._lows))

    def _cut(self, place: int) -> int:
        """Begin a piece at a place; return its index."""
        index = bisect_left(self._lows, place)
        if index == len(self._lows) or self._lows[index] != place:
            self._lows.insert(index, place)
            self._marks.insert(index, self._marks[index - 1])
        return index

    def _keep(self, first: int, end: int, marks: list[int]) -> None:
        """Set the marks of some pieces, and join those that equal the previous one."""
        starts = [0, *(index for index in range(1, len(marks)) if marks[index] != marks[index - 1])]
        self._lows[first:end] = [self._lows[first + index] for index in starts]
        self._marks[first:end] = [marks[index] for index in starts]

    # --- encoding ---

    def pieces(self) -> list[tuple[int, int]]:
        """Return the start and the mark of each piece, -1 for none; an empty list if there is no mark.

        Marks are above `through`, and neighbours differ.
        """
        self.join()
        return [] if self._marks == [NO_SEQUENCE] else list(zip(self._lows, self._marks, strict=True))

    def encode_marks(self) -> bytes:
        """Return the pieces as bytes: 16 for each, its first place and its mark, little-endian."""
        return b"".join(_PIECE.pack(*piece) for piece in self.pieces())

    @classmethod
    def decode(cls, through: int, marks: bytes) -> "SequenceRow":
        """Decode the result of `encode_marks`.

        Raises:
            ValueError: the bytes are invalid.
        """
        if len(marks) % _PIECE.size:
            raise ValueError(f"marks of {len(marks)} bytes are not whole pieces of {_PIECE.size}")
        return cls(through, _PIECE.iter_unpack(marks))

    def _check(self) -> None:
        """Raise ValueError unless this is the canonical form of a row."""
        lows, marks = self._lows, self._marks
        if not NO_SEQUENCE <= self.through <= SEQUENCE_MAX:
            raise ValueError(f"everything through sequence {self.through}: sequences are 0 to {SEQUENCE_MAX}")
        if lows[0] != 0 or lows[-1] >= KEY_SPACE or any(low >= high for low, high in pairwise(lows)):
            raise ValueError("the pieces of the marks do not ascend from place 0")
        if any(left == right for left, right in pairwise(marks)):
            raise ValueError("neighbouring pieces of the marks are equal")
        if any(mark != NO_SEQUENCE and not self.through < mark <= SEQUENCE_MAX for mark in marks):
            raise ValueError(f"a mark is not above {self.through}, through which everything is stored")
