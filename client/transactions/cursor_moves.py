"""How a commit names a cursor that moves with it."""

from millrace.model.cut import StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.names import checked_stream_name
from millrace.wire import messages as m


def cursor_move(stream: str, cursor: str, cut: StreamCut, *, expected: StreamCut | None) -> m.CursorMove:
    """Return the move of a cursor to `cut`, from `expected` or, if that is None, from nowhere.

    Raises:
        InvalidArgumentError: one of them is no cut of the stream. HEAD, TAIL and times are none: where they are may
            change until the commit.
        InvalidNameError: of the stream.
    """
    return m.CursorMove(
        checked_stream_name(stream),
        cursor,
        [] if expected is None else _positions(stream, expected),
        _positions(stream, cut),
    )


def _positions(stream: str, cut: StreamCut) -> list[m.SavedPosition]:
    if not isinstance(cut, StreamCut) or cut.stream != stream:
        raise InvalidArgumentError(f"{cut!r} is no cut of {stream}: a cursor advances from one StreamCut to another")
    return [m.SavedPosition(segment_id, *place) for segment_id, place in cut.positions]
