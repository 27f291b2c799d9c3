"""The load of the demo rises and falls, and no reading is left out."""

from itertools import pairwise

import pytest

from millrace.examples.demo.live import PHASES, share_due, target_per_s


def test_all_is_due_at_the_end_and_no_more_later() -> None:
    assert share_due(0) == 0
    assert share_due(1) == pytest.approx(1)
    assert share_due(3) == pytest.approx(1)


def test_each_phase_has_its_load() -> None:
    target = target_per_s(100_000, duration_s=10)
    begins = [0.0, *(until for until, _ in PHASES)]

    for (begin, end), (_, load) in zip(pairwise(begins), PHASES, strict=True):
        per_s = (share_due(end) - share_due(begin)) * 100_000 / ((end - begin) * 10)
        assert per_s / target == pytest.approx(load, rel=0.01)
