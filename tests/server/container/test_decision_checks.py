"""Records that do not fit the admitted view are not logged."""

from pathlib import Path
from typing import Any

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.model.transaction import TransactionState
from millrace.server.container.control import SegmentControl
from millrace.server.container.state.segment import Segment
from millrace.server.container.writer_control import WriterControl
from millrace.server.errors import DecisionMisfitError
from millrace.server.streams import TransactionController, TransactionsOptions
from millrace.wire import messages as m
from tests.server.streams.containers import Streams, streams_in
from tests.support.clock import ManualClock
from tests.support.storage import MemoryStorage

pytestmark = pytest.mark.asyncio


async def raw(streams: Streams, name: str, payload: bytes) -> Segment:
    segment = await SegmentControl(streams.opened.container).create(name)
    await streams.append(segment.segment_id, payload)
    return segment


async def transaction_with_part(streams: Streams, controller: TransactionController) -> tuple[int, int]:
    """Return the numbers of an open transaction over `a/b` and of its part, which has five bytes."""
    number = await controller.reserve_ids(2)
    routed_id = streams.controller.find("a/b").open_parts[0].segment_id
    routed = [m.RoutedStream("a/b", 0, 0)]
    parts = [m.NewPart(number + 1, routed_id)]
    begun = await controller.begin(number, "", lease_ms=60_000, streams=routed, session_id=bytes(16), parts=parts)
    await controller.settled(begun)
    writer = await WriterControl(streams.opened.container).open("")
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


async def test_a_record_that_does_not_fit_is_refused_before_it_is_logged(tmp_path: Path) -> None:
    """Behaviour 96: no decision becomes durable that the fold would refuse."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        container = streams.opened.container
        stream, _ = await streams.controller.create("a/b", segment_count=1, configuration="")
        (open_id,) = stream.segment_ids
        await streams.append(open_id, b"12345678")
        target, source = await raw(streams, "a/target", b"123"), await raw(streams, "a/source", b"12")
        transactions = TransactionController(container, streams.controller, options=TransactionsOptions())
        number, part_id = await transaction_with_part(streams, transactions)
        writer = await WriterControl(container).open("till")
        target_id, source_id, stream_id = target.segment_id, source.segment_id, stream.stream_id
        whole = [m.SegmentRangeRecord(9000, 0, KEY_SPACE - 1)]
        merged: dict[str, Any] = {"target_id": target_id, "source_id": source_id, "source_start": 0, "event_count": 1}
        scaled: dict[str, Any] = {"stream_id": stream_id, "scaled_us": 1, "cause": "test"}
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
            m.SequencesReset(writer_number=writer.writer_number, writer_epoch=1, stream_id=stream_id, stored_through=0),
        ]
        before = container.log.durable_sequence

        for record in misfits:
            with pytest.raises(DecisionMisfitError, match=record.type.name):
                container.log_decision(record)

        assert not len(container.in_flight)
        committed = await transactions.commit(number, [m.BranchCount(0, 1)], drops_others=False)
        await transactions.settled(committed)
        assert container.log.durable_sequence == before + 1
        assert container.segment(open_id).length == 13
