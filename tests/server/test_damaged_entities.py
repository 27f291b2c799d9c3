"""Entities that the log contradicts, over a raw connection to a real server. Behaviour 96."""

import pytest

from millrace.model.producer import Producer
from millrace.model.transaction import digest_of_branches
from millrace.server.app import Server
from millrace.server.container.container import SegmentContainer
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Peer, RefusedError, set_attribute
from tests.support.served import _containers_are_settled, peer, server, tmp_path
from tests.support.transactions import PeerTransaction, begin_request, create_stream, reserve
from tests.support.unchecked import log_unchecked

__all__ = ["_containers_are_settled", "peer", "server", "tmp_path"]

pytestmark = pytest.mark.asyncio

HINT = "; delete it, or stop the server and accept that with `millrace repair --accept-loss`"


def container_of(server: Server) -> SegmentContainer:
    opened = server.opened
    return opened.container


async def refusal_of(peer: Peer, request: m.Message) -> str:
    """Return the text of the refusal of a request for damage."""
    with pytest.raises(RefusedError) as refused:
        await peer.ask(request, m.Done)
    assert refused.value.code is ErrorCode.CONTENT_LOST
    return refused.value.reply.message


async def refusal_of_append(peer: Peer, segment_id: int, **writer: int) -> str:
    """Return the text of the refusal of an append for damage."""
    (request_id,) = await peer.append(segment_id, b"x", **writer)
    assert await peer.settled([request_id]) == [ErrorCode.CONTENT_LOST]
    return peer.errors[request_id].message


async def test_a_damaged_writer_is_refused_and_others_append(server: Server, peer: Peer) -> None:
    segment_id = await peer.create_segment("a/raw")
    damaged, other = await peer.open_writer("till-1", segment_id), await peer.open_writer("till-2", segment_id)
    number, epoch = damaged.writer_number, damaged.writer_epoch
    await log_unchecked(
        container_of(server), m.WriterRecorded(writer_number=number, writer_epoch=2, opened_us=1, writer_id="other")
    )

    text = await refusal_of_append(peer, segment_id, writer_number=number, writer_epoch=epoch, event_number=1)
    assert text.startswith(f"writer {number} is damaged: record 0 of batch ")
    assert text.endswith(f"WRITER_RECORDED, cannot be applied to it: it is 'till-1', and not 'other'{HINT}")
    assert await refusal_of(peer, m.OpenWriter("till-1", [segment_id], 0)) == text
    fields = {"writer_number": other.writer_number, "writer_epoch": other.writer_epoch}
    assert await peer.store(segment_id, b"x", event_number=1, **fields) == [0]


async def test_a_damaged_stream_is_refused_and_takes_appends(server: Server, peer: Peer) -> None:
    """Its segments are whole: only what changes the stream itself is refused, and it can be deleted."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    stream_id = (await peer.ask(m.GetStream("a/b"), m.StreamInfo)).stream_id
    record = m.StreamScaled(stream_id=stream_id, epoch=0, scaled_us=1, cause="test", sealed_ids=[], created=[])
    await log_unchecked(container_of(server), record)

    for request in (m.UpdateStream("a/b", '{"tags": ["x"]}'), m.SealStream("a/b")):
        text = await refusal_of(peer, request)
        assert text.startswith(f"stream {stream_id} is damaged: record 0 of batch ")
        assert text.endswith(f"STREAM_SCALED, cannot be applied to it: epoch 0 cannot follow epoch 0{HINT}")
    assert await peer.store(segment_id, b"x") == [0]
    assert await peer.read_all(segment_id) == b"x"


async def test_a_damaged_segment_is_refused_and_read_up_to_its_end(server: Server, peer: Peer) -> None:
    segment_id, other_id = await peer.create_segment("a/raw"), await peer.create_segment("a/other")
    await peer.store(segment_id, b"before")
    await log_unchecked(
        container_of(server), m.AttributeSet(segment_id=segment_id, present=1, key="#merged/1", value=b"")
    )

    text = await refusal_of_append(peer, segment_id)
    assert text.startswith(f"segment {segment_id} is damaged: record 0 of batch ")
    assert text.endswith(f"it: #merged/1 is a mark of the server, not an attribute{HINT}")
    assert await refusal_of(peer, set_attribute(segment_id, "key", expected=None, value=b"v")) == text
    assert await refusal_of(peer, m.SealSegment(segment_id)) == text
    assert bytes((await peer.read(segment_id, 0)).payload) == b"before"
    with pytest.raises(RefusedError, match=f"what the log says of it ends at {len(b'before')}") as refused:
        await peer.read(segment_id, len(b"before"))
    assert refused.value.code is ErrorCode.SEGMENT_DAMAGED
    assert await peer.store(other_id, b"x") == [0]
    assert (await peer.ask(m.DeleteSegment(segment_id), m.Done)).changed


async def test_a_damaged_producer_is_refused_and_others_begin(server: Server, peer: Peer) -> None:
    await create_stream(peer, "a/b", 1)
    producer = Producer("query", "holder", "run", 1)
    await (await PeerTransaction.begin(peer, "a/b", producer=producer)).abort()
    known = container_of(server).state.caches["producers"].find("query")
    assert known is not None
    record = m.ProducerReset(number=known.number, producer_id="another", holder="")
    await log_unchecked(container_of(server), record)

    (number,) = await reserve(peer, 1)
    text = await refusal_of(peer, begin_request(number, "a/b", producer=producer._replace(run="run-2", sequence=2)))
    assert text.startswith(f"producer {known.number} is damaged: record 0 of batch ")
    assert text.endswith(f"PRODUCER_RESET, cannot be applied to it: it is query, not another{HINT}")
    begun = await PeerTransaction.begin(peer, "a/b", producer=producer._replace(writer_id="query-2"))
    await begun.write(b"x")
    await begun.commit()


async def test_the_outcome_of_a_commit_with_a_part_that_did_not_fit_is_damaged(server: Server, peer: Peer) -> None:
    """The other part is merged, and appends continue where nothing is damaged."""
    whole_id, damaged_id = await create_stream(peer, "a/b", 2)
    await peer.store(damaged_id, b"before")
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    part_of, number, size = {key[1]: part for key, part in transaction.parts.items()}, transaction.number, len(b"event")
    parts = [m.CommittedPart(part_of[target_id], target_id, 0, size, 1) for target_id in (whole_id, damaged_id)]
    digest = digest_of_branches(transaction.counts)
    record = m.TransactionCommitted(
        number=number, committed_us=1, name="", digest=digest, epochs=[], parts=parts, dropped=[], cuts=[], cursors=[]
    )
    await log_unchecked(container_of(server), record)

    for request in (m.GetTransaction(number, ""), transaction.commit_request()):
        text = await refusal_of(peer, request)
        assert text.startswith(f"transaction {number} is damaged: record 0 of batch ")
        assert f"part {part_of[damaged_id]} of it could not be merged: segment {damaged_id}: 5 bytes belong at" in text
        assert text.endswith(f"at offset 0, but it has 6{HINT}")
    assert await peer.read_all(whole_id) == b"event"
    assert await peer.store(whole_id, b"after") == [size]
    text = await refusal_of_append(peer, damaged_id)
    assert text.startswith(f"segment {damaged_id} is damaged")
    assert bytes((await peer.read(damaged_id, 0)).payload) == b"before"


async def test_an_open_transaction_with_a_damaged_part_can_only_be_aborted(server: Server, peer: Peer) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    (part_id,) = transaction.parts.values()
    await log_unchecked(container_of(server), m.SegmentDeleted(part_id))

    text = await refusal_of(peer, transaction.commit_request())
    assert text.startswith(f"segment {part_id} is damaged: record 0 of batch ")
    assert text.endswith(f"it: it belongs to transaction {transaction.number}, and is deleted{HINT}")
    assert await transaction.append(segment_id, b"more") == [ErrorCode.CONTENT_LOST]
    await transaction.abort()
    assert await peer.store(segment_id, b"x") == [0]
