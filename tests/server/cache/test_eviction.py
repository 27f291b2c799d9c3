from hypothesis import given
from hypothesis import strategies as st

from millrace.server.cache.eviction import SegmentedLru


def policy(*, budget: int = 10, protected: int = 6) -> SegmentedLru[str]:
    return SegmentedLru(budget_bytes=budget, protected_bytes_max=protected)


def test_the_oldest_entry_used_once_leaves_first() -> None:
    lru = policy()
    victims = [lru.admit(key, 1) for key in "abcdefghijkl"]

    assert victims == [[]] * 10 + [["a"], ["b"]]


def test_a_scan_of_any_length_leaves_what_was_used_again() -> None:
    lru = policy()
    for key in "abc":
        lru.admit(key, 1)
        lru.use_again(key)

    for number in range(1000):
        lru.admit(f"scan {number}", 1)

    assert all(key in lru for key in "abc")
    lru.check()


def test_above_its_share_the_protected_entry_unused_for_longest_returns_to_probation() -> None:
    lru = policy(budget=10, protected=3)
    for key in "abcd":
        lru.admit(key, 1)
        lru.use_again(key)
    lru.admit("e", 1)

    assert lru.protected_bytes == 3
    assert lru.admit("big", 7) == ["a", "e"]


def test_with_nothing_on_probation_the_protected_leave_oldest_first() -> None:
    lru = policy(budget=10, protected=6)
    for key in "abc":
        lru.admit(key, 2)
        lru.use_again(key)
    lru.use_again("a")

    assert lru.admit("all of it", 10) == ["b", "c", "a"]


def test_an_entry_too_big_to_protect_stays_on_probation_as_its_newest() -> None:
    lru = policy(budget=10, protected=3)
    lru.admit("big", 4)
    lru.admit("b", 1)
    lru.use_again("big")

    assert lru.protected_bytes == 0
    assert lru.admit("c", 6) == ["b"]


@given(st.lists(st.tuples(st.sampled_from(["admit", "use", "remove"]), st.integers(0, 12), st.integers(1, 20))))
def test_costs_add_up_and_stay_in_the_budget(steps: list[tuple[str, int, int]]) -> None:
    lru = SegmentedLru[int](budget_bytes=20, protected_bytes_max=12)
    model: dict[int, int] = {}

    for step, key, cost in steps:
        if step == "admit" and key not in model:
            for victim in lru.admit(key, cost):
                del model[victim]
            model[key] = cost
        elif step == "use" and key in model:
            lru.use_again(key)
        elif step == "remove" and key in model:
            lru.remove(key)
            del model[key]
        lru.check()
        assert set(lru) == set(model)
        assert lru.size_bytes == sum(model.values())
        assert len(lru) == len(model)
