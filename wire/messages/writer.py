"""Messages about writers, whose events are stored once however often they are sent."""

from typing import NamedTuple

from .declaration import I64, U8, U32, U64, FromServer, List16, Request, SegmentId, WriterId, message


class WriterState(NamedTuple):
    """The last event number stored by a writer in a segment; 0 = never written."""

    segment_id: U64
    last_event_number: U64


@message(36, kw_only=True)
class WriterOpened(FromServer):
    """The writer, its epoch, and its last event number in each of the segments asked for.

    Of a writer whose state has expired number and epoch are those which it had, and it is not `known`. One that was
    opened to start over is new, and tells when the state before it expired.
    """

    writer_number: U64
    writer_epoch: U32
    known: U8  # 1: it was there before, and its state is kept
    active_us: I64  # its last durable append or open before this, to within a minute; 0: never
    expired_us: I64  # when the state that was kept under its id expired; 0 if it did not
    states: List16[WriterState]


@message(35)
class OpenWriter(Request[WriterOpened]):
    """Open a writer under a new epoch; an empty id asks for a fresh unnamed one.

    An id whose state has expired is refused with WRITER_EXPIRED, unless it is to `start_over`.
    """

    writer_id: WriterId
    segment_ids: List16[SegmentId]
    start_over: U8  # 1: start from nothing where the state of that id has expired, rather than fail


@message(37)
class GetWriter(Request[WriterOpened]):
    """Ask how far a writer has come, without opening it."""

    writer_id: WriterId
    segment_ids: List16[SegmentId]
