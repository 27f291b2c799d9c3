"""Writers that were idle for too long, seen by a client of a real server whose clock the test moves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import millrace
from millrace.client.client import Client
from millrace.client.errors import OutcomeUnknownError, WriterExpiredError
from millrace.client.write.writer_info import EventOutcome, WriterInfo
from millrace.model.errors import InvalidArgumentError
from millrace.server.app import Server
from millrace.server.kinds.writers.options import WritersOptions
from tests.support.clock import ManualClock
from tests.support.servers import server_options
from tests.support.waiting import at_once

IDLE_S = 1600
STEP_S = 100
CLOCK_START_US = 1_700_000_000_000_000

pytestmark = pytest.mark.asyncio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(unix_us=CLOCK_START_US)


@pytest_asyncio.fixture
async def server(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Server]:
    writers = WritersOptions(named_idle_s=IDLE_S, unnamed_idle_s=IDLE_S)
    async with Server(server_options(tmp_path, writers=writers), clock=clock) as running:
        yield running


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with millrace.connect(server.address) as connected:
        await connected.create_stream("a/b")
        yield connected


async def pass_time(server: Server, clock: ManualClock, duration_s: int) -> None:
    """Let time pass, and let the server look at its writers as often as it would."""
    for _ in range(duration_s // STEP_S):
        clock.move(STEP_S)
        await server.services.expiry.expire()


async def let_expire(server: Server, clock: ManualClock) -> None:
    await pass_time(server, clock, IDLE_S + 3 * STEP_S)


async def expire_now(server: Server, writer_number: int) -> None:
    """Let an unnamed writer expire before its client is back."""
    await server.services.expiry._writers.expire(marked=[], forgotten=[writer_number])


async def values_of(client: Client) -> list[bytes]:
    async with client.reader("a/b", end=millrace.TAIL) as reader:
        return [event.value async for event in reader]


@pytest.mark.both_loops
async def test_an_id_that_expired_is_not_opened_unawares(client: Client, server: Server, clock: ManualClock) -> None:
    """Behaviour 1: a caller that counts on event numbers must not start from nothing without knowing."""
    async with client.writer("a/b", writer_id="w") as writer:
        await writer.write_many([b"1", b"2"])
    await let_expire(server, clock)

    for _ in range(2):  # failing to open it changes nothing
        with pytest.raises(WriterExpiredError, match="its state expired at 2023-11-14T") as caught:
            await client.writer("a/b", writer_id="w").open()
        assert (caught.value.subject, caught.value.retriable) == ("w", False)
    with pytest.raises(WriterExpiredError):
        await client.writer_state("a/b", "w")

    async with client.writer("a/b", writer_id="w", start_over_if_expired=True) as writer:
        assert not writer.known
        assert set(writer.last_event_numbers.values()) == {0}
        assert (await writer.write(b"3")).event_number == 1
    async with client.writer("a/b", writer_id="w") as writer:
        assert writer.known
    assert await values_of(client) == [b"1", b"2", b"3"]


async def test_an_id_with_sequences_that_expired_is_an_error_long_after(
    client: Client, server: Server, clock: ManualClock
) -> None:
    """Behaviour 66: a caller that continues after `stored_through` must never be told -1 without a word."""
    async with client.writer("a/b", writer_id="w") as writer:
        for number in range(3):
            _ = writer.write(b"%d" % number, key=f"k-{number}", sequence=number)
    for _ in range(4):
        await let_expire(server, clock)

    with pytest.raises(WriterExpiredError, match="start over, or take another id") as caught:
        await client.writer("a/b", writer_id="w").open()
    assert (caught.value.subject, caught.value.retriable) == ("w", False)
    assert len(await values_of(client)) == 3

    async with client.writer("a/b", writer_id="w", start_over_if_expired=True) as writer:
        assert writer.stored_through == -1
        await writer.write(b"3", key="k-3", sequence=3)
    async with client.writer("a/b", writer_id="w") as writer:
        assert writer.stored_through == 3
    assert sorted(await values_of(client)) == [b"0", b"1", b"2", b"3"]


async def test_starting_over_is_nothing_where_nothing_expired(client: Client) -> None:
    for count in range(2):
        async with client.writer("a/b", writer_id="w", start_over_if_expired=True) as writer:
            assert (writer.known, sum(writer.last_event_numbers.values())) == (bool(count), count)
            await writer.write(b"x")


async def test_a_writer_that_was_silent_for_too_long_is_told(
    client: Client, server: Server, clock: ManualClock
) -> None:
    """Behaviour 6: its next write fails, typed and stored nowhere; a new writer of the same client continues."""
    async with client.writer("a/b") as writer:
        await writer.write(b"1")
        await let_expire(server, clock)
        with pytest.raises(WriterExpiredError, match="open it again"):
            await writer.write(b"lost")
        with pytest.raises(WriterExpiredError):
            _ = writer.write(b"refused at once")
        with pytest.raises(WriterExpiredError):
            await writer.flush()
    async with client.writer("a/b") as writer:
        await writer.write(b"2")
    assert await values_of(client) == [b"1", b"2"]


async def test_what_was_on_its_way_when_a_writer_expired_is_unknown(client: Client, server: Server) -> None:
    """Behaviour 2: sent, stored, the connection lost before the ack, expired: it is not stored a second time."""
    state = server.opened.container.state
    (segment,) = (await client.stream_info("a/b")).open_segments
    writer = client.writer("a/b")
    await writer.open()
    sent = writer.write(b"stored")
    await at_once(lambda: state.segments[segment.segment_id].length)
    assert not sent.done()
    connection = client._writes.live
    assert connection is not None
    connection.abort("as if the network had failed")
    unsent = writer.write(b"never sent")
    await expire_now(server, writer.number)

    with pytest.raises(OutcomeUnknownError, match="not known to be stored") as caught:
        await sent
    assert isinstance(caught.value.__cause__, WriterExpiredError)
    with pytest.raises(WriterExpiredError):
        await unsent
    with pytest.raises(WriterExpiredError):
        await writer.close()
    assert await values_of(client) == [b"stored"]


async def test_an_unnamed_writer_comes_back_within_its_time(client: Client, server: Server, clock: ManualClock) -> None:
    """Behaviour 2: cut off for a while, with an append whose ack was lost; stored once."""
    state = server.opened.container.state
    (segment,) = (await client.stream_info("a/b")).open_segments
    async with client.writer("a/b") as writer:
        sent = writer.write(b"1")
        await at_once(lambda: state.segments[segment.segment_id].length)
        assert client._writes.live is not None
        client._writes.live.abort("as if the network had failed")
        await pass_time(server, clock, IDLE_S)
        assert (await sent).event_number == 1
        await writer.write(b"2")
    assert await values_of(client) == [b"1", b"2"]


async def test_a_byte_writer_is_not_opened_unawares(client: Client, server: Server, clock: ManualClock) -> None:
    async with client.byte_writer("a/b", writer_id="w") as file:
        await file.write(b"one")
        await file.flush()
        await let_expire(server, clock)
        await file.write(b"lost")
        with pytest.raises(WriterExpiredError):
            await file.flush()
        with pytest.raises(WriterExpiredError):
            await file.close()
    with pytest.raises(WriterExpiredError):
        await client.byte_writer("a/b", writer_id="w").__aenter__()
    async with client.byte_writer("a/b", writer_id="w", start_over_if_expired=True) as file:
        assert file.tell() == 3
        await file.write(b"two")
    async with client.byte_reader("a/b") as reader:
        assert await reader.read() == b"onetwo"


async def test_bytes_on_their_way_when_a_writer_expired_are_of_unknown_outcome(client: Client, server: Server) -> None:
    state = server.opened.container.state
    (segment,) = (await client.stream_info("a/b")).open_segments
    file = client.byte_writer("a/b")
    await file.__aenter__()
    await file.write(b"one")
    await at_once(lambda: state.segments[segment.segment_id].length)
    assert client._writes.live is not None
    client._writes.live.abort("as if the network had failed")
    await expire_now(server, file._number)
    with pytest.raises(OutcomeUnknownError, match="the bytes that it had sent were acknowledged"):
        await file.close()
    async with client.byte_reader("a/b") as reader:
        assert await reader.read() == b"one"


async def test_what_is_known_of_a_writer(client: Client, server: Server, clock: ManualClock) -> None:
    assert await client.writer_info("a/b", "w") is None
    async with client.writer("a/b", writer_id="w") as writer:
        await writer.write_many([b"1", b"2"])
        number, epoch = writer.number, writer.epoch
    (segment,) = (await client.stream_info("a/b")).open_segments
    info = await client.writer_info("a/b", "w")
    assert info == WriterInfo(
        writer_id="w",
        stream="a/b",
        number=number,
        epoch=epoch,
        active_us=CLOCK_START_US,
        expired_us=None,
        last_event_numbers={segment.segment_id: 2},
    )
    assert [info.outcome(segment.segment_id, each) for each in (1, 2, 3)] == ["stored", "stored", "not stored"]
    for segment_id, event_number, text in (
        (segment.segment_id, 0, "must be at least 1"),
        (99, 1, "segment 99 does not belong to a/b"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            info.outcome(segment_id, event_number)

    await let_expire(server, clock)
    info = await client.writer_info("a/b", "w")
    assert info is not None
    assert (info.number, info.epoch, info.active_us) == (number, epoch, CLOCK_START_US)
    assert info.expired_us is not None
    assert CLOCK_START_US + IDLE_S * 1_000_000 <= info.expired_us <= clock.unix_us()
    assert info.last_event_numbers == {}
    assert info.outcome(segment.segment_id, 1) is EventOutcome.EXPIRED


async def test_threads_are_told_the_same(client: Client, server: Server, clock: ManualClock) -> None:
    async with client.writer("a/b", writer_id="w") as writer:
        await writer.write(b"1")
    await let_expire(server, clock)

    def work() -> None:
        with millrace.blocking.connect(server.address) as threaded:
            info = threaded.writer_info("a/b", "w")
            assert info is not None
            assert info.expired_us is not None
            with pytest.raises(WriterExpiredError), threaded.writer("a/b", writer_id="w"):
                pass
            with pytest.raises(WriterExpiredError):
                threaded.byte_writer("a/b", writer_id="w")
            with threaded.writer("a/b", writer_id="w", start_over_if_expired=True) as writer:
                writer.write(b"2").result()
            threaded.byte_writer("a/b", writer_id="w", start_over_if_expired=True).close()

    await asyncio.to_thread(work)
    assert await values_of(client) == [b"1", b"2"]
