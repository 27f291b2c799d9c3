import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from millrace.wire.session import (
    BOTH_WAYS,
    HANDSHAKE,
    REPLIES,
    REQUESTS,
    UNNUMBERED,
    LocalEvent,
    Role,
    Session,
    SessionAction,
    SessionState,
    negotiate_version,
)

CONNECTED, ACTIVE, DRAINING, CLOSED = SessionState
FIRST = {Role.SERVER: m.Hello.type, Role.CLIENT: m.HelloReply.type}
TYPES = [cls.type for cls in m.MESSAGES.values()]
WIRE_TYPES = {frame_type for frame_type in TYPES if frame_type < 128}


def session(role: Role, state: SessionState = CONNECTED) -> Session:
    """A session at 100 s, brought to `state` by legal events; handshake 5 s, keepalive 30 s."""
    made = Session(role, now_s=100.0, handshake_timeout_s=5.0, keepalive_s=30.0)
    if state in {ACTIVE, DRAINING}:
        made.on_frame(FIRST[role])
    if state is DRAINING:
        made.drain()
    if state is CLOSED:
        made.close()
    assert made.state is state
    return made


def following(role: Role, state: SessionState, event: m.FrameType | LocalEvent) -> SessionState | None:
    """The specification, spelled differently from the table: what follows, or None if the event is illegal."""
    if event is LocalEvent.CLOSE:
        return CLOSED
    if event is LocalEvent.DRAIN:
        return DRAINING if state in {ACTIVE, DRAINING} else CLOSED
    if state is CONNECTED and event is FIRST[role]:
        return ACTIVE
    if state is CONNECTED and role is Role.CLIENT and event is m.ErrorReply.type:
        return CLOSED
    if state in {ACTIVE, DRAINING}:
        sent_by_peer = REQUESTS if role is Role.SERVER else REPLIES
        return state if event in sent_by_peer or event in BOTH_WAYS else None
    return None


@pytest.mark.parametrize("event", [*TYPES, *LocalEvent], ids=lambda event: event.name)
@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.name)
@pytest.mark.parametrize("role", Role, ids=lambda role: role.name)
def test_every_event_in_every_state(role: Role, state: SessionState, event: m.FrameType | LocalEvent) -> None:
    it = session(role, state)
    expected = following(role, state, event)

    if isinstance(event, LocalEvent):
        (it.drain if event is LocalEvent.DRAIN else it.close)()
    elif expected is None:
        with pytest.raises(ProtocolError, match=event.name):
            it.on_frame(event)
    else:
        it.on_frame(int(event))  # as it stands in a header

    assert it.state is (state if expected is None else expected)


def test_every_type_of_frame_has_one_direction() -> None:
    groups = [BOTH_WAYS, REPLIES, REQUESTS, HANDSHAKE]

    assert frozenset().union(*groups) == WIRE_TYPES
    assert sum(map(len, groups)) == len(WIRE_TYPES)


@pytest.mark.parametrize("number", [0, 8, 15, 127, 145, 255])
@pytest.mark.parametrize("role", Role)
def test_an_unknown_type_is_refused_and_named(role: Role, number: int) -> None:
    """Behaviour 49: an unknown type is a protocol error."""
    with pytest.raises(ProtocolError, match=f"{number} is not a known type"):
        session(role, ACTIVE).on_frame(number)


def test_a_record_of_the_log_is_refused_from_the_network() -> None:
    with pytest.raises(ProtocolError, match="SEGMENT_CREATED is a record of the log"):
        session(Role.SERVER, ACTIVE).on_frame(m.SegmentCreated.type)


def test_an_append_before_the_handshake_is_refused() -> None:
    """Behaviour 53: no request before authentication."""
    with pytest.raises(ProtocolError, match="APPEND before the handshake"):
        session(Role.SERVER).on_frame(m.Append.type)


@pytest.mark.parametrize("role", Role)
def test_trickling_bytes_do_not_extend_the_handshake(role: Role) -> None:
    """Behaviour 50: a slow handshake meets its deadline."""
    it = session(role)

    it.received(104.9)

    assert it.next_deadline_s() == 105.0
    assert it.on_deadline(104.9) is SessionAction.NOTHING
    assert it.on_deadline(105.0) is SessionAction.CLOSE
    assert it.state is CLOSED


@pytest.mark.parametrize("state", [ACTIVE, DRAINING])
def test_a_quiet_peer_is_asked_and_then_given_up(state: SessionState) -> None:
    """Behaviour 50: half-open peers are found."""
    it = session(Role.SERVER, state)
    it.received(110.0)
    it.sent(120.0)

    assert it.next_deadline_s() == 140.0
    assert it.on_deadline(139.9) is SessionAction.NOTHING
    assert it.on_deadline(141.0) is SessionAction.SEND_PING
    assert it.next_deadline_s() == 171.0
    it.sent(160.0)  # sending proves nothing about the peer
    assert it.on_deadline(170.9) is SessionAction.NOTHING
    assert it.on_deadline(171.0) is SessionAction.CLOSE
    assert it.state is CLOSED
    assert it.next_deadline_s() == math.inf
    assert it.on_deadline(1e9) is SessionAction.NOTHING


def test_any_byte_after_a_ping_proves_life() -> None:
    it = session(Role.CLIENT, ACTIVE)
    assert it.on_deadline(130.0) is SessionAction.SEND_PING

    it.received(159.0)

    assert it.next_deadline_s() == 160.0  # this side has sent nothing since the PING
    assert it.on_deadline(160.0) is SessionAction.SEND_PING
    assert it.state is ACTIVE


def test_a_side_that_only_receives_lets_the_peer_hear_from_it() -> None:
    it = session(Role.CLIENT, ACTIVE)

    it.received(129.0)

    assert it.on_deadline(130.0) is SessionAction.SEND_PING


def test_keepalive_can_be_off() -> None:
    it = Session(Role.SERVER, now_s=0.0, handshake_timeout_s=5.0, keepalive_s=math.inf)
    it.on_frame(m.Hello.type)

    assert it.next_deadline_s() == math.inf
    assert it.on_deadline(1e9) is SessionAction.NOTHING


@pytest.mark.parametrize(("handshake_timeout_s", "keepalive_s"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0)])
def test_times_must_be_positive(handshake_timeout_s: float, keepalive_s: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Session(Role.SERVER, now_s=0.0, handshake_timeout_s=handshake_timeout_s, keepalive_s=keepalive_s)


@given(st.lists(st.tuples(st.sampled_from(["received", "sent", "deadline"]), st.floats(0, 100)), max_size=30))
def test_a_session_is_closed_only_when_the_peer_left_a_ping_unanswered(steps: list[tuple[str, float]]) -> None:
    it = session(Role.SERVER, ACTIVE)
    now_s, heard_s = 100.0, 100.0
    for step, pause_s in steps:
        now_s += pause_s
        if step == "received":
            it.received(now_s)
            heard_s = now_s
        elif step == "sent":
            it.sent(now_s)
        elif it.on_deadline(now_s) is SessionAction.CLOSE:
            assert now_s - heard_s >= 30.0
            return
        else:
            assert it.next_deadline_s() > now_s


def test_request_ids_rise_from_one() -> None:
    it = session(Role.SERVER, ACTIVE)

    with pytest.raises(ProtocolError, match="request id 0 is not above"):
        it.check_request_id(m.Read.type, 0)
    it.check_request_id(m.Read.type, 1)
    it.check_request_id(m.Append.type, 5, count=10)
    for used in (1, 5, 14):
        with pytest.raises(ProtocolError, match="the one before, 14"):
            it.check_request_id(m.Read.type, used)
    it.check_request_id(m.Read.type, 15)


@pytest.mark.parametrize("frame_type", sorted(UNNUMBERED))
def test_frames_that_name_what_exists_are_exempt(frame_type: m.FrameType) -> None:
    it = session(Role.SERVER, ACTIVE)
    it.check_request_id(m.Subscribe.type, 9)

    it.check_request_id(frame_type, 4)

    with pytest.raises(ProtocolError):
        it.check_request_id(m.Read.type, 9)


SMALL = st.integers(0, 6)


@given(SMALL, SMALL, SMALL, SMALL)
def test_the_version_is_the_highest_that_both_speak(version_min: int, version_max: int, low: int, high: int) -> None:
    common = set(range(version_min, version_max + 1)) & set(range(low, high + 1))

    if not common:
        with pytest.raises(UnsupportedVersionError, match=f"versions {version_min} to {version_max}") as caught:
            negotiate_version(version_min=version_min, version_max=version_max, our_min=low, our_max=high)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert not caught.value.retriable
    else:
        version = negotiate_version(version_min=version_min, version_max=version_max, our_min=low, our_max=high)
        assert version == max(common)
