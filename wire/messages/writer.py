"""Messages about writers, whose events are stored exactly once however often they are sent."""

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
    """A writer, its epoch, and its progress in the requested segments and on the requested stream.

    For a writer whose state has expired, number and epoch are the old ones, and it is not `known`. A writer that was
    opened to start over is new, and the reply has the time when the old state expired.
    """

    writer_number: U64
    writer_epoch: U32
    known: U8  # 1: it existed, and its state is kept
    active_us: I64  # its last durable append or open before this, to within a minute; 0: never
    expired_us: I64  # when the earlier state of its id expired; 0 if it did not
    states: List16[WriterState]
    stored_through: I64 = -1  # all its events on the stream up to this sequence are stored
    marks: List32[SequenceMark] = field(default_factory=list)  # sequences stored above that, by the place of their key
    is_plain: U8 = 0  # 1: its events on the stream have no sequences, and later ones may not have any
    is_refused: U8 = 0  # 1: its sequences were refused, and opening it fails until they are reset


@message(35)
class OpenWriter(Request[WriterOpened]):
    """Open a writer under a new epoch; an empty id opens a new unnamed writer.

    An id whose state has expired is refused with WRITER_EXPIRED, unless it is to `start_over`. Events of a named writer
    on the stream that it was opened for may have sequences. Sent again with the same nonce, it is the same opening: the
    epoch stays, and it is refused with WRITER_FENCED if the id was opened by another client since.

    While a stream has an exclusive writer, other writers are refused with WRITER_EXCLUDED when they are opened for it,
    and when they append. Another exclusive writer takes the stream over.
    """

    writer_id: WriterId
    segment_ids: List16[SegmentId]
    start_over: U8  # 1: start over if the state of that id has expired, instead of failing
    stream_id: StreamId = 0  # the stream that it will write to; 0 for none
    nonce: Bytes16 = NO_NONCE  # random; zeros for none
    exclusive: U8 = 0  # 1: the stream becomes exclusive to this writer
    # The cut at which the stream must end, if given: otherwise refused with TAIL_CHANGED. For exclusive writers.
    expected: List16[SavedPosition] = field(default_factory=list)


@message(37)
class GetWriter(Request[WriterOpened]):
    """Fetch the progress of a writer, without opening it.

    The reply has durable state only, and includes everything that was admitted before: events sent to a segment that is
    gone since, and not reported here as stored, never will be.
    """

    writer_id: WriterId
    segment_ids: List16[SegmentId]
    stream_id: StreamId = 0  # 0 for none
    writer_epoch: U32 = 0  # refused with WRITER_FENCED if the writer was opened again since; 0: any epoch


@message(42)
class TellStored(Request[Done]):
    """Report that all events of a writer on a stream below a sequence are stored, while no append carries that.

    `changed` = 0 if that was known.
    """

    writer_number: WriterNumber
    writer_epoch: U32
    stream_id: StreamId
    stored_below: I64  # at most 1 above the highest sequence that is stored


@message(43)
class ResetSequences(Request[Done]):
    """Reset the sequences of a refused writer on a stream: it resumes after a sequence that its caller knows.

    A writer that is open is fenced. `changed` = 0 if none was refused: then nothing is reset.
    """

    writer_id: WriterId
    stream_id: StreamId
    stored_through: I64  # everything up to it counts as stored, nothing above it


@message(46, kw_only=True)
class ReleaseStream(Request[Done]):
    """Release a stream from its exclusive writer; `changed` = 0 if it has none, or another one.

    Without a writer in the request, the current exclusive writer loses the stream, and is fenced.
    """

    stream_id: StreamId
    writer_number: WriterNumber = 0  # the exclusive writer that releases the stream; 0 for any
    writer_epoch: U32 = 0
