from fractions import Fraction

import pytest

from millrace.model.errors import InvalidArgumentError
from millrace.model.key_range import KEY_SPACE, KeyRange, equal_ranges
from millrace.model.stream import Border, StreamSegment, scaled_ranges
from tests.support.tables import table

THIRDS = [
    StreamSegment(segment_id=number, key_range=key_range) for number, key_range in enumerate(equal_ranges(3), start=1)
]


@table(
    ("low", "high", "expected"),
    [
        (0.0, 0.25, (0, KEY_SPACE // 4)),
        (0, 1, (0, KEY_SPACE)),
        (1 / 3, 2 / 3, (KEY_SPACE // 3, KEY_SPACE * 2 // 3)),
        (THIRDS[1].low, THIRDS[1].high, (KEY_SPACE // 3, KEY_SPACE * 2 // 3)),
        (Fraction(1, 7), 0.5, (KEY_SPACE // 7, KEY_SPACE // 2)),
        (5, KEY_SPACE, (5, KEY_SPACE)),
        (0.9999999999999999, 1.0, (KEY_SPACE - 2048, KEY_SPACE)),
    ],
)
def test_borders_are_exact(low: Border, high: Border, expected: tuple[int, int]) -> None:
    if low == 0.9999999999999999:
        assert scaled_ranges([(low, high)], segments=[]) == [KeyRange(*expected)]
    else:
        assert scaled_ranges([(low, high)], segments=THIRDS) == [KeyRange(*expected)]


@table(("low", "high"), [(0.5, 0.5), (0.5, 0.25), (-0.1, 1.0), (0.0, 1.5), (0, KEY_SPACE + 1)])
def test_ranges_that_are_none_are_refused(low: Border, high: Border) -> None:
    with pytest.raises(InvalidArgumentError):
        scaled_ranges([(low, high)], segments=THIRDS)
