"""Cursors that move with a commit, or keep it from being made: so positions read and events written are one step."""

from collections.abc import Iterator, Sequence

from millrace.server.container.container import SegmentContainer
from millrace.server.errors import CursorMovedError, InvalidArgumentError
from millrace.wire import messages as m

from .commands import StreamCommands
from .cuts import check_borders, check_cut_keys, check_retained, check_room_beside, check_room_for_cuts


async def check_places(container: SegmentContainer, streams: StreamCommands, moves: Sequence[m.CursorMove]) -> None:
    """Raise unless cursors can be where they are to be moved. Safe to cancel.

    Raises:
        StreamNotFoundError: there is no such stream.
        CutInvalidError, CutTruncatedError, OffsetBeyondEndError: a cut does not fit its stream.
        InvalidArgumentError: a name is out of bounds, or a cursor is moved twice.
    """
    for name in {move.stream for move in moves}:
        of_stream = [move for move in moves if move.stream == name]
        check_cut_keys([(m.CutKind.CURSOR, move.name) for move in of_stream], name)
        check_room_for_cuts([len(move.positions) for move in of_stream], name)
    for move in moves:
        check_retained(container, streams.find(move.stream), move.positions)
        await check_borders(container, move.positions)


def are_moving(container: SegmentContainer, streams: StreamCommands, moves: Sequence[m.CursorMove]) -> bool:
    """Return whether one of these cursors is being moved, saved or forgotten already."""
    wanted = {(streams.find(move.stream).stream_id, move.name) for move in moves}
    return bool(wanted) and any(key in wanted for record in container.in_flight.records() for key in _moved_by(record))


def _moved_by(record: m.Record) -> Iterator[tuple[int, str]]:
    """Yield stream and name of each cursor that a record moves."""
    match record:
        case m.TransactionCommitted():
            yield from ((cursor.stream_id, cursor.name) for cursor in record.cursors)
        case m.CutsSaved():
            yield from ((record.stream_id, cut.name) for cut in record.cuts if cut.kind == m.CutKind.CURSOR)
        case m.CutForgotten() if record.kind == m.CutKind.CURSOR:
            yield record.stream_id, record.name
        case _:
            pass


def plan_moves(
    container: SegmentContainer, streams: StreamCommands, moves: Sequence[m.CursorMove]
) -> list[m.MovedCursor]:
    """Return the moves as a record has them; none of the cursors is being moved.

    Raises:
        CursorMovedError: one is not where it is expected.
        StreamNotFoundError, CutInvalidError, CutTruncatedError, OffsetBeyondEndError: as `check_places`, as of now.
        InvalidArgumentError: there is no room for another cursor.
    """
    moved = []
    for move in moves:
        stream = streams.find(move.stream)
        check_retained(container, stream, move.positions)
        current = stream.cuts.get((m.CutKind.CURSOR, move.name))
        found = [] if current is None else sorted(current.positions)
        if found != sorted(move.expected):
            raise CursorMovedError(
                f"cursor {move.name} of {move.stream} is at {_places(found)}, and not at {_places(move.expected)}",
                subject=move.name,
            )
        check_room_beside(container, stream, [m.NamedCut(m.CutKind.CURSOR, move.name, move.positions)])
        moved.append(m.MovedCursor(stream.stream_id, move.name, move.positions))
    return moved


def check_none(moves: Sequence[m.CursorMove], *, subject: str) -> None:
    """Raise InvalidArgumentError if there are moves: what is prepared can always be committed."""
    if moves:
        raise InvalidArgumentError("no cursor moves with a transaction that was prepared", subject=subject)


def _places(positions: Sequence[m.SavedPosition]) -> str:
    """Return where a cursor is, for people."""
    shown = ", ".join(f"{segment_id}:{offset}.{index}" for segment_id, offset, index in positions[:4])
    return f"{shown}, ..." if len(positions) > 4 else shown or "no place"
