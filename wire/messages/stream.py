"""Messages about streams, their segments and epochs, and their saved cuts."""

from dataclasses import field
from enum import IntEnum
from typing import Final, NamedTuple

from millrace.model.key_range import KeyRange
from millrace.model.lineage import Epoch

from .declaration import (
    I64,
    U8,
    U32,
    U64,
    FromServer,
    List16,
    List32,
    LongText,
    OpenStreamName,
    Query,
    Request,
    StreamName,
    Text,
    message,
)
from .session import Done


class StreamSegment(NamedTuple):
    """A segment of a stream with its key range, `low` to `last` inclusive.

    It starts at event `start_index` of the block at `start_offset`.
    """

    segment_id: U64
    low: U64  # first place of its key range
    last: U64  # last place of its key range, inclusive: 2^64 does not fit
    epoch: U32  # of the stream, in which the segment was created
    sealed_epoch: U32  # in which it was replaced by successors; 0: not replaced
    start_offset: U64
    length: U64
    event_count: U64
    sealed: U8
    start_index: U32 = 0


NOT_REPLACED: Final = (1 << 32) - 1
"""In place of an epoch: no segment that was replaced is listed."""
AT_HEAD: Final = NOT_REPLACED - 1
"""Instead of an epoch: list only the first segments with content, as they were before the first of them was replaced.
Fetch segments that were replaced in later epochs from there."""


@message(50, kw_only=True)
class StreamInfo(FromServer):
    """A stream and its current segments, or a page of these.

    Open segments come first, then replaced ones in the order in which they were replaced.
    """

    created: U8  # 1: by this request
    stream_id: U64
    created_us: I64
    epoch: U32
    sealed: U8
    name: Text
    configuration: Text
    segments: List16[StreamSegment]
    exclusive_number: U64 = 0  # the exclusive writer of the stream; 0 for none
    exclusive_epoch: U32 = 0
    exclusive_id: Text = ""
    exclusive_since_us: I64 = 0
    replaced_from: U32 = 0  # segments that were replaced in earlier epochs are left out
    next_epoch: U32 = 0  # segments replaced from this epoch on are on the next page; 0: there is none
    replaced_count: U32 = 0  # segments that were replaced up to the epoch of the first page and are not deleted


class CursorName(NamedTuple):
    """A cursor to be registered at the head."""

    name: Text


@message(48)
class CreateStream(Request[StreamInfo]):
    """Create a stream; an existing stream stays unchanged, and the reply has `created` = 0."""

    name: StreamName
    segment_count: U32
    configuration: Text
    cursors: List16[CursorName] = field(default_factory=list)  # there from the start


@message(49)
class GetStream(Query[StreamInfo]):
    """Fetch a stream, or the next page of its segments."""

    name: OpenStreamName
    replaced_from: U32 = 0  # leave out the segments that were replaced in earlier epochs; see `AT_HEAD`
    page_of: U32 = 0  # of a further page: the epoch of the first page, so that all show one moment; 0: the first page
    is_next: U8 = 0  # 1: a further page, which has no open segments


class ListedStream(NamedTuple):
    """A stream as listed."""

    name: Text


@message(52)
class StreamList(FromServer):
    """A page of streams; `more` is set if further ones follow."""

    names: List32[ListedStream]
    more: U8


@message(51)
class ListStreams(Query[StreamList]):
    """List streams by name: those with the prefix and the tag (if any), after `after`."""

    prefix: Text
    after: Text
    count_max: U32
    tag: Text = ""


@message(53)
class SealStream(Request[StreamInfo]):
    """Seal a stream. Its open transactions are aborted; refused with TRANSACTION_PREPARED while one is prepared."""

    name: StreamName
    force: U8 = 0  # 1: prepared ones are aborted, too


class CutPosition(NamedTuple):
    """An offset in a segment, on a border between appends."""

    segment_id: U64
    offset: U64


class SavedPosition(NamedTuple):
    """A place in a segment: the offset of a block, and the index of an event in it."""

    segment_id: U64
    offset: U64
    event_index: U32 = 0


@message(54)
class TruncateStream(Request[StreamInfo]):
    """Move the start of a stream to a cut. No event before it can be read afterwards."""

    name: StreamName
    positions: List16[SavedPosition]


@message(55)
class DeleteStream(Request[Done]):
    """Delete a sealed stream; `changed` = 0 if it did not exist."""

    name: StreamName


class KeyRangeRecord(NamedTuple):
    """A range of the key space, `low` to `last` inclusive."""

    low: U64
    last: U64


@message(56)
class ScaleStream(Request[StreamInfo]):
    """Replace segments of a stream by new ones that cover the same keys. The reply has the open segments only."""

    name: OpenStreamName
    sealed_ids: List16[U64]
    ranges: List16[KeyRangeRecord]


class SegmentRangeRecord(NamedTuple):
    """A new segment of a stream, with its key range, `low` to `last` inclusive."""

    segment_id: U64
    low: U64
    last: U64


class EpochRecord(NamedTuple):
    """An epoch of a stream: its start, its cause, the segments that it sealed, and their successors."""

    number: U32
    started_us: I64
    cause: Text
    sealed_ids: List16[U64]
    created: List16[SegmentRangeRecord]

    def epoch(self) -> Epoch:
        """Return the epoch in the terms of the model."""
        return Epoch(
            number=self.number,
            started_us=self.started_us,
            cause=self.cause,
            sealed_ids=tuple(self.sealed_ids),
            created=tuple((segment_id, KeyRange.inclusive(low, last)) for segment_id, low, last in self.created),
        )


@message(58)
class StreamHistory(FromServer):
    """A page of the epochs of a stream, oldest first; `more` is set if further ones follow."""

    epochs: List32[EpochRecord]
    more: U8 = 0


@message(57)
class GetStreamHistory(Query[StreamHistory]):
    """Fetch the epochs of a stream."""

    name: OpenStreamName
    first: U32 = 0  # the number of the first one wanted


@message(59)
class UpdateStream(Request[StreamInfo]):
    """Change the configuration of a stream. The reply has the open segments only."""

    name: OpenStreamName
    configuration: Text


@message(61)
class Explanation(FromServer):
    """The measurements, last decisions and conditions of a stream's policies, as JSON."""

    facts: LongText


@message(60)
class ExplainStream(Query[Explanation]):
    """Explain the state of a stream: scaling, retention, cursors."""

    name: StreamName


class CutKind(IntEnum):
    """The purpose of a saved cut."""

    BOOKMARK = 1  # a place worth finding again
    CURSOR = 2  # the progress of a consumer: retention by consumption does not pass it


class SavedCut(NamedTuple):
    """A cut that the server saved under a name; each kind has a namespace of its own."""

    kind: U8
    name: Text
    saved_us: I64
    positions: List16[SavedPosition]
    hold_s: U32 = 0  # as in `NamedCut`


class NamedCut(NamedTuple):
    """A cut to be saved under a name."""

    kind: U8  # `CutKind`
    name: Text  # unique in its kind
    positions: List16[SavedPosition]
    hold_s: U32 = 0  # of a cursor: forget it when it was not saved for this long; 0: never


@message(66)
class SaveCuts(Request[Done]):
    """Save cuts of a stream under names, replacing those of the same kind and name; atomic."""

    stream: StreamName
    cuts: List16[NamedCut]


@message(63)
class ForgetCut(Request[Done]):
    """Delete a saved cut; `changed` = 0 if it did not exist."""

    stream: StreamName
    kind: U8
    name: Text


@message(65)
class CutList(FromServer):
    """Saved cuts, by kind and name."""

    cuts: List32[SavedCut]


@message(64)
class ListCuts(Query[CutList]):
    """Fetch the saved cuts of a stream."""

    name: StreamName


class StreamTail(NamedTuple):
    """The tail of a stream."""

    name: Text
    stream_id: U64
    positions: List16[CutPosition]


@message(68)
class StreamTails(FromServer):
    """The tails of some streams, all as of one moment, in the order of the request."""

    tails: List16[StreamTail]


class NamedStream(NamedTuple):
    """A stream that is meant."""

    name: OpenStreamName


@message(67)
class GetTails(Query[StreamTails]):
    """Fetch the tails of streams, all as of one moment."""

    streams: List16[NamedStream]
