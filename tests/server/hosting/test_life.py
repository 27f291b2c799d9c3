"""The states of a container in a server: the table alone."""

from itertools import product
from typing import Final

import pytest

from millrace.server.hosting.life import (
    CLAIM,
    CLAIMED,
    CLAIMING,
    CLOSE,
    CLOSED,
    CLOSING,
    FAIL,
    FENCE,
    FENCED,
    OPENED,
    OPENING,
    RECOVERED,
    RECOVERING,
    SERVING,
    STANDBY,
    STOP,
    TRANSITIONS,
    WAIT,
    Life,
    LifeEvent,
    LifeState,
)
from tests.support.tables import table

PATHS: Final[dict[LifeState, list[LifeEvent]]] = {
    CLAIMING: [],
    STANDBY: [WAIT],
    OPENING: [CLAIMED],
    SERVING: [CLAIMED, OPENED],
    RECOVERING: [CLAIMED, OPENED, FAIL],
    FENCED: [FENCE],
    CLOSING: [STOP],
    CLOSED: [STOP, CLOSE],
}
"""Events that lead from the first state to each."""


def brought_to(state: LifeState) -> Life:
    life = Life()
    for event in PATHS[state]:
        life.change(event)
    assert life.state is state
    return life


@table(("state", "event"), list(product(LifeState, LifeEvent)))
def test_every_state_takes_the_events_of_the_table_and_no_other(state: LifeState, event: LifeEvent) -> None:
    life = brought_to(state)
    following = TRANSITIONS[state].get(event)
    if following is None:
        with pytest.raises(AssertionError, match=f"{event.name} in .*{state.name}"):
            life.change(event)
        assert life.state is state
        return
    assert life.change(event) is following
    assert life.state is following


def test_every_state_can_be_reached_and_but_for_the_last_be_left() -> None:
    assert set(TRANSITIONS) == set(LifeState)
    reached = {following for row in TRANSITIONS.values() for following in row.values()}
    assert reached == set(LifeState)
    assert {state for state, row in TRANSITIONS.items() if set(row.values()) <= {state}} == {CLOSED}


def test_from_every_state_a_stop_leads_to_the_end() -> None:
    for state in LifeState:
        life = brought_to(state)
        assert life.change(STOP) in (CLOSING, CLOSED)
        if life.state is CLOSING:
            assert life.change(CLOSE) is CLOSED


def test_a_fenced_container_never_serves_again() -> None:
    """Only a stop leads out of FENCED, and nothing leads back from there."""
    for first in (FENCED, CLOSING):
        reachable, unseen = {first}, {first}
        while unseen:
            unseen = {following for state in unseen for following in TRANSITIONS[state].values()} - reachable
            reachable |= unseen
        assert reachable <= {FENCED, CLOSING, CLOSED}


def test_a_container_that_is_opened_again_recovers_until_its_connections_have_ended() -> None:
    life = brought_to(RECOVERING)
    for event in (CLAIM, CLAIMED, OPENED, FAIL, CLAIM, CLAIMED, OPENED):
        assert life.change(event) is RECOVERING
    assert life.change(RECOVERED) is SERVING


def test_a_start_that_finds_the_store_full_begins_again_with_its_claim() -> None:
    for state in (CLAIMING, STANDBY, OPENING):
        assert brought_to(state).change(CLAIM) is CLAIMING
