"""Behaviour 104: one identity cannot use up a bound."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.shares import Shares

IDENTITIES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])


def filled(shares: Shares[str], identity: str) -> int:
    """Take places until there is no room for an identity, and return how many."""
    count = 0
    while shares.has_room(identity):
        shares.take(identity)
        count += 1
    return count


def test_one_identity_gets_half_and_a_later_one_half_of_the_rest() -> None:
    shares = Shares[str](100)
    assert filled(shares, "greedy") == 50
    assert filled(shares, "next") == 25
    assert shares.has_room("newcomer")


def test_the_only_place_can_be_taken() -> None:
    shares = Shares[str](1)
    assert filled(shares, "a") == 1
    assert not shares.has_room("b")
    shares.release("a")
    assert filled(shares, "b") == 1


@given(places_count=st.integers(1, 40), steps=st.lists(st.tuples(st.booleans(), IDENTITIES), max_size=200))
def test_the_places_suffice_for_an_identity_that_holds_none(places_count: int, steps: list[tuple[bool, str]]) -> None:
    shares, held = Shares[str](places_count), dict.fromkeys(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"], 0)
    for is_taken, identity in steps:
        if is_taken and shares.has_room(identity):
            shares.take(identity)
            held[identity] += 1
        elif not is_taken and held[identity]:
            shares.release(identity)
            held[identity] -= 1
        assert len(shares) == sum(held.values()) <= places_count
        assert all(shares.count_of(name) == count for name, count in held.items())
        assert all(count <= (places_count + 1) // 2 for count in held.values())
        # The last place is only taken by an identity that held none.
        assert shares.has_room("newcomer") or len(shares) == places_count


@given(places_count=st.integers(1, 60))
def test_greedy_identities_that_come_together_get_equal_shares(places_count: int) -> None:
    shares, names = Shares[str](places_count), ["a", "b", "c"]
    while any(map(shares.has_room, names)):
        for name in names:
            if shares.has_room(name):
                shares.take(name)
    counts = [shares.count_of(name) for name in names]
    assert max(counts) - min(counts) <= 1
