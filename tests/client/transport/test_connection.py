import asyncio
import os
import socket

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import (
    AuthenticationError,
    ConditionFailedError,
    ForkedClientError,
    OutcomeUnknownError,
    PipelineBrokenError,
    SegmentNotFoundError,
    SegmentSealedError,
    ServerUnreachableError,
)
from millrace.client.options import ClientOptions, parse_address
from millrace.client.testing import SETTINGS_SMALL, TestServer
from millrace.client.transport.connection import Connection, open_connection
from millrace.model.errors import InvalidArgumentError
from millrace.wire import messages as m
from millrace.wire.framing import encode

pytestmark = pytest.mark.asyncio


async def test_nothing_listens_is_said_with_the_address() -> None:
    with pytest.raises(ServerUnreachableError, match=r"127\.0\.0\.1:1"):
        async with millrace.connect("127.0.0.1:1"):
            pass


@pytest.mark.both_loops
async def test_pipelined_appends_are_stored_in_the_order_sent(client: Client, name: str) -> None:
    """Behaviour 5: acks are cumulative; each append learns the offset of its own first byte."""
    await client.segments.create(name)
    segment = await client.segments.open(name)
    await segment.drain()
    pieces = [bytes([number % 256]) * (number % 50 + 1) for number in range(500)]

    offsets = await asyncio.gather(*[segment.append_nowait(piece) for piece in pieces])

    expected = [sum(map(len, pieces[:number])) for number in range(500)]
    assert offsets == expected
    result = await client.segments.read(name, 0, max_bytes=100_000)
    assert result.data == b"".join(pieces)


async def test_what_is_followed_leaves_with_what_follows_it(client: Client) -> None:
    """The first frame of a turn leaves at once, unless it says that others come; then all leave with the turn."""
    connection = await open_connection(client.address.members[0], client.options, bytes(16))

    def sent_bytes() -> int:
        return connection.statistics().sent_bytes

    start = sent_bytes()
    announced = m.AddParts(number=7, branch=0, parts=[])
    followed_size = len(encode(announced))
    connection.send_unanswered(announced)
    reply = connection.send_request(m.GetTails([]))
    assert sent_bytes() == start
    await asyncio.sleep(0)
    size = sent_bytes() - start - followed_size
    assert size > 0
    await reply
    reply = connection.send_request(m.GetTails([]))
    assert sent_bytes() == start + followed_size + size * 2
    await reply
    await connection.close()


async def test_a_failed_append_breaks_its_pipeline_and_not_the_connection(client: Client, name: str) -> None:
    """Behaviour 6 and 11: acks of earlier appends first, then the error; later ones in flight fail; the next works."""
    await client.segments.create(name)
    connection = await open_connection(client.address.members[0], client.options, bytes(16))
    segment_id = (await client.segments.info(name)).segment_id

    first = connection.append(b"one", segment_id=segment_id)
    second = connection.append(b"two", segment_id=segment_id, expected_offset=77)
    third = connection.append(b"three", segment_id=segment_id)
    results = await asyncio.gather(first, second, third, return_exceptions=True)

    assert results[0] == 0
    assert isinstance(results[1], ConditionFailedError)
    assert results[1].length == 3
    assert isinstance(results[2], PipelineBrokenError)
    assert await connection.append(b"four", segment_id=segment_id) == 3
    await connection.close()


async def test_appends_to_sealed_and_missing_segments_fail_after_earlier_acks(client: Client, name: str) -> None:
    """Behaviour 6: the typed error, and the connection lives."""
    await client.segments.create(name)
    segment = await client.segments.open(name)
    assert await segment.append(b"x") == 0
    await client.segments.seal(name)
    with pytest.raises(SegmentSealedError):
        await segment.append(b"y")
    await client.segments.delete(name)
    with pytest.raises(SegmentNotFoundError):
        await segment.append(b"y")
    assert await client.ping() > 0


async def test_a_large_push_and_a_large_read_arrive_whole(client: Client, name: str) -> None:
    data = os.urandom(5_000_000)
    await client.segments.create(name)
    await client.segments.append(name, data)

    result = await client.segments.read(name, 0, max_bytes=len(data))
    got = result.data
    while len(got) < len(data):
        got += (await client.segments.read(name, len(got), max_bytes=len(data))).data

    assert got == data


async def test_an_append_that_was_under_way_when_the_connection_died_is_unknown(client: Client, name: str) -> None:
    await client.segments.create(name)
    segment_id = (await client.segments.info(name)).segment_id
    connection = await open_connection(client.address.members[0], client.options, bytes(16))
    future = connection.append(b"x", segment_id=segment_id)
    connection.abort("for the test")

    with pytest.raises(OutcomeUnknownError):
        await future
    assert not connection.is_open
    assert connection.statistics().in_flight_bytes == 0


async def test_a_cancelled_request_leaves_the_connection_in_order(client: Client) -> None:
    connection = await open_connection(client.address.members[0], client.options, bytes(16))
    request = connection.send_request(m.Ping())
    request.cancel()

    assert await connection.send_request(m.Ping()) == m.Pong()
    await connection.close()


async def test_room_is_bounded_and_given_back(server: TestServer, client: Client, name: str) -> None:
    await client.segments.create(name)
    segment_id = (await client.segments.info(name)).segment_id
    options = ClientOptions(in_flight_bytes_max=1000)
    connection = await open_connection(parse_address(server.address), options, bytes(16))
    future = connection.append(b"x" * 900, segment_id=segment_id)

    assert not connection.has_room(900)
    await connection.wait_for_room(900)

    assert future.done()
    assert connection.has_room(900)
    assert connection.has_room(5000), "one that is larger than the bound goes alone"
    await connection.close()


async def test_an_empty_append_is_refused_before_it_is_sent(client: Client, name: str) -> None:
    await client.segments.create(name)
    with pytest.raises(InvalidArgumentError):
        await client.segments.append(name, b"")


async def test_a_forked_child_gets_a_clear_error_and_its_parent_goes_on(client: Client, name: str) -> None:
    """Behaviour 10."""
    await client.segments.create(name)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        try:
            coroutine = client.segments.append(name, b"from the child")
            coroutine.send(None)
            os.write(writer, b"sent")
        except ForkedClientError:
            os.write(writer, b"refused")
        finally:
            os._exit(0)
    os.close(writer)
    await asyncio.to_thread(os.waitpid, child, 0)
    answer = os.read(reader, 100)
    os.close(reader)

    assert answer == b"refused"
    assert await client.segments.append(name, b"from the parent") == 0


async def test_a_silent_server_is_noticed() -> None:
    """A peer that takes the connection and says nothing: the handshake has a deadline."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = parse_address(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ServerUnreachableError, match="no answer"):
            await open_connection(address, ClientOptions(connect_timeout_s=0.05), bytes(16))


async def test_a_connect_that_is_cancelled_as_its_answer_arrives_leaves_nothing_open(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Connection] = []
    original = Connection.buffer_updated

    def received(self: Connection, nbytes: int) -> None:
        original(self, nbytes)
        made.append(self)
        connecting.cancel()

    monkeypatch.setattr(Connection, "buffer_updated", received)
    connecting = asyncio.create_task(open_connection(parse_address(server.address), ClientOptions(), bytes(16)))
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert not made[0].is_open


async def test_a_server_without_tls_is_told_from_one_that_is_away(server: TestServer) -> None:
    """Behaviour 53: the error names what may be wrong; the server hangs up, which leaves nothing to cite."""
    with pytest.raises(ServerUnreachableError, match="does it speak TLS"):
        await open_connection(parse_address(server.address), ClientOptions(tls=True), bytes(16))


async def test_nothing_is_answered_without_the_token() -> None:
    """Behaviour 53: no request before authentication."""
    with millrace.testing.server(settings={**SETTINGS_SMALL, "MILLRACE_FRONT_TOKEN": "secret"}) as guarded:
        for token in (None, "wrong"):
            with pytest.raises(AuthenticationError) as caught:
                async with millrace.connect(guarded.address, token=token):
                    pass
            assert "secret" not in str(caught.value)
        async with millrace.connect(guarded.address, token="secret") as client:
            assert await client.create_stream("a/b")
