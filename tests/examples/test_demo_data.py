from itertools import pairwise

import pytest

from millrace.examples.demo.data import STATIONS, lines, readings


def test_the_measurements_are_those_of_a_year_hour_by_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come with a package: no network is touched."""
    monkeypatch.setattr("socket.socket.connect", None)

    found = readings()

    assert len(found) == 17_518
    assert {reading.sensor for reading in found} == set(STATIONS)
    assert all(before.timestamp_us <= after.timestamp_us for before, after in pairwise(found))
    assert found[0].value() == b'{"sensor": "KSEA", "temp_f": 39.4}'
    assert found[0].timestamp_us == 1_262_304_000_000_000


@pytest.mark.slow
def test_the_texts_are_lines_of_documentation() -> None:
    found = list(lines())

    assert len(found) > 5000
    assert len({line.module for line in found}) > 40
    assert all(line.text == line.text.strip() != "" for line in found)
