"""Connections over real sockets: what a peer may do wrong, and what the others notice of it."""

import asyncio
import gc
import logging
import random
import re
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import millrace
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.server.app import Server
from millrace.server.front.options import FrontOptions
from millrace.server.host.tokens import WRONG_TOKEN_DELAY_S
from millrace.server.wal import WalOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode, encode_body
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX, KIB, MIB
from millrace.wire.receive_buffer import ReceiveBuffer
from tests.support.protocol import Peer, RefusedError, SocketPeer, Stored, append_frame, code_of, hello, read_request
from tests.support.servers import SMALL_WAL, server_options
from tests.support.waiting import until

PING = encode(m.Ping(), request_id=7)


async def assert_serves(server: Server) -> None:
    """Everybody else is served as ever."""
    async with await Peer.connect(server.address) as peer:
        await peer.ask(m.ListStreams("", "", 10), m.StreamList)


async def send_alone(server: Server, peer: Peer, data: bytes) -> None:
    """Send bytes, and wait until they have arrived, or their connection has ended."""

    def seen() -> tuple[int, int, int]:
        statistics = server.statistics()
        parties = statistics["server"]
        return statistics["front"].received_bytes_total, parties.connections, parties.unauthenticated_connections

    before = seen()
    await peer.send(data)
    # Where nobody is connected any more, nothing arrives: the next bytes find that out.
    await until(lambda: seen() != before or before[1:] == (0, 0))


async def trickle(server: Server, peer: Peer, data: bytes) -> None:
    """Send byte by byte."""
    for byte in data:
        await send_alone(server, peer, bytes([byte]))


def with_length(frame: bytes, length: int) -> bytes:
    return length.to_bytes(4, "little") + frame[4:]


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_hello_is_answered_with_limits_and_identity(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address, greet=False) as peer:
        await peer.send(hello())
        _, reply = await peer.receive()
        assert isinstance(reply, m.HelloReply)
        assert reply.version == 1
        assert len(reply.server_id) == 16
        assert reply.append_size_max == 64 * KIB - 88  # what this small log takes, after the longest header
        await peer.send(PING)
        header, pong = await peer.receive()
        assert (header.request_id, pong) == (7, m.Pong())


@pytest.mark.asyncio
async def test_an_unknown_version_is_named(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address, greet=False) as peer:
        await peer.send(hello(version=9))
        _, reply = await peer.receive()
        assert isinstance(reply, m.ErrorReply)
        assert reply.code == ErrorCode.UNSUPPORTED_VERSION
        assert "9 to 9" in reply.message
        assert not await peer.ended()


@pytest.mark.asyncio
async def test_a_missing_token_is_named_as_missing(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path, front=FrontOptions(token="sesame-7"))) as server:
        with pytest.raises(RefusedError, match="the server requires a token, and none was sent"):
            await Peer.connect(server.address)
        with pytest.raises(RefusedError, match="the token is not accepted"):
            await Peer.connect(server.address, token="sesame-8")


@pytest.mark.asyncio
async def test_a_wrong_token_is_told_and_ends_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 53: no request before authentication; nothing secret is logged."""
    options = server_options(tmp_path, front=FrontOptions(token="sesame-7"))
    async with Server(options) as server:
        with pytest.raises(RefusedError) as caught:
            await Peer.connect(server.address, token="sesame-8")
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
        async with await Peer.connect(server.address, greet=False) as peer:
            await peer.send(hello(token="no") + encode(m.CreateSegment("raw/a"), request_id=1))
            assert [type(message) for message in await peer.ended()] == [m.ErrorReply]
        async with await Peer.connect(server.address, token="sesame-7") as peer:
            assert await code_of(peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
    assert "sesame" not in caplog.text


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_wrong_tokens_do_not_keep_the_right_one_out(tmp_path: Path) -> None:
    """Behaviours 53, 104: each wrong token waits on its own connection, also those of the same address."""
    front = FrontOptions(
        token="sesame-7", unauthenticated_connections_count_max=10, unauthenticated_connections_per_address_count_max=5
    )
    async with Server(server_options(tmp_path, front=front)) as server, AsyncExitStack() as stack:
        for number in range(30):
            peer = await stack.enter_async_context(await Peer.connect(server.address, greet=False))
            await peer.send(hello(token=f"guess-{number}"))
        for _ in range(10):
            async with await Peer.connect(server.address, token="sesame-7"):
                pass
        assert server.statistics()["server"].unauthenticated_connections <= 15


@pytest.mark.asyncio
async def test_the_refusal_of_a_wrong_token_is_slow(tmp_path: Path) -> None:
    """Behaviour 53: wrong tokens are rate-limited."""
    options = server_options(tmp_path, front=FrontOptions(token="sesame-7"))
    async with Server(options) as server:
        started_s = time.monotonic()
        with pytest.raises(RefusedError):
            await Peer.connect(server.address, token="guess")
        assert time.monotonic() - started_s >= WRONG_TOKEN_DELAY_S


@pytest.mark.asyncio
async def test_all_connections_of_a_client_are_one_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "millrace.server.front.connection")
    async with Server(server_options(tmp_path)) as server:
        for _ in range(2):
            async with millrace.connect(server.address) as client:
                await client.segments.read(await created(client), 0)
    sessions = re.findall(r"client greeted .* session=(\w+)", caplog.text)

    assert [len(session) for session in sessions] == [32] * 4
    assert sessions[0] == sessions[1] != sessions[2] == sessions[3]


async def created(client: millrace.Client) -> str:
    """The name of a segment that is there."""
    try:
        await client.segments.create("raw/a")
    except millrace.SegmentExistsError:
        pass
    return "raw/a"


REFUSED_FRAMES = {
    "length 0": with_length(PING, 0),
    "a length below the header": with_length(PING, 23),
    "a length above the limit": with_length(PING, FRAME_SIZE_BYTES_MAX + 1),
    "a negative length": with_length(PING, (1 << 32) - 1),
    "an unknown type": encode_body(99, b"", request_id=1),
    "type 0": encode_body(0, b"", request_id=1),
    "a record of the log": encode(m.SegmentSealed(1)),
    "a reply": encode(m.Done(1), request_id=1),
    "a second hello": hello(),
    "flags": encode_body(int(m.Ping.type), b"", request_id=1, flags=1),
    "a wrong checksum": PING[:4] + bytes(4) + PING[8:],
    "a body that is too long": encode_body(int(m.GetSegment.type), bytes(100), request_id=1),
    "text that is not text": encode_body(int(m.CreateSegment.type), b"\x02\x00\xff\xff", request_id=1),
    "request id 0": encode(m.CreateSegment("raw/x"), request_id=0),
    "a control frame above its limit": with_length(encode(m.CreateSegment("raw/x"), request_id=1), 2 * MIB)
    + bytes(2 * MIB),
    "an append without payload": encode_body(int(m.Append.type), bytes(40), request_id=1),
    "an append shorter than its header": encode_body(int(m.Append.type), bytes(8), request_id=1),
    "an append with an event number but no writer": append_frame(1, b"x", request_id=1, event_number=5),
    "an append to below the start": append_frame(1, b"x", request_id=1, expected_offset=-2),
    "an append of a writer without events": append_frame(
        1, b"x", request_id=1, event_number=1, writer_number=1, writer_epoch=1, event_count=0
    ),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("frame", REFUSED_FRAMES.values(), ids=list(REFUSED_FRAMES))
async def test_what_breaks_the_protocol_gets_one_error_and_the_end(tmp_path: Path, frame: bytes) -> None:
    """Behaviour 49: a protocol error; the server and all other connections continue."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as other:
        async with await Peer.connect(server.address) as peer:
            peer.push(frame)
            messages = await peer.ended()
        assert [type(message) for message in messages] == [m.ErrorReply]
        assert isinstance(messages[0], m.ErrorReply)
        assert messages[0].code == ErrorCode.PROTOCOL
        await other.ask(m.ListStreams("", "", 10), m.StreamList)


@pytest.mark.asyncio
async def test_nothing_is_taken_before_the_handshake(tmp_path: Path) -> None:
    """Behaviour 49: an append or a request in the place of HELLO is refused."""
    async with Server(server_options(tmp_path)) as server:
        for frame in (append_frame(1, b"x", request_id=1), encode(m.CreateSegment("raw/a"), request_id=1), PING):
            async with await Peer.connect(server.address, greet=False) as peer:
                await peer.send(frame)
                (message,) = await peer.ended()
                assert isinstance(message, m.ErrorReply)
                assert "before the handshake" in message.message
        await assert_serves(server)


@pytest.mark.asyncio
async def test_request_ids_must_rise(peer: SocketPeer) -> None:
    segment_id = await peer.create_segment("raw/a")
    await peer.send(append_frame(segment_id, b"x", request_id=5))
    await peer.receive()
    await peer.send(append_frame(segment_id, b"x", request_id=5))
    (message,) = await peer.ended()
    assert isinstance(message, m.ErrorReply)
    assert "not above" in message.message


@pytest.mark.slow
@pytest.mark.asyncio
async def test_every_bit_of_a_frame_flipped_in_turn_stores_nothing(server: Server, peer: Peer) -> None:
    """Behaviour 49: every bit flipped in turn is a protocol error, or a longer frame that never comes."""
    segment_id = await peer.create_segment("raw/a")
    frames = [append_frame(segment_id, b"payload", request_id=1), encode(m.CreateSegment("raw/b"), request_id=1)]
    for frame in frames:
        for bit in range(8 * len(frame)):
            damaged = bytearray(frame)
            damaged[bit // 8] ^= 1 << bit % 8
            async with await Peer.connect(server.address) as hostile:
                hostile.push(bytes(damaged))
                # A longer length waits for what never comes: then closing is up to the peer.
                longer = int.from_bytes(damaged[:4], "little")
                if longer > len(frame) and longer <= FRAME_SIZE_BYTES_MAX and bit < 32:
                    continue
                messages = await hostile.ended()
                assert [type(message) for message in messages] == [m.ErrorReply], bit
    # Not by `peer`, which was silent all the time and may have been given up.
    async with await Peer.connect(server.address) as honest:
        assert (await honest.info(segment_id)).length == 0
        assert await code_of(honest.ask(m.GetSegment(0, "raw/b"), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_frame_cut_anywhere_changes_nothing(server: Server, peer: Peer) -> None:
    """Behaviour 49: the connection ends inside a frame, at every byte of it."""
    segment_id = await peer.create_segment("raw/a")
    frame = append_frame(segment_id, b"payload", request_id=1)
    for size in range(len(frame)):
        async with await Peer.connect(server.address) as cut:
            await cut.send(frame[:size])
    for size in range(len(hello())):
        async with await Peer.connect(server.address, greet=False) as cut:
            await cut.send(hello()[:size])
    assert (await peer.info(segment_id)).length == 0


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_frames_arrive_in_whatever_pieces(peer: Peer) -> None:
    segment_id = await peer.create_segment("raw/a")
    first = peer.next_id(3)
    frames = b"".join(append_frame(segment_id, b"abc"[i : i + 1], request_id=first + i) for i in range(3))
    for start in range(0, len(frames), 7):
        await peer.send(frames[start : start + 7])
        await asyncio.sleep(0)
    await peer.settled(range(first, first + 3))
    assert await peer.read_all(segment_id) == b"abc"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_random_garbage_hurts_no_other_connection(server: Server, peer: Peer) -> None:
    """Behaviour 49: noise, with and without a handshake, and noise after good frames."""
    choices = random.Random(20)
    segment_id = await peer.create_segment("raw/a")
    for round_number in range(100):
        async with await Peer.connect(server.address, greet=bool(round_number % 2)) as hostile:
            good = append_frame(segment_id, b"ok", request_id=1) if round_number % 4 == 1 else b""
            hostile.push(good)
            if good:
                await hostile.settled([1])
            hostile.push(choices.randbytes(choices.choice((1, 24, 100, 5000))))
    assert await peer.read_all(segment_id) == b"ok" * 25


@pytest.mark.both_loops
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("protocol", "greeting"),
    [
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("HTTP", b"POST /metrics HTTP/1.1\r\n"),
        ("TLS", b"\x16\x03\x01\x02\x00"),
    ],
)
async def test_a_browser_on_the_data_port_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: str, greeting: bytes
) -> None:
    """Behaviour 49: HTTP or TLS bytes on the data port make one readable line that names the right port."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address, greet=False) as peer:
        with caplog.at_level(logging.WARNING):
            await peer.send(greeting)
            assert not await peer.ended()
        (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("millrace")]
        assert protocol in record.getMessage()
        assert "9241" in record.getMessage()


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_handshake_that_trickles_in_is_cut(tmp_path: Path) -> None:
    """Behaviour 50: slowloris in the handshake, however busily its bytes arrive."""
    options = server_options(tmp_path, front=FrontOptions(handshake_timeout_s=0.2))
    async with Server(options) as server, await Peer.connect(server.address, greet=False) as peer:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        with pytest.raises(ConnectionError):
            await trickle(server, peer, hello() * 20)
        assert loop.time() - started_s < 2


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_body_that_trickles_in_is_cut(tmp_path: Path) -> None:
    """Behaviour 50: slowloris in a body. A connection that is merely busy is not one."""
    options = server_options(tmp_path, front=FrontOptions(frame_timeout_s=0.3))
    async with Server(options) as server, await Peer.connect(server.address) as busy:
        segment_id = await busy.create_segment("raw/a")
        stop = asyncio.Event()

        async def keep_busy() -> int:
            # What is sent always ends in the middle of a frame: one is pending forever, and always another one.
            count = 0
            rest = b""
            while not stop.is_set():
                frame = append_frame(segment_id, bytes(100), request_id=busy.next_id())
                await send_alone(server, busy, rest + frame[:80])
                rest = frame[80:]
                count += 1
            await busy.send(rest)
            await busy.settled(range(2, 2 + count))
            return count

        working = asyncio.create_task(keep_busy())
        for _ in range(2):  # so that the other one lives for longer than a frame may take
            async with await Peer.connect(server.address) as peer:
                frame = append_frame(segment_id, bytes(1000), request_id=1)
                with pytest.raises(ConnectionError):
                    await trickle(server, peer, frame)
        stop.set()
        count = await working
        assert (await busy.info(segment_id)).length == 100 * count


@pytest.mark.asyncio
async def test_what_a_peer_left_is_dropped_when_it_leaves(server: Server) -> None:
    """Behaviour 86: a frame that is not whole does not stay until garbage is collected, which may be never."""
    gc.collect()
    gc.disable()
    before = largest_receive_buffer()  # what another test of this process has kept
    try:
        async with await Peer.connect(server.address) as peer:
            await peer.ask(m.ListStreams("", "", 10), m.StreamList)
            frame = append_frame(1, bytes(900 * KIB), request_id=peer.next_id())
            for piece in range(9):
                await send_alone(server, peer, frame[piece * 99 * KIB :][: 99 * KIB])
            assert largest_receive_buffer() >= 800 * KIB
        await until(lambda: server.statistics()["server"].connections == 0)
        assert largest_receive_buffer() <= max(before, 100 * KIB)
    finally:
        gc.enable()


def largest_receive_buffer() -> int:
    """Return the size of the largest one of this process, of dead connections, too."""
    return max((len(found.data) for found in gc.get_objects() if isinstance(found, ReceiveBuffer)), default=0)


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_peer_that_went_silent_is_found_out(tmp_path: Path) -> None:
    """Behaviour 50: half-open peers are asked once, and cut if they do not answer."""
    options = server_options(tmp_path, front=FrontOptions(keepalive_s=0.15, handshake_timeout_s=0.15))
    async with (
        Server(options) as server,
        await Peer.connect(server.address) as silent,
        await Peer.connect(server.address) as living,
    ):
        silent.answers_pings = False
        waiting = asyncio.create_task(living.ended(timeout_s=1.0))
        assert not await silent.ended()
        assert silent.pings
        with pytest.raises(TimeoutError):
            await waiting
        assert len(living.pings) >= 3


@pytest.mark.asyncio
async def test_an_append_above_what_the_log_takes_is_refused_with_the_connection_alive(tmp_path: Path) -> None:
    """Behaviour 8: one byte more than the largest append is refused by the server too."""
    options = server_options(tmp_path, wal=replace(SMALL_WAL, files_max=32))
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        most = 64 * KIB - 64
        await peer.store(segment_id, bytes(most))
        assert await peer.settled(await peer.append(segment_id, bytes(most + 1))) == [ErrorCode.APPEND_TOO_LARGE]
        await peer.ask(m.ListStreams("", "", 10), m.StreamList)
        await peer.store(segment_id, b"x")
        # Many appends at once are cut into runs that fit.
        await peer.store(segment_id, *[bytes(20 * KIB)] * 20)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_largest_append_is_stored_and_one_byte_more_refused(tmp_path: Path) -> None:
    """Behaviour 8: the largest append is 16 MiB."""
    async with Server(server_options(tmp_path, wal=WalOptions(files_max=4))) as server:
        async with await Peer.connect(server.address) as peer:
            segment_id = await peer.create_segment("raw/a")
            await peer.store(segment_id, bytes(APPEND_SIZE_BYTES_MAX))
            assert (await peer.info(segment_id)).length == APPEND_SIZE_BYTES_MAX
        async with await Peer.connect(server.address) as peer:
            frame = append_frame(segment_id, bytes(100), request_id=1)
            await peer.send(with_length(frame, FRAME_SIZE_BYTES_MAX + 1))
            (message,) = await peer.ended()
            assert isinstance(message, m.ErrorReply)
            assert "above the limit" in message.message


@pytest.mark.asyncio
async def test_a_writer_cannot_be_opened_on_more_segments_than_a_reply_holds(peer: Peer) -> None:
    segment_id = await peer.create_segment("raw/a")
    request = m.OpenWriter("w", [segment_id] * 65535, 0)
    assert await code_of(peer.ask(request, m.WriterOpened)) is ErrorCode.INVALID_ARGUMENT


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_draining_answers_what_is_under_way_and_refuses_what_comes(tmp_path: Path) -> None:
    """Behaviour 48: what is in flight at SIGTERM is finished or failed."""
    server = Server(server_options(tmp_path))
    await server.start()
    async with await Peer.connect(server.address) as peer, await Peer.connect(server.address) as parked:
        segment_id = await peer.create_segment("raw/a")
        quiet_id = await peer.create_segment("raw/quiet")
        read = await parked.start(read_request(quiet_id, 0, wait_ms=60_000))
        await parked.ask(m.ListStreams("", "", 10), m.StreamList)
        ids = await peer.append(segment_id, *[b"x"] * 100)
        await peer.settled(ids[:1])
        stopping = asyncio.create_task(server.stop())
        with pytest.raises(RefusedError) as caught:
            await parked.reply(read, m.Data)
        assert caught.value.code is ErrorCode.SHUTTING_DOWN
        assert caught.value.reply.retriable
        try:
            outcomes = await peer.settled(ids)
            assert all(isinstance(outcome, Stored) for outcome in outcomes)
        except (EOFError, ConnectionError):
            pytest.fail("cut before the acks of what was stored")
        await peer.ended()
        await stopping
