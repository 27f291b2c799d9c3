"""The receive buffer against plain concatenation."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.wire import messages as m
from millrace.wire.errors import ForeignProtocolError, FrameTooLargeError, ProtocolError
from millrace.wire.framing import encode, encode_body
from millrace.wire.limits import (
    FRAME_SIZE_BYTES_MAX,
    HELLO_FRAME_SIZE_BYTES_MAX,
    KIB,
    MIB,
)
from millrace.wire.receive_buffer import (
    BUFFER_SIZE_BYTES_IDLE,
    BUFFER_SIZE_BYTES_INITIAL,
    ROOM_SIZE_BYTES_MIN,
    ReceiveBuffer,
)
from tests.support.examples import examples
from tests.support.tables import table


def opened(*, frame_size_max: int = FRAME_SIZE_BYTES_MAX) -> ReceiveBuffer:
    """A buffer that has passed its first frame."""
    buffer = ReceiveBuffer(frame_size_max=frame_size_max)
    feed(buffer, encode(m.Ping()))
    assert len(list(whole_frames(buffer))) == 1
    return buffer


def feed(buffer: ReceiveBuffer, data: bytes) -> int:
    """Write as much as the buffer takes in one go; return how much that was."""
    room = buffer.writable()
    assert len(room) >= 1
    count = min(len(room), len(data))
    room[:count] = data[:count]
    buffer.received(count)
    return count


def whole_frames(buffer: ReceiveBuffer) -> Iterator[memoryview]:
    """The whole frames that are pending, each consumed."""
    while end := buffer.frame_end():
        frame = buffer.view(buffer.start, end)
        buffer.consume(end)
        yield frame


def frames_of(buffer: ReceiveBuffer, pieces: Sequence[bytes]) -> list[bytes]:
    """What comes out when these pieces come in."""
    found = []
    for piece in pieces:
        rest = piece
        while rest:
            rest = rest[feed(buffer, rest) :]
            found += [bytes(frame) for frame in whole_frames(buffer)]
    return found


bodies = st.binary(max_size=60) | st.binary(min_size=1, max_size=20).map(lambda data: data * 2000)
some_frames = st.lists(st.builds(encode_body, st.integers(1, 127), bodies, request_id=st.integers(0, 9)), max_size=8)


@settings(max_examples=examples(50))
@given(some_frames, st.data())
def test_any_chunking_gives_the_same_frames(sent: list[bytes], drawn: st.DataObject) -> None:
    stream = b"".join(sent)
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert frames_of(opened(), [stream]) == sent
    assert frames_of(opened(), pieces) == sent


@settings(max_examples=examples(20))
@given(st.lists(st.builds(encode_body, st.integers(1, 127), st.binary(max_size=40), request_id=st.just(3)), max_size=5))
def test_byte_by_byte_gives_the_same_frames(sent: list[bytes]) -> None:
    stream = b"".join(sent)

    assert frames_of(opened(), [stream[index : index + 1] for index in range(len(stream))]) == sent


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.integers(24, FRAME_SIZE_BYTES_MAX), st.integers(0, 200 * KIB), st.integers(1, 70 * KIB))
def test_memory_grows_with_what_arrived_not_with_what_was_promised(length: int, arrived: int, piece: int) -> None:
    """Behaviour 49: no allocation beyond the bytes that arrived."""
    buffer = opened()
    stream = length.to_bytes(4, "little") + bytes(min(arrived, length - 5))

    assert frames_of(buffer, [stream[start : start + piece] for start in range(0, len(stream), piece)]) == []

    assert buffer.pending == len(stream)
    assert len(buffer.data) <= max(BUFFER_SIZE_BYTES_INITIAL, 4 * (len(stream) + ROOM_SIZE_BYTES_MIN))


def test_the_largest_frame_fits_and_the_buffer_goes_not_far_beyond() -> None:
    largest = encode_body(m.Data.type, bytes(MIB - 24), request_id=1)
    buffer = opened(frame_size_max=MIB)

    for _ in range(3):
        assert frames_of(buffer, [b"x" * 0, largest[:-1], largest[-1:] + largest[:100], largest[100:]]) == [largest] * 2

    assert len(buffer.data) <= MIB + BUFFER_SIZE_BYTES_IDLE


def test_large_frames_keep_their_buffer_and_the_first_small_one_gives_it_back() -> None:
    large, small = encode_body(m.Data.type, bytes(MIB), request_id=1), encode(m.Ping())
    buffer = opened()

    frames_of(buffer, [large])
    grown, data = len(buffer.data), buffer.data
    frames_of(buffer, [large])
    assert buffer.data is data

    frames_of(buffer, [small])
    assert grown > BUFFER_SIZE_BYTES_IDLE == len(buffer.data)


def test_a_frame_that_was_lent_outlives_the_buffer_it_came_from() -> None:
    large = encode_body(m.Data.type, bytes(range(256)) * 2000, request_id=1)
    buffer = opened()
    frames_of(buffer, [large])
    feed(buffer, encode(m.Ping()))

    (lent,) = whole_frames(buffer)  # the buffer shrinks here

    assert bytes(lent) == encode(m.Ping())


class Shared:
    """An allowance of so many bytes."""

    def __init__(self, size: int) -> None:
        self.left = size

    def take(self, size: int) -> bool:
        assert size > 0
        if size > self.left:
            return False
        self.left -= size
        return True

    def give(self, size: int) -> None:
        assert size >= 0
        self.left += size


def test_a_frame_for_which_there_is_no_room_waits_and_then_comes_whole() -> None:
    """Behaviour 86: a frame is allowed as a whole before it is received, so it never stops half-way."""
    large = encode_body(m.Data.type, bytes(MIB), request_id=1)
    shared = Shared(5 * MIB // 2)
    buffers = [ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX, allowance=shared) for _ in range(2)]
    for buffer in buffers:
        assert frames_of(buffer, [encode(m.Ping()), large[:100]]) == [encode(m.Ping())]
    one, other = buffers

    assert [buffer.is_short for buffer in buffers] == [False, True]
    assert len(one.data) == BUFFER_SIZE_BYTES_INITIAL
    assert frames_of(one, [large[100:]]) == [large]
    assert other.frame_end() == 0
    assert other.is_short
    assert one.give_back()
    assert not one.give_back()
    assert other.frame_end() == 0
    assert not other.is_short
    assert frames_of(other, [large[100:], encode(m.Ping())]) == [large, encode(m.Ping())]
    other.give_back()
    assert shared.left == 5 * MIB // 2


def test_small_frames_need_no_room() -> None:
    """The larger buffer of a peer that sends fast is a luxury."""
    buffer = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX, allowance=Shared(0))
    frames = [encode_body(m.Data.type, bytes(10 * KIB), request_id=number) for number in range(20)]

    assert frames_of(buffer, [encode(m.Ping()), b"".join(frames)])[1:] == frames

    assert len(buffer.data) == BUFFER_SIZE_BYTES_INITIAL
    assert not buffer.is_short


@given(st.integers(0, 3 * MIB), st.lists(st.integers(0, 600 * KIB), max_size=6), st.integers(1, 70 * KIB))
def test_what_was_taken_is_given_back(size: int, lengths: list[int], piece: int) -> None:
    shared = Shared(size)
    buffer = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX, allowance=shared)
    sent = [encode(m.Ping()), *(encode_body(m.Data.type, bytes(length), request_id=1) for length in lengths)]
    stream, found = b"".join(sent), []
    while stream and not buffer.is_short:
        stream = stream[feed(buffer, stream[:piece]) :]
        found += [bytes(frame) for frame in whole_frames(buffer)]
        assert len(buffer.data) <= BUFFER_SIZE_BYTES_INITIAL + size - shared.left

    assert found == sent[: len(found)]
    if not buffer.is_short:
        assert found == sent
        buffer.give_back()
        assert shared.left == size


def test_a_socket_is_never_offered_a_sliver() -> None:
    buffer = opened()
    frame = encode_body(m.Data.type, bytes(3000), request_id=1)
    stream = frame * 50

    while stream:
        assert len(buffer.writable()) >= ROOM_SIZE_BYTES_MIN
        stream = stream[feed(buffer, stream[:2500]) :]
        for _ in whole_frames(buffer):
            pass


@table("length", range(24))
def test_a_length_below_the_header_is_refused(length: int) -> None:
    """Behaviour 49: length 0, and every length below the header."""
    for buffer in (ReceiveBuffer(frame_size_max=KIB), opened()):
        feed(buffer, length.to_bytes(4, "little") + bytes(60))
        with pytest.raises(ProtocolError, match=f"frame length {length} is below"):
            buffer.frame_end()


@table("length", [KIB + 1, 1 << 31, (1 << 32) - 1])
def test_a_length_above_the_limit_is_refused_before_its_bytes_arrive(length: int) -> None:
    """Behaviour 49: above the limit; what is negative as a signed number is far above it."""
    buffer = opened(frame_size_max=KIB)
    feed(buffer, length.to_bytes(4, "little"))

    with pytest.raises(FrameTooLargeError, match=f"frame of {length} bytes is above the limit of {KIB} bytes"):
        buffer.frame_end()


def test_a_stranger_may_send_only_a_small_first_frame() -> None:
    """Behaviour 50: memory lent before the handshake is bounded."""
    buffer = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX)
    feed(buffer, (HELLO_FRAME_SIZE_BYTES_MAX + 1).to_bytes(4, "little"))
    with pytest.raises(FrameTooLargeError, match=f"limit of {HELLO_FRAME_SIZE_BYTES_MAX} bytes"):
        buffer.frame_end()

    first = encode_body(m.Hello.type, bytes(HELLO_FRAME_SIZE_BYTES_MAX - 24), request_id=1)
    second = encode_body(m.Read.type, bytes(HELLO_FRAME_SIZE_BYTES_MAX), request_id=2)
    assert frames_of(ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX), [first + second]) == [first, second]


@table(
    ("head", "protocol"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /x HTTP/1.1\r\n", "HTTP"),
        (b"PUT / HTTP/1.1\r\n", "HTTP"),
        (b"OPTIONS * HTTP/1.1\r\n", "HTTP"),
        (b"CONNECT h:1 HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP"),
        (b"\x16\x03\x01\x00\xa5\x01", "TLS"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"\x16\x03\x03\x00\x31\x01", "TLS"),
    ],
)
def test_foreign_protocols_are_recognised_however_they_arrive(head: bytes, protocol: str) -> None:
    """Behaviour 49 and design 3: HTTP or TLS bytes on the data port are named."""
    with pytest.raises(ForeignProtocolError, match=f"the peer speaks {protocol}"):
        frames_of(ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX), [head])
    with pytest.raises(ForeignProtocolError):
        frames_of(ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX), [bytes([byte]) for byte in head])


def test_a_first_frame_of_790_bytes_is_not_taken_for_tls() -> None:
    """Its length begins with the bytes 16 03, as a TLS handshake does."""
    hello = encode_body(m.Hello.type, bytes(0x0316 - 24), request_id=1)

    assert hello.startswith(b"\x16\x03")
    assert frames_of(ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX), [hello]) == [hello]


def test_later_frames_are_not_searched_for_foreign_protocols() -> None:
    buffer = opened()
    feed(buffer, b"GET ")

    with pytest.raises(FrameTooLargeError):
        buffer.frame_end()


def test_the_parts_of_the_buffer_are_reachable() -> None:
    buffer = opened()
    feed(buffer, encode(m.Ping()) + b"abc")
    end = buffer.frame_end()

    assert bytes(buffer.view(buffer.start, end)) == encode(m.Ping())
    buffer.consume(end)
    assert bytes(buffer.view(buffer.start, buffer.end)) == b"abc" == bytes(buffer.data[buffer.start : buffer.end])
    assert buffer.frame_end() == 0


def test_a_buffer_that_drops_what_is_pending_is_small() -> None:
    """Behaviour 86: a connection that has ended holds no frame that will never be whole."""
    shared = Shared(4 * MIB)
    buffer = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX, allowance=shared)
    large = encode_body(m.Data.type, bytes(MIB), request_id=1)
    assert frames_of(buffer, [encode(m.Ping()), large[: 900 * KIB]]) == [encode(m.Ping())]
    assert len(buffer.data) > 900 * KIB

    buffer.drop()

    assert (len(buffer.data), buffer.pending, shared.left) == (BUFFER_SIZE_BYTES_INITIAL, 0, 4 * MIB)
