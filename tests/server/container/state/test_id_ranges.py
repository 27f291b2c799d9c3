import pytest

from millrace.server.container.state import id_ranges
from millrace.server.container.state.id_ranges import IdRanges
from millrace.server.errors import InvalidArgumentError


def test_each_number_of_a_range_is_used_once() -> None:
    ranges = IdRanges()
    ranges.add(10, 5)
    ranges.add(20, 2)

    ranges.use(ranges.checked([10, 14, 21]))

    assert [number for number in range(30) if ranges.is_unused(number)] == [11, 12, 13, 20]
    for numbers in ([10], [9], [15], [22], [11, 11]):
        with pytest.raises(InvalidArgumentError, match="used once"):
            ranges.checked(numbers)
    assert len(ranges.checked([11, 20])) == 2


def test_the_oldest_range_is_void_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_ranges, "RANGES_COUNT_MAX", 2)
    ranges = IdRanges()
    for first in (10, 20, 30):
        ranges.add(first, 1)

    assert [first for first in (10, 20, 30) if ranges.is_unused(first)] == [20, 30]


def test_so_many_numbers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the ranges are: they are memory that any client can ask for."""
    monkeypatch.setattr(id_ranges, "NUMBERS_COUNT_MAX", 100)
    ranges = IdRanges()
    for first in range(1, 501, 50):
        ranges.add(first, 50)
    assert [number for number in range(1, 501) if ranges.is_unused(number)] == list(range(401, 501))
    ranges.add(501, 100)
    assert [number for number in range(1, 601) if ranges.is_unused(number)] == list(range(501, 601))
