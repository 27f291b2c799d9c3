"""Messages about writers, whose events are stored once however often they are sent."""

from dataclasses import field
from typing import Final, NamedTuple

from .declaration import (
    I64,
    U8,
    U32,
    U64,
    Bytes16,
    FromServer,
    List16,
    List32,
    Request,
    SegmentId,
    StreamId,
    WriterId,
    WriterNumber,
    message,
)
from .session import Done
from .stream import SavedPosition

NO_NONCE: Final = bytes(16)


class WriterState(NamedTuple):
    """The last event number stored by a writer in a segment; 0 = never written."""

    segment_id: U64
    last_event_number: U64


class SequenceMark(NamedTuple):
    """A piece of the key space, up to the next one, and the highest sequence stored there; see `SequenceRow`."""

    low: U64  # its first place: 0 in the first piece, ascending
    sequence: I64  # above `stored_through`; -1: no higher one than that


@message(36, kw_only=True)
class WriterOpened(FromServer):
    """The writer, its epoch, and how far it is: in each of the segments, and on the stream, that were asked for.

    Of a writer whose state has expired number and epoch are those which it had, and it is not `known`. One that was
    opened to start over is new, and tells when the state before it expired.
    """

    writer_number: U64
    writer_epoch: U32
    known: U8  # 1: it was there before, and its state is kept
    active_us: I64  # its last durable append or open before this, to within a minute; 0: never
    expired_us: I64  # when the state that was kept under its id expired; 0 if it did not
    states: List16[WriterState]
    stored_through: I64 = -1  # everything that it wrote to the stream up to this sequence is stored
    marks: List32[SequenceMark] = field(default_factory=list)  # what is stored above that, by the place of its key
    is_plain: U8 = 0  # 1: what it wrote to the stream has no sequences, and nothing that follows may have
    is_refused: U8 = 0  # 1: its sequences were refused, and opening it fails until they are reset


@message(35)
class OpenWriter(Request[WriterOpened]):
    """Open a writer under a new epoch; an empty id asks for a fresh unnamed one.

    An id whose state has expired is refused with WRITER_EXPIRED, unless it is to `start_over`. Sequences can be given
    to the events of a named writer on the stream that it was opened for. Sent again with the same nonce, it is
    the same opening: the epoch stays, and it is refused with WRITER_FENCED if the id was opened by another one since.

    While a stream has an exclusive writer, others are refused with WRITER_EXCLUDED when they are opened for it, and
    when they append. Another exclusive one takes the stream over.
    """

    writer_id: WriterId
    segment_ids: List16[SegmentId]
    start_over: U8  # 1: start from nothing where the state of that id has expired, rather than fail
    stream_id: StreamId = 0  # the stream that it will write to; 0 for none
    nonce: Bytes16 = NO_NONCE  # random; zeros for none
    exclusive: U8 = 0  # 1: the stream takes events from this writer alone from now on
    # If there are any: the cut at which the stream must end, else it is refused with TAIL_CHANGED. Of exclusive ones.
    expected: List16[SavedPosition] = field(default_factory=list)


@message(37)
class GetWriter(Request[WriterOpened]):
    """Ask how far a writer has come, without opening it.

    The reply tells only what is durable, and nothing that was admitted before is missing from it: so what was sent to a
    segment that is gone since, and is not told here as stored, never will be.
    """

    writer_id: WriterId
    segment_ids: List16[SegmentId]
    stream_id: StreamId = 0  # 0 for none
    writer_epoch: U32 = 0  # refused with WRITER_FENCED if the writer was opened again since; 0: whatever its epoch is


@message(42)
class TellStored(Request[Done]):
    """Say that everything which a writer wrote to a stream below a sequence is stored: while no append says it.

    `changed` = 0 if that was known.
    """

    writer_number: WriterNumber
    writer_epoch: U32
    stream_id: StreamId
    stored_below: I64  # at most 1 above the highest sequence that is stored


@message(43)
class ResetSequences(Request[Done]):
    """Let a writer whose sequences were refused on a stream resume after a sequence that its caller knows of.

    A writer that is open is fenced. `changed` = 0 if nothing was refused: then nothing is reset.
    """

    writer_id: WriterId
    stream_id: StreamId
    stored_through: I64  # everything up to it counts as stored, nothing above it


@message(46, kw_only=True)
class ReleaseStream(Request[Done]):
    """Let a stream take events from all writers again; `changed` = 0 if it did so, or has another exclusive writer.

    Without a writer in the request, the one that has the stream loses it, and is fenced.
    """

    stream_id: StreamId
    writer_number: WriterNumber = 0  # of the exclusive writer that gives it back; 0 for none
    writer_epoch: U32 = 0
