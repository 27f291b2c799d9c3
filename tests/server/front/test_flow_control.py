"""Why a connection is not read: its owner hears of the first reason, and when the last one goes."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.front.flow_control import FlowControl, Reason


@given(st.lists(st.tuples(st.sampled_from(Reason), st.booleans()), max_size=30))
def test_the_owner_is_called_exactly_when_it_may_read_or_may_not(steps: list[tuple[Reason, bool]]) -> None:
    heard: list[bool] = []
    flow = FlowControl(lambda: heard.append(flow.is_blocked))
    holding: set[Reason] = set()
    expected: list[bool] = []
    for reason, holds in steps:
        before = bool(holding)
        holding = holding | {reason} if holds else holding - {reason}
        flow.set(reason, holds)
        assert flow.is_blocked is bool(holding)
        if bool(holding) is not before:
            expected.append(bool(holding))
    assert heard == expected


def test_an_owner_may_give_another_reason_while_it_is_called() -> None:
    """Behaviour 51: reading on may fill the next bound at once."""

    def changed() -> None:
        if not flow.is_blocked:
            flow.set(Reason.TASKS, True)

    flow = FlowControl(changed)
    flow.set(Reason.LOADING, True)
    flow.set(Reason.LOADING, False)

    assert flow.is_blocked
