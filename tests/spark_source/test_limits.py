from hypothesis import given
from hypothesis import strategies as st

from millrace.spark_source.limits import share

WAITING = st.dictionaries(st.integers(1, 50), st.integers(0, 1 << 50), min_size=1, max_size=20).filter(
    lambda waiting: any(waiting.values())
)


@given(WAITING, st.integers(1, 1 << 52), st.data())
def test_shares_are_exact_fair_and_starve_no_segment(waiting: dict[int, int], limit: int, data: st.DataObject) -> None:
    """Behaviour 56."""
    lead = data.draw(st.sampled_from(sorted(key for key, count in waiting.items() if count)))
    shares = share(limit, waiting, lead=lead)
    total = sum(waiting.values())

    assert shares.keys() == waiting.keys()
    assert sum(shares.values()) == min(limit, total)
    assert all(0 <= shares[segment_id] <= waiting[segment_id] for segment_id in waiting)
    assert shares[lead] >= 1
    if total > limit:
        assert all(abs(shares[key] * total - limit * waiting[key]) <= 2 * total for key in waiting)


def test_segments_that_lag_catch_up_together() -> None:
    assert share(100, {1: 900, 2: 90, 3: 10}, lead=1) == {1: 90, 2: 9, 3: 1}


def test_what_fits_is_taken_whole() -> None:
    assert share(100, {1: 60, 2: 40}, lead=2) == {1: 60, 2: 40}
