"""Records that do not fit the admitted view are not logged."""

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.key_range import KEY_SPACE
from millrace.model.producer import Producer
from millrace.model.transaction import TransactionState
from millrace.server.container.decision_checks import check_decision
from millrace.server.container.state.apply import pin_items
from millrace.server.container.state.current_batch import EPOCH_MAX, OFFSET_MAX, checked_record
from millrace.server.container.state.quarantine import Quarantine
from millrace.server.container.state.segment import Segment
from millrace.server.errors import DecisionMisfitError
from millrace.server.kinds.segments.commands import SegmentCommands
from millrace.server.kinds.transactions.commands import TransactionCommands
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.server.kinds.writers.commands import WriterCommands
from millrace.wire import messages as m
from millrace.wire.framing import decode, encode
from tests.server.container.histories import apply
from tests.server.container.states import new_state
from tests.server.streams.containers import Streams, streams_in
from tests.support.clock import ManualClock
from tests.support.examples import examples
from tests.support.impossible_logs import ITEMS, PRELUDE, RECORDS, LogItem, records_of
from tests.support.storage import MemoryStorage

ALWAYS_FIT: Final = {
    m.StoredTold: "a row of sequences only rises; an unknown writer is left aside",
    m.SequencesRefused: "the first refusal stays; an unknown writer is left aside",
    m.WritersExpired: "removes writers; unknown ones are left aside",
    m.StreamUpdated: "any text is a configuration; an unknown stream is left aside",
    m.CutForgotten: "removes a name; an unknown one is left aside",
    m.StreamSealed: "sealing again changes nothing; an unknown stream is left aside",
    m.StreamDeleted: "removes a stream; an unknown one is left aside",
    m.OutcomesForgotten: "removes transactions that are over; others are left aside",
    m.ProducersForgotten: "removes producers; unknown ones are left aside",
}
"""Records that the fold never refuses, whatever they say, if their numbers can be stored, with the reason."""
STRICT: Final = {
    m.SegmentMerged: "the offset is the end, not beyond it",
    m.SegmentTruncated: "the start is not beyond the end",
    m.StreamTruncated: "the segments belong to the stream, and the starts are not beyond their ends",
    m.StreamStartMoved: "as StreamTruncated",
    m.StreamScaled: "the epoch is the next one, of a stream that exists",
    m.PartsAdded: "the transaction exists",
    m.TransactionPrepared: "the transaction exists",
    m.TransactionsEnded: "the transactions exist, and are not over",
    m.TransactionCommitted: "the transaction exists, and the parts have their sizes",
    m.WriterRecorded: "the epoch is the next one",
    m.SequencesReset: "the epoch is the next one",
}
"""Records that the fold applies, since lost parts of the log can explain them, and that no decision may result in."""


def is_record(item: LogItem) -> bool:
    return isinstance(item, m.Record)


def decoded(record: m.Record) -> m.Record:
    """Return a record as the codec returns it: with its own types of items in lists."""
    _, message = decode(encode(record))
    assert isinstance(message, m.Record)
    return message


async def raw(streams: Streams, name: str, payload: bytes) -> Segment:
    segment = await SegmentCommands(streams.opened.container).create(name)
    await streams.append(segment.segment_id, payload)
    return segment


async def transaction_with_part(streams: Streams, controller: TransactionCommands) -> tuple[int, int]:
    """Return the numbers of an open transaction over `a/b` and of its part, which has five bytes."""
    number = await controller.reserve_ids(2)
    routed_id = streams.controller.find("a/b").open_parts[0].segment_id
    routed = [m.RoutedStream("a/b", 0, 0)]
    parts = [m.NewPart(number + 1, routed_id)]
    begun = await controller.begin(number, "", lease_ms=60_000, streams=routed, session_id=bytes(16), parts=parts)
    await controller.settled(begun)
    writer = await WriterCommands(streams.opened.container).open("")
    await streams.append(
        number + 1, b"event", writer_number=writer.writer_number, writer_epoch=writer.writer_epoch, event_number=1
    )
    return number, number + 1


def commit_of(number: int, *parts: m.CommittedPart, epochs: list[m.CommitEpochRecord] | None = None) -> m.Record:
    return m.TransactionCommitted(
        number=number,
        committed_us=1,
        name="",
        digest=bytes(16),
        epochs=epochs or [],
        parts=list(parts),
        dropped=[],
        cuts=[],
        cursors=[],
    )


@pytest.mark.asyncio
async def test_a_record_that_does_not_fit_is_refused_before_it_is_logged(tmp_path: Path) -> None:
    """Behaviour 96: no decision becomes durable that the fold would refuse."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        container = streams.opened.container
        stream, _ = await streams.controller.create("a/b", segment_count=1, configuration="")
        (open_id,) = stream.segment_ids
        await streams.append(open_id, b"12345678")
        target, source = await raw(streams, "a/target", b"123"), await raw(streams, "a/source", b"12")
        transactions = TransactionCommands(container, streams.controller, options=TransactionsOptions())
        number, part_id = await transaction_with_part(streams, transactions)
        writer = await WriterCommands(container).open("till")
        transactions.producers.begin(Producer("query", "h", "r", 0), None)
        admitted = container.state.admitted.rows["producers"].find("query")
        assert admitted is not None
        producer = admitted.number
        await container.in_flight.settled()
        target_id, source_id, stream_id = target.segment_id, source.segment_id, stream.stream_id
        whole = [m.SegmentRangeRecord(9000, 0, KEY_SPACE - 1)]
        merged: dict[str, Any] = {"target_id": target_id, "source_id": source_id, "source_start": 0, "event_count": 1}
        scaled: dict[str, Any] = {"stream_id": stream_id, "scaled_us": 1, "cause": "test"}
        created: dict[str, Any] = {"created_us": 1, "name": "a/new", "configuration": "", "cursors": []}
        beyond = m.SavedPosition(open_id, OFFSET_MAX + 1, 0)
        opened: dict[str, Any] = {"writer_number": writer.writer_number, "opened_us": 1, "writer_id": "till"}
        misfits = [
            m.SegmentMerged(target_offset=0, size=2, **merged),
            m.SegmentMerged(target_offset=3, size=3, **merged),
            m.SegmentTruncated(target_id, 4),
            m.StreamStartMoved(stream_id, [m.SavedPosition(open_id, 9, 0)]),
            m.StreamScaled(epoch=0, sealed_ids=[open_id], created=whole, **scaled),
            m.StreamScaled(epoch=2, sealed_ids=[open_id], created=whole, **scaled),
            m.StreamScaled(epoch=1, sealed_ids=[target_id], created=whole, **scaled),
            m.StreamScaled(epoch=1, sealed_ids=[open_id], created=[], **scaled),
            m.StreamScaled(epoch=1, sealed_ids=[open_id], created=[m.SegmentRangeRecord(9000, 1, 0)], **scaled),
            m.StreamScaled(epoch=1, sealed_ids=[open_id], created=[whole[0]._replace(segment_id=open_id)], **scaled),
            m.TransactionBegun(number=number, begun_us=1, lease_ms=1, name="", streams=[]),
            m.PartsAdded(number=9000, branch=0, added_us=1, parts=[]),
            m.TransactionsEnded(ended_us=1, state=TransactionState.ABORTED, numbers=[9000]),
            commit_of(9000),
            commit_of(number, m.CommittedPart(part_id, open_id, 0, 5, 1)),
            commit_of(number, m.CommittedPart(part_id, open_id, 8, 4, 1)),
            commit_of(number, m.CommittedPart(source_id, open_id, 8, 2, 1)),
            commit_of(number, m.CommittedPart(part_id, 9000, 0, 5, 1)),
            commit_of(number, epochs=[m.CommitEpochRecord(stream_id, 2, [open_id], whole)]),
            m.WriterRecorded(writer_epoch=1, **opened),
            m.WriterRecorded(writer_epoch=3, **opened),
            m.WriterRecorded(writer_epoch=2, is_exclusive=1, **opened),
            m.SequencesReset(writer_number=writer.writer_number, writer_epoch=1, stream_id=stream_id, stored_through=0),
            m.SegmentCreated(target_id, 1, "a/again"),
            m.SegmentCreated(OFFSET_MAX, 1, "a/other"),
            m.SegmentSealed(open_id),
            m.SegmentSealed(part_id),
            m.SegmentDeleted(open_id),
            m.SegmentDeleted(part_id),
            m.AttributeSet(segment_id=target_id, present=1, key="#merged/1", value=b""),
            m.StreamCreated(stream_id=stream_id, segments=whole, **created),
            m.StreamCreated(stream_id=9001, segments=[], **created),
            m.StreamTruncated(stream_id, [m.CutPosition(target_id, 0)]),
            m.CutsSaved(stream_id=stream_id, saved_us=1, cuts=[m.NamedCut(9, "cut", [], 0)]),
            m.CutsSaved(stream_id=stream_id, saved_us=1, cuts=[m.NamedCut(1, "cut", [beyond], 0)]),
            m.IdsReserved(OFFSET_MAX, 1),
            m.UptimeCounted(uptime_us=OFFSET_MAX, unix_us=1, monotonic_us=1, boot=""),
            m.ExclusiveReleased(stream_id=stream_id, writer_number=1, writer_epoch=1, fenced_epoch=EPOCH_MAX + 1),
            m.TransactionPrepared(number=number, branches=[], digest=bytes(16), dropped=[source_id]),
            m.ProducerTaken(number=OFFSET_MAX, producer_id="p", holder="h", run="r"),
            m.ProducerReset(number=producer, producer_id="another", holder="h"),
            m.SequenceDescribed(number=9000, producer_id="query", sequence=1, fingerprint=""),
        ]
        assert {type(record) for record in misfits} == set(RECORDS) - ALWAYS_FIT.keys()
        before = container.log.durable_sequence

        for record in misfits:
            with pytest.raises(DecisionMisfitError, match=record.type.name):
                container.log_decision(record)

        assert not len(container.in_flight)
        committed = await transactions.commit(number, [m.BranchCount(0, 1)], drops_others=False)
        await transactions.settled(committed)
        assert container.log.durable_sequence == before + 1
        assert container.segment(open_id).length == 13


@settings(max_examples=examples(100))
@given(st.lists(ITEMS, max_size=4), st.sampled_from(RECORDS).flatmap(records_of) | ITEMS.filter(is_record))
def test_a_decision_is_accepted_if_and_only_if_the_fold_applies_its_record(
    items: list[LogItem], record: m.Record
) -> None:
    """Behaviour 96: on any state without decisions in flight; see `STRICT` for what is refused beyond that."""
    state = new_state()
    for item in (*PRELUDE, *items):
        apply(state, checked_record(decoded(item)) if isinstance(item, m.Record) else item)
    state.admit_as_durable()
    state.quarantine = Quarantine(state.kinds)
    record = decoded(record)

    with pin_items(state, [record]):
        try:
            check_decision(state, record)
        except DecisionMisfitError:
            is_accepted = False
        else:
            is_accepted = True
    apply(state, checked_record(record))

    if is_accepted or type(record) not in STRICT:
        assert is_accepted == (not state.quarantine), list(state.quarantine)
