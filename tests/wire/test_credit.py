from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.credit import ReceiveWindow


def test_a_window_moves_on_with_what_is_consumed_in_quarters() -> None:
    window = ReceiveWindow(start=1000, size_bytes=400)
    assert window.subscribe(1000) == 400
    assert window.consume(1099) == 0
    assert window.consume(1100) == 100
    assert window.consume(1500) == 400


def test_what_is_required_is_granted_at_once() -> None:
    window = ReceiveWindow(start=0, size_bytes=400)
    window.subscribe(0)
    assert window.require(400) == 0
    assert window.require(401) == 1
    assert window.require(1000) == 599
    assert window.consume(600) == 0  # the window ends where was granted already
    assert window.consume(700) == 100


def test_what_is_required_takes_along_what_was_gathered() -> None:
    window = ReceiveWindow(start=0, size_bytes=400)
    window.subscribe(0)
    assert window.consume(50) == 0
    assert window.require(401) == 50


def test_a_new_subscription_gets_all_that_is_allowed() -> None:
    window = ReceiveWindow(start=0, size_bytes=400)
    window.subscribe(0)
    window.consume(50)
    assert window.subscribe(300) == 150
    assert window.consume(100) == 0
    assert window.subscribe(300) == 200


def test_a_server_that_pushed_beyond_its_credit_gets_none() -> None:
    window = ReceiveWindow(start=0, size_bytes=400)
    window.subscribe(0)
    assert window.subscribe(500) == 0
    assert window.consume(500) == 400


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.sampled_from(["consume", "require", "subscribe"]), st.integers(0, 5000)), max_size=50),
)
def test_credit_never_shrinks_and_never_leaves_a_reader_waiting(size_bytes: int, steps: list[tuple[str, int]]) -> None:
    """Grants add up to the limit but for less than a quarter of the window, and reach what is required."""
    window = ReceiveWindow(start=0, size_bytes=size_bytes)
    allowed = window.subscribe(0)
    consumed = required = 0
    for step, offset in steps:
        if step == "consume":
            consumed = max(consumed, min(offset, allowed))
            allowed += window.consume(consumed)
        elif step == "require":
            required = max(required, offset)
            allowed += window.require(offset)
        else:
            received = min(offset, allowed)
            allowed = received + window.subscribe(received)
        assert allowed == window.granted
        assert max(consumed + size_bytes, required) == window.limit
        assert required <= allowed
        assert (window.limit - allowed) * 4 < size_bytes
