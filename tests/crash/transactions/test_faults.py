"""The faults of a round are those of its seed."""

import random
from itertools import islice

from tests.crash.transactions.faults import DECK, Fault, schedule


def test_each_turn_of_a_schedule_has_every_fault_in_an_order_of_the_seed() -> None:
    turns = [list(islice(schedule(random.Random(seed)), 2 * len(DECK))) for seed in (1, 1, 2)]

    assert turns[0] == turns[1] != turns[2]
    for turn in (turns[0][: len(DECK)], turns[0][len(DECK) :]):
        assert set(turn) == set(Fault)
        assert turn.count(Fault.KILL) == 3
