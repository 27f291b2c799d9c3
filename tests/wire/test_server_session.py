"""The server's end: what a client asks for comes out frame by frame, appends as runs, and violations are refused."""

import tracemalloc

import pytest

from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.errors import FrameTooLargeError, ProtocolError, UnsupportedVersionError
from millrace.wire.framing import decode, encode, encode_append_header
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX
from millrace.wire.server_session import (
    OBJECTS_PER_BYTE,
    REQUEST_SIZE_BYTES,
    UNNUMBERED,
    ClientFrame,
    ServerSession,
)
from tests.support.tables import table

from .loopback import server_session


def hello(*, version: int = 1) -> bytes:
    return encode(
        m.Hello(
            version_min=version,
            version_max=version,
            features=0,
            frame_size_max=FRAME_SIZE_BYTES_MAX,
            session_id=bytes(16),
            client="test",
            token="",
        )
    )


def append(request_id: int, payload: bytes, *, segment_id: int = 1) -> bytes:
    return encode_append_header(request_id=request_id, segment_id=segment_id, payload=payload) + payload


def arrive(it: ServerSession, data: bytes) -> list[AppendRun | ClientFrame]:
    """Let bytes arrive, as many at once as there is room for; return the events."""
    events = []
    while data and not it.is_short:
        room = it.writable()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        it.received(count, 1.0)
        data = data[count:]
        while (event := it.next_event()) is not None:
            events.append(event)
    return events


def greeted(*, run_size_bytes_max: int = 1 << 16) -> ServerSession:
    it = server_session(run_size_bytes_max=run_size_bytes_max)
    (event,) = arrive(it, hello())
    assert isinstance(event, ClientFrame)
    assert isinstance(event.message, m.Hello)
    return it


def test_a_version_that_is_not_spoken_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="9 to 9"):
        arrive(server_session(), hello(version=9))


def test_requests_come_one_by_one_and_appends_as_runs() -> None:
    it = greeted()

    first, asked, second, third = arrive(
        it,
        append(1, b"a")
        + append(2, b"b")
        + encode(m.GetSegment(1, ""), request_id=3)
        + append(4, b"c")
        + append(5, b"d", segment_id=2),
    )

    assert [run.frame_count for run in (first, second, third) if isinstance(run, AppendRun)] == [2, 1, 1]
    assert isinstance(asked, ClientFrame)
    assert (asked.request_id, asked.message) == (3, m.GetSegment(1, ""))


def test_a_run_has_no_more_than_the_log_takes_and_one_append_may() -> None:
    """Behaviour 8: a single append above the limit is refused by the container, which can say so."""
    size = len(append(1, bytes(100)))
    it = greeted(run_size_bytes_max=2 * size)

    runs = arrive(it, b"".join(append(1 + number, bytes(100)) for number in range(5)) + append(6, bytes(1000)))

    assert [run.frame_count for run in runs if isinstance(run, AppendRun)] == [2, 2, 1, 1]


def test_request_ids_begin_above_zero() -> None:
    with pytest.raises(ProtocolError, match="request id 0 is not above"):
        arrive(greeted(), encode(m.GetSegment(1, ""), request_id=0))


@pytest.mark.parametrize("used", [append(6, b"c"), encode(m.GetSegment(1, ""), request_id=5)])
def test_request_ids_rise_over_appends_and_requests_alike(used: bytes) -> None:
    it = greeted()
    arrive(it, append(5, b"a") + append(6, b"b"))

    with pytest.raises(ProtocolError, match="not above the previous one, 6"):
        arrive(it, used)


@table("exempt", [m.Ping(), m.Pong(), m.Credit(1), m.Unsubscribe()])
def test_frames_that_name_what_exists_are_exempt(exempt: m.Message) -> None:
    it = greeted()
    arrive(it, append(9, b"a") + encode(exempt, request_id=4))

    with pytest.raises(ProtocolError, match="not above the previous one, 9"):
        arrive(it, append(9, b"b"))


def test_the_exempt_frames_are_these() -> None:
    assert {m.MESSAGES[number] for number in UNNUMBERED} == {m.Hello, m.Ping, m.Pong, m.Credit, m.Unsubscribe}


def test_a_ping_is_answered_and_a_pong_mends() -> None:
    it = greeted()

    (ping, pong) = arrive(it, encode(m.Ping(), request_id=9) + encode(m.Pong(), request_id=1))

    assert [ping, pong] == [ClientFrame(9, m.Ping()), ClientFrame(1, m.Pong())]
    assert it.take_outbox(1.0) == [encode(m.Pong(), request_id=9)]


@pytest.mark.parametrize("cls", [m.BeginTransaction, m.AddParts])
def test_a_client_says_which_requests_it_wants_no_reply_to(cls: type[m.Message]) -> None:
    request: m.Message = (
        m.BeginTransaction(number=7, name="", lease_ms=30_000, streams=[])
        if cls is m.BeginTransaction
        else m.AddParts(number=7, branch=0, parts=[])
    )
    it = greeted()

    events = arrive(it, encode(request, request_id=1) + encode(request, request_id=2, flags=m.RequestFlag.UNANSWERED))

    assert [(each.message, each.is_answered) for each in events if isinstance(each, ClientFrame)] == [
        (request, True),
        (request, False),
    ]


def test_a_large_frame_that_is_no_append_is_refused() -> None:
    frame = encode(m.GetSegment(1, ""), request_id=1)
    large = (2 << 20).to_bytes(4, "little") + frame[4:]

    with pytest.raises(FrameTooLargeError):
        arrive(greeted(), large + bytes((2 << 20) - len(frame)))


class Counted:
    """An allowance that says how much is held, and may be full."""

    def __init__(self) -> None:
        self.held = 0
        self.is_full = False

    def take(self, size: int) -> bool:
        if not self.is_full:
            self.held += size
        return not self.is_full

    def give(self, size: int) -> None:
        self.held -= size


READ = m.Read(segment_id=1, offset=0, size_max=1, wait_ms=0)


def test_a_request_is_decoded_when_there_is_room_for_its_objects() -> None:
    """Behaviour 86: a list of small things takes many times the bytes of its frame."""
    allowance = Counted()
    it = server_session(allowance=allowance)
    arrive(it, hello())
    request = m.GetTails([m.NamedStream("")] * 1000)
    frame = encode(request, request_id=1)
    allowance.is_full = True

    assert arrive(it, encode(READ, request_id=1) + encode(request, request_id=2) + append(3, b"a")) == [
        ClientFrame(1, READ)
    ]
    assert it.is_short
    allowance.is_full = False
    it.is_short = False
    held = REQUEST_SIZE_BYTES + OBJECTS_PER_BYTE * len(frame)
    assert it.next_event() == ClientFrame(2, request, held)
    assert allowance.held == held
    assert isinstance(it.next_event(), AppendRun)
    assert it.next_event() is None
    assert not it.is_short


@table(
    "request_",
    [
        m.GetTails([m.NamedStream("")] * 65_535),
        m.GetTails([m.NamedStream("\u20ac")] * 65_535),
        m.SaveCuts("s", [m.NamedCut(0, "", [])] * 65_535),
        m.OpenWriter("w", list(range(1 << 40, (1 << 40) + 65_535)), 0),
    ],
    ids=["empty texts", "texts", "lists", "numbers"],
)
def test_the_objects_of_a_request_take_no_more_than_they_count(request_: m.Message) -> None:
    frame = encode(request_, request_id=1)
    tracemalloc.start()
    try:
        decoded = decode(frame)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert decoded[1] == request_
    assert size <= OBJECTS_PER_BYTE * len(frame)


def test_nothing_comes_out_of_a_closed_session() -> None:
    it = greeted()
    it.close()

    assert arrive(it, append(1, b"a")) == []
