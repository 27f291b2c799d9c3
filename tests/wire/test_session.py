"""Every state of a connection with every event, for both roles; silence, and frames that never end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from millrace.wire.framing import encode
from millrace.wire.limits import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, UNREAD_PING_S
from millrace.wire.session import (
    BOTH_WAYS,
    HANDSHAKE,
    REPLIES,
    REQUESTS,
    TRANSITIONS,
    Role,
    Session,
    SessionEvent,
    SessionState,
    negotiate_version,
)
from tests.support.tables import table

CONNECTED, ACTIVE, DRAINING, CLOSED = SessionState
FIRST = {Role.SERVER: m.Hello.type, Role.CLIENT: m.HelloReply.type}
WIRE_TYPES = {number for number in m.MESSAGES if number < 128}
PING = encode(m.Ping())


def session(
    role: Role, state: SessionState = CONNECTED, *, keepalive_s: float = 30.0, frame_timeout_s: float = math.inf
) -> Session:
    """A session at 100 s, put into `state` by legal events; handshake 5 s."""
    made = Session(role, now_s=100.0, handshake_timeout_s=5.0, keepalive_s=keepalive_s, frame_timeout_s=frame_timeout_s)
    if state in {ACTIVE, DRAINING}:
        made.admit(FIRST[role])
    if state is DRAINING:
        made.drain()
    if state is CLOSED:
        made.close()
    assert made.state is state
    return made


def feed(it: Session, data: bytes, now_s: float) -> None:
    """Let bytes arrive."""
    it.writable()[: len(data)] = data
    it.received(len(data), now_s)


def following(role: Role, state: SessionState, frame_type: int) -> SessionState | None:
    """The specification, spelled differently from the tables: what follows, or None if the frame is illegal."""
    if state is CONNECTED and frame_type == FIRST[role]:
        return ACTIVE
    if state is CONNECTED and role is Role.CLIENT and frame_type == m.ErrorReply.type:
        return CLOSED
    if state in {ACTIVE, DRAINING}:
        sent_by_peer = REQUESTS if role is Role.SERVER else REPLIES
        return state if frame_type in sent_by_peer or frame_type in BOTH_WAYS else None
    return None


@table("frame_type", m.MESSAGES, ids=lambda number: m.MESSAGES[number].__name__)
@table("state", SessionState, ids=lambda state: state.name)
@table("role", Role, ids=lambda role: role.name)
def test_every_frame_in_every_state(role: Role, state: SessionState, frame_type: int) -> None:
    it = session(role, state)
    expected = following(role, state, frame_type)

    if expected is None:
        with pytest.raises(ProtocolError, match=m.MESSAGES[frame_type].type.name):
            it.admit(frame_type)
    else:
        it.admit(int(frame_type))  # as it is in a header

    assert it.state is (state if expected is None else expected)


@table("state", SessionState, ids=lambda state: state.name)
@table("role", Role, ids=lambda role: role.name)
def test_every_decision_in_every_state(role: Role, state: SessionState) -> None:
    draining, closing = session(role, state), session(role, state)

    draining.drain()
    closing.close()

    assert draining.state is (DRAINING if state in {ACTIVE, DRAINING} else CLOSED)
    assert closing.is_closed


def test_the_table_names_every_state_and_leads_out_of_none_that_is_closed() -> None:
    assert set(TRANSITIONS) == set(SessionState)
    assert {event for events in TRANSITIONS.values() for event in events} == set(SessionEvent)
    assert set(TRANSITIONS[CLOSED].values()) == {CLOSED}


def test_every_type_of_frame_has_one_direction() -> None:
    groups = [BOTH_WAYS, REPLIES, REQUESTS, HANDSHAKE]

    assert frozenset().union(*groups) == WIRE_TYPES
    assert sum(map(len, groups)) == len(WIRE_TYPES)


@table("number", [0, 8, 15, 127, 240, 255])
@table("role", Role)
def test_an_unknown_type_is_refused_and_named(role: Role, number: int) -> None:
    """Behaviour 49: an unknown type is a protocol error."""
    with pytest.raises(ProtocolError, match=f"{number} is not a known type"):
        session(role, ACTIVE).admit(number)


def test_a_record_of_the_log_is_refused_from_the_network() -> None:
    with pytest.raises(ProtocolError, match="SEGMENT_CREATED is a record of the log"):
        session(Role.SERVER, ACTIVE).admit(m.SegmentCreated.type)


def test_an_append_before_the_handshake_is_refused() -> None:
    """Behaviour 53: no request before authentication."""
    with pytest.raises(ProtocolError, match="APPEND before the handshake"):
        session(Role.SERVER).admit(m.Append.type)


@pytest.mark.parametrize("role", Role)
def test_trickling_bytes_do_not_extend_the_handshake(role: Role) -> None:
    """Behaviour 50: a slow handshake meets its deadline."""
    it = session(role)

    feed(it, PING[:1], 104.9)

    assert it.next_deadline_s() == 105.0
    it.on_deadline(104.9)
    assert it.state is CONNECTED
    it.on_deadline(105.0)
    assert it.is_closed


@pytest.mark.parametrize("state", [ACTIVE, DRAINING])
def test_a_quiet_peer_is_asked_and_then_dropped(state: SessionState) -> None:
    """Behaviour 50: half-open peers are found."""
    it = session(Role.SERVER, state)

    it.on_deadline(129.9)
    assert it.take_outbox(129.9) == []
    it.on_deadline(130.0)
    assert it.take_outbox(130.0) == [PING]
    it.on_deadline(159.9)
    assert it.state is state
    it.on_deadline(160.0)
    assert it.is_closed
    assert it.next_deadline_s() == math.inf
    it.on_deadline(1e9)
    assert it.take_outbox(1e9) == []


def test_any_byte_after_a_ping_proves_life() -> None:
    it = session(Role.SERVER, ACTIVE)
    it.on_deadline(130.0)

    feed(it, PING[:1], 159.0)

    assert it.next_deadline_s() == 160.0, "this side has sent nothing since the PING"
    it.on_deadline(160.0)
    assert not it.is_closed


def test_sending_proves_nothing_about_the_peer() -> None:
    it = session(Role.SERVER, ACTIVE)
    it.on_deadline(130.0)
    it.take_outbox(150.0)

    it.on_deadline(160.0)

    assert it.is_closed


def test_a_side_that_only_receives_lets_the_peer_hear_from_it() -> None:
    it = session(Role.SERVER, ACTIVE)
    feed(it, PING[:1], 129.0)

    it.on_deadline(130.0)

    assert it.take_outbox(130.0) == [PING]


def test_silence_may_be_allowed() -> None:
    it = session(Role.CLIENT, ACTIVE, keepalive_s=math.inf)

    it.on_deadline(1e9)

    assert it.next_deadline_s() == math.inf
    assert it.take_outbox(1e9) == []


@given(st.lists(st.tuples(st.sampled_from(["receive", "send", "look"]), st.floats(0, 100)), max_size=30))
def test_a_peer_is_dropped_only_when_it_left_a_ping_unanswered(steps: list[tuple[str, float]]) -> None:
    it = session(Role.SERVER, ACTIVE)
    now_s, heard_s = 100.0, 100.0
    for step, pause_s in steps:
        now_s += pause_s
        if step == "receive":
            feed(it, PING[:1], now_s)
            heard_s = now_s
        elif step == "send":
            it.take_outbox(now_s)
        else:
            it.on_deadline(now_s)
            if it.is_closed:
                assert now_s - heard_s >= 30.0
                return
            assert it.next_deadline_s() > now_s


def test_what_is_sent_leaves_once_and_in_order() -> None:
    it = session(Role.CLIENT, ACTIVE)
    it.put(b"a", b"bc")
    it.put(b"d")

    assert it.outbox_bytes == 4
    assert it.take_outbox(101.0) == [b"a", b"bc", b"d"]
    assert it.outbox_bytes == 0
    assert it.take_outbox(101.0) == []


def test_a_frame_has_its_time_from_its_first_byte_on() -> None:
    """Behaviour 50: slowloris in a body, however busily its bytes arrive."""
    it = session(Role.SERVER, ACTIVE, frame_timeout_s=10.0)
    feed(it, PING[:5], 101.0)
    feed(it, PING[5:9], 110.0)

    it.on_deadline(110.9)
    assert it.state is ACTIVE
    it.on_deadline(111.0)
    assert it.is_closed


def test_silence_while_this_end_does_not_read_is_not_the_peers() -> None:
    """Behaviour 45: while the server does not listen, clients live, and so do their frames that have begun."""
    it = session(Role.SERVER, ACTIVE, frame_timeout_s=10.0)
    feed(it, PING[:5], 101.0)
    it.pause()

    it.on_deadline(125.0)
    assert it.state is ACTIVE
    it.resume(125.0)
    it.on_deadline(134.9)
    assert it.state is ACTIVE
    it.on_deadline(135.0)
    assert it.is_closed, "from where it reads again, the frame has its time"


@table("keepalive_s", [UNREAD_PING_S, 10.0, 60.0])
def test_an_end_that_does_not_read_is_not_taken_for_dead(keepalive_s: float) -> None:
    """Behaviour 45: however attentive its peer is; and it is again as soon as it reads."""
    server, client = session(Role.SERVER, ACTIVE), session(Role.CLIENT, ACTIVE, keepalive_s=keepalive_s)
    server.pause()

    for now_s in range(101, 400):
        server.excuse(now_s)
        server.on_deadline(now_s)
        if server.outbox_bytes:
            assert server.take_outbox(now_s) == [PING]
            feed(client, PING, now_s)
            client._consume(client._frames.end)
        client.on_deadline(now_s)
        if client.outbox_bytes:
            client.take_outbox(now_s)  # is not read

    assert not client.is_closed
    assert not server.is_closed
    server.resume(400.0)
    server.on_deadline(405.0)
    assert not server.outbox_bytes


def test_a_frame_has_no_more_time_while_its_peer_takes_nothing() -> None:
    """Behaviour 86: who takes replies now and then does not keep the memory of a frame that never ends."""
    it = session(Role.SERVER, ACTIVE, frame_timeout_s=10.0)
    feed(it, PING[:5], 101.0)

    for now_s in range(102, 111):
        it.pause(for_peer=True)
        it.on_deadline(now_s)
        it.resume(now_s)
        assert not it.is_closed
    it.on_deadline(111.0)

    assert it.is_closed


def test_a_peer_that_takes_nothing_is_dropped_also_while_it_is_not_read() -> None:
    it = session(Role.SERVER, ACTIVE)
    it.pause()

    for now_s in range(101, 160):
        it.on_deadline(now_s)
        it.take_outbox(now_s)
        assert not it.is_closed
    it.on_deadline(160.0)

    assert it.is_closed


@table(
    ("handshake_timeout_s", "keepalive_s", "frame_timeout_s"),
    [(0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (-1.0, 1.0, 1.0), (math.nan, 1.0, 1.0)],
)
def test_times_must_be_positive(handshake_timeout_s: float, keepalive_s: float, frame_timeout_s: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Session(
            Role.SERVER,
            now_s=0.0,
            handshake_timeout_s=handshake_timeout_s,
            keepalive_s=keepalive_s,
            frame_timeout_s=frame_timeout_s,
        )


SMALL = st.integers(0, 3)


@given(SMALL, SMALL)
def test_the_version_is_the_highest_that_both_speak(version_min: int, version_max: int) -> None:
    common = set(range(version_min, version_max + 1)) & set(range(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX + 1))

    if not common:
        with pytest.raises(UnsupportedVersionError, match=f"versions {version_min} to {version_max}") as caught:
            negotiate_version(version_min=version_min, version_max=version_max)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    else:
        assert negotiate_version(version_min=version_min, version_max=version_max) == max(common)
