"""Writers against a server that answers when the test says so: no sockets, no waiting."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections.abc import Callable

import pytest

from millrace.client.errors import (
    DeliveryTimeoutError,
    NoSpaceError,
    OutcomeUnknownError,
    StreamNotFoundError,
    StreamSealedError,
    WriterExpiredError,
)
from millrace.client.write.events import WriteResult
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer import Writer
from millrace.model.errors import MillraceError
from millrace.wire.errors import ErrorCode
from tests.client.write.writers import error_of, writing
from tests.support.model_server import ModelServer, turns

# --- one failure at a time ---


@pytest.mark.asyncio
async def test_a_segment_that_rejects_and_is_not_replaced_ends_the_writer_at_its_deadline() -> None:
    """Each rejection starts a search for successors of its own; the time limit is of all of them."""
    server = ModelServer()
    async with writing(server, WriterOptions(delivery_timeout_s=10)) as writer:
        future = writer.write_many([b"x"])
        begin_s = server.clock.monotonic_s()
        while not future.done() and server.clock.monotonic_s() < begin_s + 100:
            await turns()
            while server.arrived:
                server.refuse(ErrorCode.SEGMENT_SEALED)
            await server.clock.advance(0.5)
        assert future.done()
        assert isinstance(future.exception(), OutcomeUnknownError)
        assert server.clock.monotonic_s() < begin_s + 15


@pytest.mark.asyncio
async def test_what_other_segments_store_leaves_the_deadline_of_one_that_rejects() -> None:
    server = ModelServer(segment_count=2)
    async with writing(server, WriterOptions(delivery_timeout_s=10)) as writer:
        future = writer.write_many([b"x"])
        refusing = server.arrived[0].segment_id
        begin_s = server.clock.monotonic_s()
        while not future.done() and server.clock.monotonic_s() < begin_s + 100:
            writer.write_many([b"y"])  # to the two in turn
            await turns()
            while server.arrived:
                if server.arrived[0].segment_id == refusing:
                    server.refuse(ErrorCode.SEGMENT_SEALED)
                else:
                    server.answer(1)
            await server.clock.advance(0.5)
        assert isinstance(await error_of(future), OutcomeUnknownError)
        assert server.clock.monotonic_s() < begin_s + 15
        assert len(list(server.events())) > 5


@pytest.mark.asyncio
async def test_a_block_that_is_stored_starts_the_deadline_of_rejections_anew() -> None:
    server = ModelServer()
    async with writing(server, WriterOptions(delivery_timeout_s=10)) as writer:
        for _ in range(3):
            future = writer.write_many([b"x"])
            await turns()
            server.refuse(ErrorCode.SEGMENT_SEALED)
            while not server.arrived:
                await turns()
                await server.clock.advance(0.5)
            server.answer()
            await future
            await server.clock.advance(8)


@pytest.mark.asyncio
async def test_what_was_sent_is_sent_again_under_the_same_numbers() -> None:
    """Behaviour 2: the server stored two of three blocks, and the connection is lost before the acks."""
    server = ModelServer()
    async with writing(server) as writer:
        futures = [writer.write_many([b"%d" % number] * 2) for number in range(3)]
        await turns()
        assert [append.event_number for append in server.arrived] == [1, 3, 5]
        server.answer(2, heard=False)
        server.lose()
        await turns()
        assert [append.event_number for append in server.arrived] == [1, 3, 5]
        server.answer()
        stored = await asyncio.gather(*futures)
    assert [record.event_number for record in stored] == [1, 3, 5]
    assert [record.offset is None for record in stored] == [True, True, False]
    assert [value for _, value in server.events()] == [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert server.connects == 2


@pytest.mark.asyncio
async def test_a_throttled_block_waits_for_all_that_was_sent_after_it() -> None:
    server = ModelServer()
    async with writing(server) as writer:
        futures = [writer.write_many([b"%d" % number]) for number in range(3)]
        await turns()
        server.refuse(ErrorCode.THROTTLED, retriable=True)
        await turns()
        server.answer(1)  # a gap
        assert writer.statistics().retries == 0
        server.answer(1)
        assert writer.statistics().retries == 0
        await turns()
        assert writer.statistics().retries == 1
        assert not server.arrived  # it waits before it sends again
        await server.clock.advance(0.1)
        server.answer()
        await asyncio.gather(*futures)
    assert [value for _, value in server.events()] == [b"0", b"1", b"2"]


@pytest.mark.asyncio
async def test_a_writer_gives_up_after_its_delivery_timeout_and_says_what_is_stored() -> None:
    """Behaviour 89."""
    server = ModelServer()
    async with writing(server, WriterOptions(delivery_timeout_s=5)) as writer:
        await asyncio.gather(*answered(server, [writer.write_many([b"stored"] * 7)]))
        sent = writer.write_many([b"sent"] * 3)
        server.down = True
        server.lose()
        gathered = writer.write(b"gathered")
        for _ in range(10):
            await server.clock.advance(1.0)
        for future in (sent, gathered):
            assert isinstance(await error_of(future), OutcomeUnknownError)
        with pytest.raises(DeliveryTimeoutError, match="given up after 5 s: no server could be reached") as caught:
            await writer.flush()
        error = caught.value
        assert (error.stored_count, error.unknown_count, error.unstored_count) == (7, 3, 1)
        assert "7 events were stored, 3 were sent and may be stored, 1 are not stored" in str(error)
        with pytest.raises(OutcomeUnknownError):
            writer.write(b"refused at once")
        await writer.flush()  # it was told
        assert writer._channel.waits.current is None


@pytest.mark.asyncio
async def test_a_full_server_is_named_as_such_when_the_writer_gives_up() -> None:
    server = ModelServer()
    async with writing(server, WriterOptions(delivery_timeout_s=5)) as writer:
        writer.write_many([b"x"])
        flushing = asyncio.create_task(writer.flush())
        for _ in range(20):
            await turns()
            if server.arrived:
                server.refuse(ErrorCode.NO_SPACE, retriable=True)
            await server.clock.advance(1.0)
        with pytest.raises(DeliveryTimeoutError, match="NO_SPACE") as caught:
            await flushing
        assert isinstance(caught.value.__cause__, NoSpaceError)
        assert (caught.value.unknown_count, caught.value.unstored_count) == (0, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("cause", ["unreachable", "no space"])
async def test_a_named_writer_keeps_its_events_through_an_outage_of_any_length(cause: str) -> None:
    """Behaviour 89: a day later they are stored, once. Meanwhile it is known what is waited for, and since when."""
    server = ModelServer()
    async with writing(server) as writer:
        futures = [writer.write_many([b"%d" % number]) for number in range(3)]
        if cause == "unreachable":
            server.answer(1, heard=False)
            server.down = True
            server.lose()
        begin_s = server.clock.monotonic_s()
        for _ in range(24):
            await turns()
            if cause == "no space":
                server.refuse(ErrorCode.NO_SPACE, retriable=True)
                server.answer()  # a gap
            await turns()
            await server.clock.advance(3600)
        waiting = writer._channel.waits.current
        assert waiting is not None
        assert waiting.reason == cause
        assert waiting.since_s < begin_s + 60
        assert writer.pending_bytes
        server.down = False
        while not all(future.done() for future in futures):
            await turns()
            server.answer()
            await server.clock.advance(1)
        assert [value for _, value in server.events()] == [b"0", b"1", b"2"]
        assert writer._channel.waits.current is None


@pytest.mark.asyncio
async def test_an_outage_while_successors_are_looked_for_does_not_end_the_writer() -> None:
    """Behaviour 89: it is longer than a request may take."""
    server = ModelServer()
    async with writing(server) as writer:
        future = writer.write_many([b"x"])
        await turns()
        server.replace([1], 2)
        server.down = True
        server.refuse(ErrorCode.SEGMENT_SEALED)
        server.lose()
        for _ in range(100):
            await server.clock.advance(10)
        assert not future.done()
        server.down = False
        while not future.done():
            await turns()
            server.answer()
            await server.clock.advance(1)
        assert (await future).segment_id in (2, 3)


def answered(server: ModelServer, futures: "list[asyncio.Future[WriteResult]]") -> "list[asyncio.Future[WriteResult]]":
    """Let the server answer what was written."""
    server.answer()
    return futures


@pytest.mark.asyncio
async def test_progress_makes_a_writer_patient_again() -> None:
    server = ModelServer()
    async with writing(server, WriterOptions(delivery_timeout_s=5)) as writer:
        futures = []
        for number in range(10):
            futures.append(writer.write_many([b"%d" % number]))
            server.refuse(ErrorCode.THROTTLED, retriable=True)
            await turns()
            await server.clock.advance(4.0)
            server.answer()
        await asyncio.gather(*futures)


@pytest.mark.asyncio
async def test_room_is_shared_by_the_segments_in_turn() -> None:
    server = ModelServer(segment_count=2)
    async with writing(server, WriterOptions(in_flight_bytes_max=1)) as writer:
        futures = [writer.write_many([b"%d" % number]) for number in range(6)]
        sent = []
        while server.arrived:
            assert len(server.arrived) == 1  # one block is sent however large it is
            sent.append(server.arrived[0].segment_id)
            server.answer()
            await turns()
        await asyncio.gather(*futures)
    assert sorted(sent) == [1, 1, 1, 2, 2, 2]


@pytest.mark.asyncio
async def test_the_server_bounds_the_appends_in_flight() -> None:
    server = ModelServer()
    server.appends_in_flight_max = 2
    async with writing(server) as writer:
        futures = [writer.write_many([b"%d" % number]) for number in range(6)]
        for _ in range(3):
            await turns()
            assert len(server.arrived) == 2
            server.answer()
        await asyncio.gather(*futures)


@pytest.mark.asyncio
async def test_segments_that_wait_for_room_ask_for_it_once() -> None:
    """Each that asked for itself would let all of them ask again, and so on."""
    server = ModelServer(segment_count=8)
    server.appends_in_flight_max = 1
    async with writing(server) as writer:
        futures = [writer.write_many([b"%d" % number]) for number in range(16)]
        for _ in futures:
            await turns()
            assert len(server.arrived) == 1
            connection = writer._channel.live
            assert connection is not None
            assert len(connection._room_waiters) <= 1
            server.answer()
        await asyncio.gather(*futures)


@pytest.mark.asyncio
async def test_what_was_never_sent_is_known_not_to_be_stored_when_the_writer_expired() -> None:
    server = ModelServer()
    server.appends_in_flight_max = 1
    async with writing(server) as writer:
        sent, queued, gathered = writer.write_many([b"sent"]), writer.write_many([b"queued"]), writer.write(b"gathered")
        server.answer(heard=False)
        server.lose()
        await turns()
        server.refuse(ErrorCode.WRITER_EXPIRED)
        assert isinstance(await error_of(sent), OutcomeUnknownError)
        assert isinstance(await error_of(queued), WriterExpiredError)
        assert isinstance(await error_of(gathered), WriterExpiredError)


@pytest.mark.asyncio
async def test_a_deleted_segment_says_nothing_of_what_it_had_stored() -> None:
    server = ModelServer()
    async with writing(server) as writer:
        future = writer.write_many([b"x"])
        server.answer(heard=False)
        server.lose()
        server.replace([1], 1)
        del server.segments[1]
        await turns()
        server.answer()
        with pytest.raises(OutcomeUnknownError, match="segment 1 was deleted"):
            await future


@pytest.mark.asyncio
async def test_a_replaced_segment_that_is_deleted_stored_nothing_that_was_not_acked() -> None:
    server = ModelServer()
    async with writing(server) as writer:
        server.replace([1], 2)
        del server.segments[1]
        future = writer.write_many([b"x"], key="k")
        server.answer()
        await turns()
        server.answer()
        assert (await future).segment_id in server.open_ids()


@pytest.mark.asyncio
async def test_a_stream_that_is_sealed_or_deleted_ends_its_writers() -> None:
    def seal(server: ModelServer) -> None:
        server.segments[1].sealed = True

    def replace_by_another(server: ModelServer) -> None:
        seal(server)
        server.stream_id = 6

    cases: list[tuple[Callable[[ModelServer], None], type[MillraceError]]] = [
        (seal, StreamSealedError),
        (replace_by_another, StreamNotFoundError),
    ]
    for change, error in cases:
        server = ModelServer()
        async with writing(server) as writer:
            change(server)
            future = writer.write_many([b"x"])
            server.answer()
            with pytest.raises(error):
                await future
            with pytest.raises(error):
                await writer.close()


# --- waiting for room ---

# One write is above the high mark, two are not below it again.
SMALL = WriterOptions(drain_high_bytes=1000, drain_low_bytes=500)


async def sends(writer: Writer, count: int) -> list["asyncio.Task[asyncio.Future[WriteResult]]"]:
    """Start as many sends at once, of which the first fills the buffer."""
    tasks = [asyncio.create_task(writer.send(b"%d" % number + b"x" * 1000)) for number in range(count)]
    await turns()
    return tasks


def done(tasks: list["asyncio.Task[asyncio.Future[WriteResult]]"]) -> list[int]:
    return [number for number, task in enumerate(tasks) if task.done()]


async def finish(server: ModelServer, writer: Writer) -> list[str]:
    """Answer everything; return which sends were stored, in their order."""
    flushing = asyncio.create_task(writer.flush())
    while not flushing.done():
        await turns()
        server.answer()
    await flushing
    return [value.decode().rstrip("x") for _, value in server.events()]


@pytest.mark.asyncio
async def test_who_waits_for_room_is_served_in_order_as_far_as_there_is_room() -> None:
    server = ModelServer()
    async with writing(server, SMALL) as writer:
        tasks = await sends(writer, 4)
        assert done(tasks) == [0]
        server.answer()
        late = asyncio.create_task(writer.send(b"4"))  # there is room just now, but others wait
        await turns()
        assert done(tasks) == [0, 1]
        assert not late.done()
        for expected in ([0, 1, 2], [0, 1, 2, 3]):
            server.answer()
            await turns()
            assert done(tasks) == expected
        assert not late.done()
        server.answer()
        await late
        assert await finish(server, writer) == ["0", "1", "2", "3", "4"]


@pytest.mark.asyncio
async def test_an_answer_above_the_low_mark_wakes_nobody() -> None:
    server = ModelServer()
    async with writing(server, SMALL) as writer:
        for number in range(3):
            writer.write_many([b"%d" % number + b"x" * 600])
        (task,) = await sends(writer, 1)
        server.answer(2)
        await turns()
        assert 500 < writer.pending_bytes <= 1000
        late = asyncio.create_task(writer.send(b"late"))
        await turns()
        assert not task.done()
        assert not late.done()  # nobody passes one who waits
        server.answer(1)
        await turns()
        assert task.done()
        server.answer(1)
        await late


@pytest.mark.asyncio
async def test_a_cancelled_wait_for_room_gives_its_turn_to_the_next() -> None:
    """Whether it was cancelled before or after it was woken."""
    server = ModelServer()
    async with writing(server, SMALL) as writer:
        tasks = await sends(writer, 5)
        tasks[1].cancel()
        server.answer()
        tasks[2].cancel()
        await turns()
        assert done(tasks) == [0, 1, 2, 3]
        assert [task.cancelled() for task in tasks] == [False, True, True, False, False]
        server.answer()
        tasks[4].cancel()  # the last, just woken
        await turns()
        await asyncio.wait_for(writer.send(b"5"), 1)
        assert await finish(server, writer) == ["0", "3", "5"]


@pytest.mark.asyncio
async def test_who_waits_for_room_is_told_that_the_writer_failed() -> None:
    server = ModelServer()
    async with writing(server, SMALL) as writer:
        tasks = await sends(writer, 4)
        server.segments[1].sealed = True
        server.answer()
        await turns()
        outcomes = await asyncio.gather(*tasks[1:], return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {StreamSealedError}
