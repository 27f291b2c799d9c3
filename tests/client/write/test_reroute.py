# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.errors import (
    OutcomeUnknownError,
    RequestTimeoutError,
    StreamNotFoundError,
    StreamSealedError,
)
from millrace.client.transport.channel import Channel
from millrace.client.transport.retry import may_resend
from millrace.client.write.accumulator import Accumulator
from millrace.client.write.events import Call, Events, WriteResult
from millrace.client.write.options import WriterOptions
from millrace.client.write.reroute import Rerouter, left_over, split_events
from millrace.client.write.segment_writer import SegmentWriter, SenderState
from millrace.client.write.writer import Writer
from millrace.model.compression import Compression
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.client.write.test_segment_writer import SEALED, block
from tests.client.write.writers import writing
from tests.support.model_server import STREAM, ModelServer, error_reply, turns


@given(numbers=st.lists(st.integers(0, 3), min_size=2, max_size=20), is_call=st.booleans())
def test_events_are_split_by_segment_in_the_order_written(numbers: list[int], *, is_call: bool) -> None:
    loop = asyncio.new_event_loop()
    count = len(numbers)
    keys = [f"k{index}" for index in range(count)]
    futures: list[asyncio.Future[WriteResult]] = [loop.create_future() for _ in range(count)]
    call = Call(loop.create_future()) if is_call else None
    loop.close()
    events = Events(
        values=[b"%d" % index for index in range(count)],
        keys=list(keys),
        times=list(range(count)),
        futures=[] if is_call else futures,
        cost_bytes=1,
        call=call,
    )
    parts = split_events(events, numbers)
    assert sorted(number for number, _ in parts) == sorted(set(numbers))
    for number, part in parts:
        places = [index for index, each in enumerate(numbers) if each == number]
        assert part.times == places
        assert part.values == [events.values[index] for index in places]
        assert part.keys == [keys[index] for index in places]
        assert part.futures == ([] if is_call else [futures[index] for index in places])
        assert part.call is call


def test_what_is_left_over_is_in_the_order_written_and_calls_are_whole() -> None:
    """Behaviour 88: not segment by segment."""
    loop = asyncio.new_event_loop()
    calls = [Call(loop.create_future(), order=order, missing=2) for order in (2, 4)]
    loop.close()
    segments = []
    for number in range(2):
        accumulator = Accumulator(last_event_number=0, compression=Compression.NONE)
        segment = SegmentWriter(number, accumulator)
        for order, call in ((1 + 4 * number, None), (2, calls[0]), (4, calls[1])):
            values = [b"%d of %d" % (order, number)]
            events = Events(values, ["k"], [0], [], 1, call=call, order=order)
            for packed in accumulator.pack(events, 1000):
                segment.add(packed)
        segment.stop()
        segments.append(segment)
    assert [(each.order, each.values, each.block_count) for each in left_over(segments)] == [
        (1, [b"1 of 0"], 1),
        (2, [b"2 of 0", b"2 of 1"], 2),
        (4, [b"4 of 0", b"4 of 1"], 2),
        (5, [b"5 of 1"], 1),
    ]


def rejected_segment(segment_id: int = 1) -> SegmentWriter:
    segment = SegmentWriter(segment_id, Accumulator(last_event_number=0, compression=Compression.NONE))
    sent = block(1)
    segment.add(sent)
    segment.sent()
    segment.failed(sent, SEALED)
    assert segment.answered_state is SenderState.REJECTED
    return segment


def rerouter(channel: Channel, server: ModelServer, writer_id: str = "w") -> Rerouter:
    return Rerouter(channel, STREAM, stream_id=server.stream().stream_id, writer_id=writer_id, epoch=1)


@pytest.mark.asyncio
async def test_what_is_found_names_successors_and_what_the_writer_has_in_them() -> None:
    server = ModelServer()
    channel = server.channel()
    finding = rerouter(channel, server)
    successors = server.replace([1], 2)
    server.segments[successors[1]].last_number = 5
    found = await finding.find([rejected_segment()], channel.retry(10, is_transient=may_resend))
    assert found is not None
    assert list(found.router.segment_ids) == successors
    assert found.last_numbers == {successors[0]: 0, successors[1]: 5}
    await channel.close()


@pytest.mark.asyncio
async def test_a_writer_without_an_id_has_nothing_in_a_new_segment() -> None:
    server = ModelServer()
    channel = server.channel()
    finding = rerouter(channel, server, writer_id="")
    server.replace([1], 1)
    found = await finding.find([rejected_segment()], channel.retry(10, is_transient=may_resend))
    assert found is not None
    assert found.last_numbers == {}
    assert not any(isinstance(request, m.GetWriter) for request in server.requests)
    await channel.close()


@pytest.mark.asyncio
async def test_a_segment_that_is_open_is_resumed_now_and_then_until_the_deadline() -> None:
    server = ModelServer()
    channel = server.channel()
    finding, segment, retry = rerouter(channel, server), rejected_segment(), channel.retry(10, is_transient=may_resend)

    async def look() -> None:
        looking = asyncio.create_task(finding.find([segment], retry))
        while not looking.done():
            await server.clock.advance(0.5)
        assert await looking is None

    for _ in range(3):
        await look()
        assert segment.answered_state is SenderState.REJECTED
    await look()
    assert segment.state is SenderState.SENDING
    server.clock.move(10)
    with pytest.raises(OutcomeUnknownError, match="nothing replaces them"):
        await finding.find([rejected_segment()], retry)
    await channel.close()


@pytest.mark.asyncio
async def test_successors_that_are_deleted_are_fetched_again() -> None:
    server = ModelServer()
    channel = server.channel()
    finding = rerouter(channel, server)
    server.replace([1], 1)
    server.answers[m.GetWriter] = error_reply(ErrorCode.SEGMENT_NOT_FOUND)
    looking = asyncio.create_task(finding.find([rejected_segment()], channel.retry(10, is_transient=may_resend)))
    while not looking.done():
        await server.clock.advance(0.5)
    assert await looking is None
    await channel.close()


@pytest.mark.asyncio
async def test_a_sealed_stream_and_another_of_its_name_have_no_successors() -> None:
    server = ModelServer()
    channel = server.channel()
    finding = rerouter(channel, server)
    server.segments[1].sealed = True
    with pytest.raises(StreamSealedError):
        await finding.find([rejected_segment()], channel.retry(10, is_transient=may_resend))
    server.stream_id += 1
    with pytest.raises(StreamNotFoundError, match=f"{STREAM} was deleted"):
        await finding.find([rejected_segment()], channel.retry(10, is_transient=may_resend))
    await channel.close()


# --- of a whole writer ---


@pytest.mark.asyncio
async def test_events_go_to_the_successors_once_all_replaced_segments_have_answered() -> None:
    server = ModelServer(segment_count=2)
    async with writing(server) as writer:
        futures = [writer.write_many([b"%d" % number], key=f"k{number}") for number in range(20)]
        await turns()
        first = server.arrived[0].segment_id
        successors = server.replace([1, 2], 3)
        held = [append for append in server.arrived if append.segment_id != first]
        for append in held:
            server.arrived.remove(append)
        server.answer()
        await turns()
        assert not server.arrived
        server.arrived.extend(held)
        server.answer()
        await turns()
        assert {append.segment_id for append in server.arrived} == set(successors)
        server.answer()
        stored = await asyncio.gather(*futures)
        assert {record.segment_id for record in stored} == set(successors)
        assert writer.statistics().reroutes == 1
    assert sorted(server.events()) == sorted((f"k{number}", b"%d" % number) for number in range(20))


@pytest.mark.asyncio
async def test_numbers_in_a_successor_follow_those_of_a_writer_that_was_fenced() -> None:
    """Behaviours 3 and 4: the older writer of the id found the successor before this one did."""
    server = ModelServer()
    async with writing(server) as writer:
        (successor,) = server.replace([1], 1)
        server.segments[successor].last_number = 3
        future = writer.write_many([b"x"])
        server.answer()
        await turns()
        server.answer()
        assert (await future).event_number == 4


@pytest.mark.asyncio
async def test_a_segment_that_refuses_and_is_open_is_tried_again() -> None:
    """What sealed it was not durable, and the server was killed before it was."""
    server = ModelServer()
    async with writing(server) as writer:
        future = writer.write_many([b"x"])
        server.refuse(ErrorCode.SEGMENT_SEALED)
        for _ in range(10):
            await turns()
            await server.clock.advance(1.0)
            server.answer()
        assert (await future).segment_id == 1
        assert sum(isinstance(request, m.GetStream) for request in server.requests) > 4


@pytest.mark.asyncio
async def test_flush_waits_for_what_was_moved() -> None:
    server = ModelServer()
    async with writing(server) as writer:
        for number in range(4):
            writer.write(b"%d" % number, key=f"k{number}")
        flushing = asyncio.create_task(writer.flush())
        await turns()
        server.replace([1], 2)
        server.answer()
        await turns()
        assert not flushing.done()
        server.answer()
        await turns()
        assert flushing.done()
        await flushing
        assert writer.last_event_numbers == {2: len(server.segments[2].events), 3: len(server.segments[3].events)}


@pytest.mark.asyncio
async def test_a_stream_that_changes_between_any_two_requests_is_a_timeout() -> None:
    """Opening ends within the time limit of a request, and says what was tried."""
    server = ModelServer()
    server.answers[m.OpenWriter] = error_reply(ErrorCode.SEGMENT_NOT_FOUND)
    channel = server.channel()
    writer = Writer(channel, STREAM, writer_id="w", options=WriterOptions())
    opening = asyncio.create_task(writer.open())
    while not opening.done():
        await turns()
        await server.clock.advance(1.0)
    with pytest.raises(
        RequestTimeoutError,
        match=rf"not opened: in each of \d+ attempts within 30 s, {STREAM} .*; .* SEGMENT_NOT_FOUND",
    ):
        await opening
    assert sum(isinstance(request, m.OpenWriter) for request in server.requests) > 10
    await channel.close()
