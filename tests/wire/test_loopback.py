"""Both ends of a connection, joined without sockets: however bytes are cut, they agree on what happened."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from millrace.wire import messages as m
from millrace.wire.append_pipeline import TakenAppends
from millrace.wire.append_run import AppendRun
from millrace.wire.client_session import AppendAcks, PieceFrame, ServerFrame
from millrace.wire.framing import encode, encode_data
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES
from millrace.wire.server_session import ClientFrame

from .loopback import Loopback, RefusedError, taken


@dataclass
class Store:
    """A server that stores what it takes, or refuses it, and tells when it is asked to."""

    loopback: Loopback
    stored: bytearray = field(default_factory=bytearray)
    waiting: list[TakenAppends] = field(default_factory=list)
    # By request id, what became of each append that arrived.
    offsets: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    def take(self, size: int, *, refuses: bool) -> None:
        for event in self.loopback.serve(size):
            if isinstance(event, AppendRun):
                self._append(event, refuses=refuses)

    def _append(self, run: AppendRun, *, refuses: bool) -> None:
        pipeline = self.loopback.server.appends
        appends = TakenAppends(run)
        if refuses or pipeline.is_broken(run.segment_id, run.writer_number):
            appends.error, appends.settled = RefusedError(), True
            self.refused |= set(range(run.request_id, run.request_id + run.frame_count))
        else:
            appends.offset = len(self.stored)
            start = 0
            for request_id in range(run.request_id, run.request_id + run.frame_count):
                end = start + int.from_bytes(run.frames[start : start + 4], "little")
                self.offsets[request_id] = len(self.stored)
                self.stored += run.frames[start + APPEND_HEADER_SIZE_BYTES : end]
                start = end
            self.waiting.append(appends)
        pipeline.add([appends])

    def settle(self, count: int) -> None:
        for appends in self.waiting[:count]:
            appends.settled = True
        del self.waiting[:count]
        self.loopback.server.put_outcomes()


@dataclass
class Sender:
    """A client that remembers what it was told of each append."""

    loopback: Loopback
    sent: dict[int, bytes] = field(default_factory=dict)
    offsets: dict[int, int | None] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    def append(self, payload: bytes) -> None:
        client = self.loopback.client
        if client.appends.has_room(len(payload)):
            request_id = client.append(payload, subject=len(self.sent), segment_id=1)
            self.sent[request_id] = payload

    def listen(self, size: int) -> None:
        ids = list(self.sent)
        for event in self.loopback.listen(size):
            if isinstance(event, AppendAcks):
                for subject, offset in event.appends:
                    assert ids[subject] not in self.offsets
                    self.offsets[ids[subject]] = offset
            elif isinstance(event, ServerFrame) and isinstance(event.message, m.ErrorReply):
                assert event.request_id == ids[event.subject]
                self.refused.add(event.request_id)


SIZES = st.one_of(st.integers(1, 200), st.just(1 << 20))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(min_size=1, max_size=40)),
        st.tuples(st.just("take"), SIZES),
        st.tuples(st.just("refuse"), SIZES),
        st.tuples(st.just("settle"), st.integers(0, 5)),
        st.tuples(st.just("listen"), SIZES),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
def test_both_ends_agree_on_what_was_acked(steps: list[tuple[str, int | bytes]], is_cut: bool) -> None:
    """Behaviours 5 and 6: acks are cumulative, errors in their order, and a cut leaves unknown what was not told."""
    loopback = Loopback(appends_in_flight_max=8)
    store, sender = Store(loopback), Sender(loopback)
    for step, value in steps:
        match step, value:
            case "append", bytes(payload):
                sender.append(payload)
            case (("take" | "refuse"), int(size)):
                store.take(size, refuses=step == "refuse")
            case "settle", int(count):
                store.settle(count)
            case "listen", int(size):
                sender.listen(size)
    while not is_cut and loopback.client.appends:
        store.take(1 << 20, refuses=False)
        store.settle(len(store.waiting))
        sender.listen(1 << 20)

    unknown = loopback.client.abandon()
    # What the client was told is so, and a prefix of what the server did, in order.
    assert sender.offsets.items() <= store.offsets.items()
    assert sender.refused <= store.refused
    for request_id, offset in sender.offsets.items():
        assert offset is not None
        payload = sender.sent[request_id]
        assert store.stored[offset : offset + len(payload)] == payload
    told = sorted(sender.offsets.keys() | sender.refused)
    assert told == list(sender.sent)[: len(told)]
    # The rest is unknown, once each.
    assert len(unknown) == len(sender.sent) - len(told)
    assert loopback.client.appends.size_bytes == 0


@given(st.binary(max_size=100_000), st.integers(1, 70_000))
def test_data_arrives_whole_however_it_is_cut(payload: bytes, size: int) -> None:
    """A small DATA frame comes through the buffer, a large one into its own array: nobody can tell."""
    loopback = Loopback()
    request_id = loopback.client.request(
        m.Read(segment_id=1, offset=7, size_max=1 << 20, wait_ms=0), subject="the read"
    )
    loopback.server.put(
        *encode_data(request_id=request_id, segment_id=1, offset=7, length=1000, flags=1, pieces=[payload]),
        encode(m.Throttle(5, "for the test")),
    )
    events = []
    while part := loopback.listen(size):
        events += part
    while loopback.to_client.pending:
        events += loopback.listen(size)

    pushed, throttled = events
    assert isinstance(pushed, PieceFrame)
    assert (pushed.request_id, pushed.subject) == (request_id, "the read")
    assert tuple(pushed.piece) == (7, payload, 1000, 1)
    assert throttled.message == m.Throttle(5, "for the test")  # type: ignore[union-attr]  # a ServerFrame


def test_a_ping_is_answered_in_its_place_among_what_is_sent() -> None:
    """Behaviour 6: from that place the server learns what was sent before the client knew of an error."""
    loopback = Loopback()
    client, server = loopback.client, loopback.server
    client.append(b"first", segment_id=1)
    (first,) = loopback.serve()
    assert isinstance(first, AppendRun)
    server.appends.add([taken(first.request_id, refused=True)])
    server.put_outcomes()
    client.append(b"sent before it knew", segment_id=1)

    loopback.listen()
    client.append(b"sent after it knew", segment_id=1)

    loopback.to_server.take(client)
    assert loopback.to_server.deliver(1 << 20)
    seen = []
    while (event := server.next_event()) is not None:
        seen.append("PONG" if event.__class__ is ClientFrame else server.appends.is_broken(1, 0))
    assert seen == [True, "PONG", False]
