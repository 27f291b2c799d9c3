import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.append_ring import AppendRing
from millrace.wire.append_scan import scan_run
from tests.support.examples import examples


@settings(deadline=None, print_blob=True, max_examples=examples(30))
@given(payload_size=st.integers(1, 300), power=st.integers(0, 6), rounds=st.integers(0, 40))
def test_the_frames_of_every_round_are_valid_appends_with_the_next_ids(
    payload_size: int, power: int, rounds: int
) -> None:
    ring = AppendRing(7, payload_size=payload_size, count=1 << power)
    for _ in range(rounds):
        ring.advance()
    data = bytearray(ring.frames)
    run = scan_run(data, memoryview(data), start=0, end=len(data))

    assert run is not None
    assert (run.frame_count, run.frame_size, len(run.frames)) == (ring.count, ring.frame_size, len(data))
    assert run.request_id == ring.first_request_id == ring.count * (rounds + 1)
    assert run.segment_id == 7


def test_a_ring_needs_a_power_of_two() -> None:
    with pytest.raises(AssertionError):
        AppendRing(7, payload_size=100, count=3)
