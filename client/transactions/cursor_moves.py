"""Cursor moves of a commit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from millrace.model.cut import CutChoice, Place, StreamCut, check_stream, chosen
from millrace.model.errors import InvalidArgumentError
from millrace.model.names import checked_stream_name
from millrace.wire import messages as m

FindCut = Callable[[str, CutChoice], Awaitable[StreamCut]]
"""Returns the cut of a stream that is meant, as it is now."""


class _Move(NamedTuple):
    """Where a cursor goes, and where it has to be: None is nowhere."""

    cut: CutChoice
    expected: CutChoice | None

    @property
    def is_found(self) -> bool:
        """Whether no place in it is named in words."""
        return isinstance(self.cut, StreamCut) and isinstance(self.expected, StreamCut | None)


class CursorMoves:
    """The cursors that move with one transaction, each once.

    Args:
        find: asked at the commit where a place is that is named in words.
    """

    def __init__(self, find: FindCut) -> None:
        self._find = find
        self._moves: dict[tuple[str, str], _Move] = {}
        # Two commits at once must name the same places.
        self._finding = asyncio.Lock()

    def __bool__(self) -> bool:
        return bool(self._moves)

    def add(self, stream: str, cursor: str, cut: Place, *, expected: Place | None) -> None:
        """Let a cursor move. Raises like `Transaction.advance`."""
        checked_stream_name(stream)
        if (stream, cursor) in self._moves:
            raise InvalidArgumentError(f"cursor {cursor} of {stream} moves with this transaction already: advance once")
        move = _Move(chosen(cut), None if expected is None else chosen(expected))
        for place in move:
            check_stream(stream, place)
        self._moves[stream, cursor] = move

    async def found(self) -> list[m.CursorMove]:
        """Return the moves as a commit names them.

        What was found stays: a commit that is asked for again is the same. Raises like `FindCut`.
        """
        async with self._finding:
            # Others may be added meanwhile: the transaction is still open.
            while named := [key for key, move in self._moves.items() if not move.is_found]:
                for stream, cursor in named:
                    move = self._moves[stream, cursor]
                    cut = await self._cut(stream, move.cut)
                    expected = None if move.expected is None else await self._cut(stream, move.expected)
                    self._moves[stream, cursor] = _Move(cut, expected)
        return [
            m.CursorMove(stream, cursor, _positions(move.expected), _positions(move.cut))
            for (stream, cursor), move in self._moves.items()
        ]

    async def _cut(self, stream: str, place: CutChoice) -> StreamCut:
        return place if isinstance(place, StreamCut) else await self._find(stream, place)


def _positions(cut: CutChoice | None) -> list[m.SavedPosition]:
    if cut is None:
        return []
    assert isinstance(cut, StreamCut)
    return [m.SavedPosition(segment_id, *place) for segment_id, place in cut.positions]
