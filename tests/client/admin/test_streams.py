import json
from fractions import Fraction

import pytest

from millrace.client.admin.streams import (
    Border,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfig,
    StreamSegment,
    scaled_ranges,
)
from millrace.model.errors import InvalidArgumentError
from millrace.model.key_range import KEY_SPACE, KeyRange, equal_ranges
from millrace.model.lineage import Epoch, parts_of_history


@pytest.mark.parametrize(
    "configuration",
    [
        StreamConfig(scaling=ScalingPolicy.fixed(7)),
        StreamConfig(scaling=ScalingPolicy.by_bytes_per_s(1 << 20, factor=3, min_segments=2), tags=("b", "a", "b")),
        StreamConfig(
            scaling=ScalingPolicy.by_events_per_s(1000), retention=RetentionPolicy.by_size(max_bytes=9, min_bytes=1)
        ),
        StreamConfig(retention=RetentionPolicy.by_time(max_age_s=0.5)),
        StreamConfig(retention=RetentionPolicy.by_consumption(min_age_s=1.0, max_bytes=5)),
        StreamConfig(retention=RetentionPolicy.by_consumption()),
    ],
)
def test_a_configuration_is_read_back_from_its_text(configuration: StreamConfig) -> None:
    assert StreamConfig.from_json(configuration.to_json()) == configuration


def test_the_text_is_what_the_server_reads() -> None:
    assert StreamConfig().to_json() == '{"scaling":{"kind":"fixed","segment_count":1},"retention":null}'
    text = StreamConfig(
        scaling=ScalingPolicy.by_bytes_per_s(5), retention=RetentionPolicy.by_size(max_bytes=9), tags=("b", "a")
    ).to_json()
    assert json.loads(text) == {
        "scaling": {"kind": "bytes", "target_per_s": 5, "factor": 2, "min_segments": 1},
        "retention": {"kind": "size", "min_bytes": None, "max_bytes": 9, "min_age_s": None, "max_age_s": None},
        "tags": ["a", "b"],
    }


def test_policies_that_make_no_sense_are_refused() -> None:
    for make in (
        lambda: ScalingPolicy.by_bytes_per_s(0),
        lambda: ScalingPolicy.by_events_per_s(5, factor=1),
        lambda: ScalingPolicy("fixed", 1, 5),
        lambda: ScalingPolicy("guess", 1),
        lambda: RetentionPolicy.by_size(max_bytes=1, min_bytes=2),
        lambda: RetentionPolicy.by_size(max_bytes=-1),
        lambda: RetentionPolicy(kind="time"),
        lambda: RetentionPolicy(kind="mood"),
        lambda: StreamConfig(tags=("a\n",)),
        lambda: StreamConfig(tags="abc"),  # type: ignore[arg-type]  # wrong on purpose
    ):
        with pytest.raises(InvalidArgumentError):
            make()


THIRDS = [
    StreamSegment(segment_id=number, key_range=key_range) for number, key_range in enumerate(equal_ranges(3), start=1)
]


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.5, 0.25), (-0.1, 1.0), (0.0, 1.5), (0, KEY_SPACE + 1)])
def test_ranges_that_are_none_are_refused(low: Border, high: Border) -> None:
    with pytest.raises(InvalidArgumentError):
        scaled_ranges([(low, high)], segments=THIRDS)


def test_the_history_tells_of_segments_that_are_gone() -> None:
    everything, low, high = KeyRange(0, KEY_SPACE), KeyRange(0, 5), KeyRange(5, KEY_SPACE)
    history = [
        Epoch(number=0, started_us=1, cause="created", sealed_ids=(), created=((1, everything),)),
        Epoch(number=1, started_us=2, cause="asked for", sealed_ids=(1,), created=((2, low), (3, high))),
    ]
    found = {each.segment_id: (each.key_range, each.epoch, each.sealed_epoch) for each in parts_of_history(history)}
    assert found == {1: (everything, 0, 1), 2: (low, 1, 0), 3: (high, 1, 0)}


@pytest.mark.parametrize("text", ["", "5", "{}", '{"scaling": {"kind": "fixed"}}', '{"scaling": 5}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        StreamConfig.from_json(text)


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_the_number_of_segments_is_bounded(count: int) -> None:
    with pytest.raises(InvalidArgumentError):
        ScalingPolicy.fixed(count)
