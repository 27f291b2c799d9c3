"""The client's end: each answer comes back with the subject of what it answers, and what makes no sense is refused."""

import pytest

from millrace.wire import messages as m
from millrace.wire.client_session import AppendAcks, ClientEvent, ClientSession, PieceFrame, ServerFrame
from millrace.wire.errors import ChecksumError, CodecError, ProtocolError, UnsupportedVersionError
from millrace.wire.framing import encode, encode_data

from .loopback import RefusedError, client_session, hello_reply, refusal


def arrive(it: ClientSession, data: bytes) -> list[ClientEvent]:
    """Let bytes arrive; return the events."""
    events = []
    while data:
        room = it.writable()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        it.received(count, 1.0)
        data = data[count:]
        while (event := it.next_event()) is not None:
            events.append(event)
    return events


def greeted() -> ClientSession:
    """A session after the handshake, whose HELLO has the id 1."""
    it = client_session()
    it.greet(session_id=bytes(16), client="test", token="", subject="hello")
    arrive(it, encode(hello_reply(), request_id=1))
    it.take_outbox(1.0)
    return it


def data(request_id: int, payload: bytes = b"abc") -> bytes:
    """A DATA frame from offset 7 on."""
    return b"".join(encode_data(request_id=request_id, segment_id=1, offset=7, length=99, flags=1, pieces=[payload]))


def test_the_handshake_ends_with_the_limits_of_the_server() -> None:
    it = client_session()
    it.greet(session_id=bytes(16), client="test", token="", subject="hello")
    assert it.server is None

    (event,) = arrive(it, encode(hello_reply(appends_in_flight_max=7), request_id=1))

    assert isinstance(event, ServerFrame)
    assert event.subject == "hello"
    assert it.server == event.message
    assert it.appends.count_max == 7


def test_a_server_that_refuses_the_handshake_says_why_and_ends_the_session() -> None:
    it = client_session()
    it.greet(session_id=bytes(16), client="test", token="", subject="hello")

    (event,) = arrive(it, encode(refusal(RefusedError()), request_id=1))

    assert isinstance(event, ServerFrame)
    assert event.subject == "hello"
    assert it.is_closed


def test_a_version_that_was_not_offered_is_refused() -> None:
    it = client_session()
    it.greet(session_id=bytes(16), client="test", token="", subject="hello")
    reply = encode(hello_reply(version=9), request_id=1)

    with pytest.raises(UnsupportedVersionError):
        arrive(it, reply)
    assert it.abandon() == ["hello"], "who waits for the handshake can be told"


def test_each_answer_comes_with_its_subject() -> None:
    it = greeted()
    asked = it.request(m.GetSegment(1, ""), "asked")
    read = it.request(m.Read(segment_id=1, offset=7, size_max=9, wait_ms=0), "read")
    followed = it.request(m.Subscribe(segment_id=1, offset=7, credit_bytes=9), "followed")
    appended = it.append(b"x", "appended", segment_id=1)
    refused = it.append(b"y", "refused", segment_id=1)

    events = arrive(
        it,
        data(followed)
        + data(read)
        + data(followed)
        + encode(m.AppendAck([m.AppendAckEntry(appended, 5, 1, 0)]), request_id=appended)
        + encode(refusal(RefusedError()), request_id=refused)
        + encode(refusal(RefusedError()), request_id=followed)
        + encode(m.Done(1), request_id=asked),
    )

    assert [event.subject for event in events if not isinstance(event, AppendAcks)] == [
        "followed", "read", "followed", "refused", "followed", "asked",
    ]  # fmt: skip
    assert [event.appends for event in events if isinstance(event, AppendAcks)] == [[("appended", 5)]]
    assert it.abandon() == []
    assert it.appends.size_bytes == 0


def test_a_request_without_a_reply_waits_for_none() -> None:
    it = greeted()
    begin = m.BeginTransaction(number=7, name="", lease_ms=30_000, streams=[])
    it.send_unanswered(begin)
    asked = it.request(m.GetSegment(1, ""), "asked")

    assert it.take_outbox(1.0) == [
        encode(begin, request_id=asked - 1, flags=m.RequestFlag.UNANSWERED),
        encode(m.GetSegment(1, ""), request_id=asked),
    ]
    assert it.requests.count == 1
    with pytest.raises(ProtocolError, match="answers no request"):
        arrive(it, encode(m.Done(1), request_id=asked - 1))


def test_a_forgotten_request_has_no_subject() -> None:
    it = greeted()
    followed = it.request(m.Subscribe(segment_id=1, offset=7, credit_bytes=9), "followed")
    it.grant(followed, 5)
    it.unsubscribe(followed)
    it.unsubscribe(followed)
    it.grant(followed, 5)
    frames = it.take_outbox(1.0)

    pushed, refused = arrive(it, data(followed) + encode(refusal(RefusedError()), request_id=followed))

    assert len(frames) == 3, "SUBSCRIBE, CREDIT, UNSUBSCRIBE; what has ended is granted nothing"
    assert isinstance(pushed, PieceFrame)
    assert isinstance(refused, ServerFrame)
    assert (pushed.subject, refused.subject) == (None, None)


def test_only_data_answers_a_subscription() -> None:
    it = greeted()
    followed = it.request(m.Subscribe(segment_id=1, offset=7, credit_bytes=9), "followed")

    with pytest.raises(ProtocolError, match="Done answers no request"):
        arrive(it, encode(m.Done(1), request_id=followed))
    assert it.abandon() == ["followed"], "it can be told"


def test_notices_need_no_request() -> None:
    it = greeted()

    throttled, ping, pong = arrive(
        it, encode(m.Throttle(5, "full")) + encode(m.Ping(), request_id=8) + encode(m.Pong())
    )

    assert [event.subject for event in (throttled, ping, pong) if isinstance(event, ServerFrame)] == [None] * 3
    assert it.take_outbox(1.0) == [encode(m.Pong(), request_id=8)]


def test_an_answer_to_nothing_breaks_the_protocol() -> None:
    """Behaviour 49: it would leave the client and the server with different ideas of what was asked."""
    for message in (m.Done(1), m.Pong()):
        with pytest.raises(ProtocolError, match="answers no request: id 77"):
            arrive(greeted(), encode(message, request_id=77))


def test_damaged_data_is_refused_in_the_buffer_and_in_its_own_array() -> None:
    for size in (10, 200_000):
        frame = bytearray(data(2, bytes(size)))
        frame[-1] ^= 1
        it = greeted()
        it.request(m.Read(segment_id=1, offset=7, size_max=9, wait_ms=0), "read")
        with pytest.raises(ChecksumError):
            arrive(it, bytes(frame))


def test_a_data_frame_without_its_head_is_refused() -> None:
    frame = encode(m.Ping())
    short = frame[:8] + bytes([m.Data.type]) + frame[9:]
    with pytest.raises((ProtocolError, ChecksumError)):
        arrive(greeted(), short)


def test_a_value_that_does_not_fit_sends_nothing() -> None:
    it = greeted()
    with pytest.raises(CodecError):
        it.request(m.GetSegment(-1, ""), "asked")
    with pytest.raises(CodecError):
        it.append(b"x", "appended", segment_id=-1)

    assert it.take_outbox(1.0) == []
    assert it.abandon() == []


def test_a_lost_connection_gives_back_every_subject_once() -> None:
    it = greeted()
    it.append(b"x", "appended", segment_id=1)
    it.request(m.Subscribe(segment_id=1, offset=7, credit_bytes=9), "followed")
    it.request(m.GetSegment(1, ""), "asked")

    assert sorted(it.abandon()) == ["appended", "asked", "followed"]
    assert it.abandon() == []
    assert it.is_closed
