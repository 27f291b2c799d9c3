"""Records of decisions: frames of the same form, written to the log by the server and refused from the network."""

from dataclasses import field
from typing import ClassVar, NamedTuple

from construct import Const, Int32ul

from .declaration import (
    I64,
    U8,
    U32,
    U64,
    Blob,
    Bytes16,
    List16,
    List32,
    OpenStreamId,
    ProducerNumber,
    Record,
    SegmentId,
    StreamId,
    Text,
    TransactionName,
    TransactionNumber,
    WriterId,
    WriterNumber,
    message,
)
from .stream import CursorName, CutPosition, NamedCut, SavedPosition, SegmentRangeRecord
from .transaction import BranchCount, ProducerClaim, TransactionCut, TransactionStream
from .writer import NO_NONCE as _NO_NONCE


@message(128)
class SegmentCreated(Record):
    """A segment is created; it is an internal one if its name starts with `#`."""

    segment_id: U64
    created_us: I64
    name: Text


@message(129)
class SegmentSealed(Record):
    """A segment is sealed."""

    segment_id: SegmentId


@message(130)
class SegmentTruncated(Record):
    """A segment starts at `offset`."""

    segment_id: SegmentId
    offset: U64


@message(131)
class SegmentDeleted(Record):
    """A segment was deleted."""

    segment_id: SegmentId


@message(132, kw_only=True)
class SegmentMerged(Record):
    """The bytes of one segment are now in another."""

    target_id: SegmentId
    source_id: SegmentId
    target_offset: U64  # of the first byte of the source in the target
    source_start: U64
    size: U64
    event_count: U64


@message(133, kw_only=True)
class AttributeSet(Record):
    """An attribute is set, or deleted."""

    segment_id: SegmentId
    present: U8
    key: Text
    value: Blob


@message(134, kw_only=True)
class WriterRecorded(Record):
    """A writer was opened under an epoch."""

    writer_number: WriterNumber
    writer_epoch: U32
    opened_us: I64
    writer_id: WriterId
    stream_id: U64 = 0  # for which it was opened, 0 for none
    nonce: Bytes16 = _NO_NONCE  # of the request
    is_plain: U8 = 0  # 1: it has written events without sequences to the stream
    is_exclusive: U8 = 0  # 1: the stream becomes exclusive to this writer, under this epoch
    fenced_number: WriterNumber = 0  # of the previous exclusive writer, if that is fenced by this takeover
    fenced_epoch: U32 = 0  # its new epoch


@message(149, kw_only=True)
class ExclusiveReleased(Record):
    """A stream is released by its exclusive writer."""

    stream_id: U64
    writer_number: WriterNumber  # the exclusive writer
    writer_epoch: U32  # its epoch as the exclusive writer
    fenced_epoch: U32 = 0  # its new epoch; 0: unchanged


@message(145)
class StoredTold(Record):
    """Everything that a writer wrote to a stream below a sequence is stored."""

    writer_number: WriterNumber
    stream_id: U64
    stored_below: I64


@message(146, kw_only=True)
class SequencesRefused(Record):
    """A writer sent events that its row on the stream says are stored: one of the two is wrong."""

    writer_number: WriterNumber
    stream_id: U64
    segment_id: U64  # to which they were sent
    first_sequence: I64  # of these events
    stored_through: I64  # the lowest that was stored in the range of the segment, not below the first that was sent


@message(147, kw_only=True)
class SequencesReset(Record):
    """The sequences of a rejected writer are reset: it resumes after a sequence, under an epoch."""

    writer_number: WriterNumber
    writer_epoch: U32
    stream_id: U64
    stored_through: I64


@message(143, kw_only=True)
class WritersExpired(Record):
    """The state of these writers is deleted."""

    expired_us: I64
    marked: List32[WriterNumber]  # writers that leave a mark: named ones
    forgotten: List32[WriterNumber]  # writers, and marks, that leave nothing


@message(144)
class UptimeCounted(Record):
    """The total uptime of servers by their monotonic clocks, and the wall clock at that time."""

    uptime_us: I64
    unix_us: I64
    monotonic_us: I64  # of the machine, since the boot that `boot` names
    boot: Text  # empty: the machine does not identify its boots


@message(135, kw_only=True)
class StreamCreated(Record):
    """A stream and its first segments exist from here on."""

    stream_id: U64
    created_us: I64
    name: Text
    configuration: Text
    segments: List16[SegmentRangeRecord]
    cursors: List16[CursorName]  # at the start of every segment


@message(139, kw_only=True)
class StreamScaled(Record):
    """An epoch of a stream begins; segments are sealed, their successors exist."""

    stream_id: OpenStreamId
    epoch: U32  # the one that begins
    scaled_us: I64
    cause: Text
    sealed_ids: List16[U64]
    created: List16[SegmentRangeRecord]


@message(140)
class StreamUpdated(Record):
    """A stream has another configuration."""

    stream_id: OpenStreamId
    configuration: Text


@message(148, kw_only=True)
class CutsSaved(Record):
    """Cuts are saved under names."""

    stream_id: StreamId
    saved_us: I64
    cuts: List16[NamedCut]


@message(142)
class CutForgotten(Record):
    """A saved cut is deleted."""

    stream_id: OpenStreamId
    kind: U8
    name: Text


@message(136)
class StreamSealed(Record):
    """A stream and all its segments are sealed."""

    stream_id: StreamId


@message(137)
class StreamTruncated(Record):
    """The segments of a stream start at these offsets. No longer written: see `StreamStartMoved`."""

    stream_id: StreamId
    positions: List16[CutPosition]


@message(150)
class StreamStartMoved(Record):
    """A stream was truncated: its segments start at these events. The bytes before their blocks can be deleted."""

    stream_id: StreamId
    positions: List32[SavedPosition]


@message(138)
class StreamDeleted(Record):
    """A stream and its segments were deleted."""

    stream_id: StreamId


@message(160)
class IdsReserved(Record):
    """Numbers are reserved for a client: no other client gets them, whether they are used or not."""

    first: U64
    count: U32


class PartRecord(NamedTuple):
    """A segment with events of a transaction for a range of keys, `low` to `last` inclusive."""

    segment_id: U64
    stream_id: U64
    low: U64
    last: U64


@message(161, kw_only=True)
class TransactionBegun(Record):
    """A transaction is begun. An ended transaction of the same name loses its name."""

    number: TransactionNumber
    begun_us: I64
    lease_ms: U32
    name: TransactionName
    streams: List16[TransactionStream]
    producers: List16[ProducerClaim] = field(default_factory=list)  # at most one
    parts: List16[PartRecord] = field(default_factory=list)  # of its branch 0


@message(162, kw_only=True)
class PartsAdded(Record):
    """A branch of a transaction has further parts."""

    number: TransactionNumber
    branch: U64
    added_us: I64
    parts: List16[PartRecord]


class CommitEpochRecord(NamedTuple):
    """The epoch of a stream that a commit begins, because the stream was scaled during the transaction."""

    stream_id: StreamId
    epoch: U32
    sealed_ids: List16[U64]
    created: List16[SegmentRangeRecord]


class CommittedPart(NamedTuple):
    """The bytes of a part are moved to a segment of its stream."""

    source_id: SegmentId
    target_id: SegmentId
    target_offset: U64  # of the first byte of the part in the segment
    size: U64
    event_count: U64


class MovedCursor(NamedTuple):
    """A cursor is moved by a commit."""

    stream_id: StreamId
    name: Text
    positions: List16[SavedPosition]


class CommittedProducer(NamedTuple):
    """A sequence of a producer is committed."""

    number: ProducerNumber
    producer_id: Text
    holder: Text
    run: Text
    sequence: I64


@message(163, kw_only=True)
class TransactionCommitted(Record):
    """A transaction is committed. The record is complete, whatever earlier part of the log is lost.

    The reserved lists are empty; a record in which one is not cannot be read, and is not skipped.
    """

    number: TransactionNumber
    committed_us: I64
    name: Text
    digest: Bytes16  # of the branches and their counts
    epochs: List16[CommitEpochRecord]
    parts: List32[CommittedPart]  # in the order in which they are merged
    dropped: List32[SegmentId]  # parts that are deleted
    cuts: List16[TransactionCut]
    cursors: List32[MovedCursor]
    assignments: ClassVar = Const(0, Int32ul)  # reserved: positions of readers of groups
    conditions: ClassVar = Const(0, Int32ul)  # reserved: entries of tables
    producers: List32[CommittedProducer] = field(default_factory=list)  # at most one


@message(164, kw_only=True)
class TransactionsEnded(Record):
    """Transactions are over without a trace in their streams."""

    ended_us: I64
    state: U8  # `TransactionState`: ABORTED or EXPIRED
    numbers: List32[TransactionNumber]


@message(165)
class OutcomesForgotten(Record):
    """The outcomes of these transactions are forgotten."""

    numbers: List32[TransactionNumber]


@message(166, kw_only=True)
class TransactionPrepared(Record):
    """A transaction is prepared: it accepts no more events, and never expires. These branches will be committed."""

    number: TransactionNumber
    branches: List32[BranchCount]
    digest: Bytes16  # of the branches and their counts
    dropped: List32[SegmentId]  # parts that are deleted


@message(170, kw_only=True)
class ProducerTaken(Record):
    """A run uses the writer id of a producer from here on; the run before is fenced."""

    number: ProducerNumber
    producer_id: Text
    holder: Text
    run: Text


@message(171, kw_only=True)
class ProducerReset(Record):
    """The writer id of a producer has a new holder, whose sequences start over; earlier runs are fenced."""

    number: ProducerNumber
    producer_id: Text
    holder: Text  # empty: the next run of any holder takes over


@message(172, kw_only=True)
class SequenceDescribed(Record):
    """The fingerprint of the content of a sequence; the record of the commit of that sequence follows."""

    number: ProducerNumber
    producer_id: Text
    sequence: I64
    fingerprint: Text


@message(173)
class ProducersForgotten(Record):
    """These producers are forgotten: a transaction under one of their writer ids begins a new producer."""

    numbers: List32[ProducerNumber]
