"""The accounting of chained queries finds what it is there to find."""

from tests.spark_source.kills.accounts import Fact, findings

WANTED = [Fact("a", 1), Fact("b", 1), Fact(None, 1), Fact("a", 2), Fact(None, 2), Fact("b", 2)]


def test_each_fact_once_in_the_order_of_its_key_is_right() -> None:
    other_keys_first = [Fact(None, 2), Fact("b", 1), Fact("b", 2), Fact("a", 1), Fact(None, 1), Fact("a", 2)]

    assert findings("cooked", other_keys_first, wanted=WANTED) == []


def test_a_fact_that_is_lost_is_found() -> None:
    assert findings("cooked", WANTED[1:], wanted=WANTED) == ["cooked: 1 (a: 1) lost"]


def test_a_fact_that_is_there_twice_is_found() -> None:
    assert findings("cooked", [*WANTED, WANTED[2]], wanted=WANTED) == ["cooked: 1 (None: 1) too often"]


def test_a_fact_under_another_key_is_found() -> None:
    moved = [Fact("b", 1), *WANTED[1:]]

    assert findings("cooked", moved, wanted=WANTED) == ["cooked: 1 (a: 1) lost", "cooked: 1 (b: 1) too often"]


def test_another_order_of_a_key_is_found() -> None:
    assert findings("cooked", WANTED[::-1], wanted=WANTED) == [
        "cooked: another order of key a",
        "cooked: another order of key b",
    ]
