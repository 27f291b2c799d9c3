import pytest

from millrace.model.errors import InvalidArgumentError
from millrace.model.event_times import EventTimeBounds, OutsideTimes, unit_hint
from millrace.model.policy import StreamConfig
from tests.support.tables import table

NOW_US = 1_800_000_000_000_000


def test_bounds_are_kept_with_the_configuration() -> None:
    for bounds in (
        EventTimeBounds(future_s_max=0),
        EventTimeBounds(past_s_max=0.5, outside=OutsideTimes.CLAMP),
        EventTimeBounds(future_s_max=3600, past_s_max=86_400),
    ):
        config = StreamConfig(event_times=bounds)
        assert StreamConfig.from_json(config.to_json()) == config


def test_a_configuration_of_an_earlier_version_has_no_bounds() -> None:
    """And one without bounds is the text that it was, so that streams that exist are the same."""
    text = StreamConfig().to_json()

    assert "event_times" not in text
    assert StreamConfig.from_json(text).event_times is None


@table(
    "content",
    ["{}", '{"future_s_max": -1}', '{"past_s_max": "1"}', '{"past_s_max": true}', '{"future_s_max": 1e300}', "3",
     '{"future_s_max": 1, "outside": "drop"}', '{"future_s_max": NaN}'],
)  # fmt: skip
def test_bounds_that_make_no_sense_are_refused(content: str) -> None:
    with pytest.raises(InvalidArgumentError):
        StreamConfig.from_json(f'{{"event_times": {content}}}')


def test_limits_are_around_the_clock_and_fit_64_bits() -> None:
    assert EventTimeBounds(future_s_max=1.5).limits_us(NOW_US) == (-(1 << 63), NOW_US + 1_500_000)
    assert EventTimeBounds(past_s_max=2).limits_us(NOW_US) == (NOW_US - 2_000_000, (1 << 63) - 1)
    assert EventTimeBounds(past_s_max=1e12, future_s_max=1e12).limits_us(1 << 62)[1] == (1 << 62) + 10**18


@table(
    ("timestamp_us", "unit"),
    [(NOW_US, ""), (NOW_US // 1000, "milliseconds"), (NOW_US // 1_000_000, "seconds"), (NOW_US * 1000, "nanoseconds"),
     (0, ""), (-NOW_US, ""), (253_370_764_800_000_000, "")],
)  # fmt: skip
def test_a_time_in_another_unit_is_recognized(timestamp_us: int, unit: str) -> None:
    assert unit_hint(timestamp_us) == (
        unit and f"{timestamp_us} looks like {unit}: the time of an event is in microseconds"
    )
