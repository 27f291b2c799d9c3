import math

from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.keepalive import Due, KeepAlive


def keepalive(quiet_s: float = 30.0) -> KeepAlive:
    return KeepAlive(now_s=100.0, quiet_s=quiet_s)


def test_a_quiet_peer_is_asked_and_then_dropped() -> None:
    """Behaviour 50: half-open peers are found."""
    it = keepalive()
    it.received(110.0)
    it.sent(120.0)

    assert it.next_deadline_s() == 140.0
    assert it.due(139.9) is Due.NOTHING
    assert it.due(141.0) is Due.PING
    assert it.next_deadline_s() == 171.0
    it.sent(160.0)  # sending proves nothing about the peer
    assert it.due(170.9) is Due.NOTHING
    assert it.due(171.0) is Due.GIVE_UP


def test_any_byte_after_a_ping_proves_life() -> None:
    it = keepalive()
    assert it.due(130.0) is Due.PING

    it.received(159.0)

    assert it.next_deadline_s() == 160.0  # this side has sent nothing since the PING
    assert it.due(160.0) is Due.PING


def test_a_side_that_only_receives_lets_the_peer_hear_from_it() -> None:
    it = keepalive()

    it.received(129.0)

    assert it.due(130.0) is Due.PING


def test_it_can_be_off() -> None:
    it = keepalive(math.inf)

    assert it.next_deadline_s() == math.inf
    assert it.due(1e9) is Due.NOTHING


@given(st.lists(st.tuples(st.sampled_from(["received", "sent", "due"]), st.floats(0, 100)), max_size=30))
def test_a_peer_is_dropped_only_when_it_left_a_ping_unanswered(steps: list[tuple[str, float]]) -> None:
    it = keepalive()
    now_s, heard_s = 100.0, 100.0
    for step, pause_s in steps:
        now_s += pause_s
        if step == "received":
            it.received(now_s)
            heard_s = now_s
        elif step == "sent":
            it.sent(now_s)
        elif it.due(now_s) is Due.GIVE_UP:
            assert now_s - heard_s >= 30.0
            return
        else:
            assert it.next_deadline_s() > now_s
