from hypothesis import given
from hypothesis import strategies as st

from millrace.model.figures import count_text, duration_text, rate_text, size_text, time_text
from tests.support.tables import table


@table(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (150 << 20, "150 MiB"),
        (3 << 40, "3.0 TiB"),
        (1 << 70, "1048576 PiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


@table(
    ("rate", "text"), [(0, "0.00/s"), (999, "999/s"), (1500, "1.50 k/s"), (18_500_000, "18.5 M/s"), (2e12, "2000 G/s")]
)
def test_rates(rate: float, text: str) -> None:
    assert rate_text(rate) == text


@table(("duration_s", "text"), [(0.0000884, "88 us"), (0.0123, "12.3 ms"), (7.25, "7.2 s"), (3599.6, "60 min 00 s")])
def test_durations(duration_s: float, text: str) -> None:
    assert duration_text(duration_s) == text


def test_times_are_in_utc() -> None:
    assert time_text(1_700_000_000_123_456) == "2023-11-14 22:13:20.123Z"
    assert time_text(None) == ""


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_of_microseconds_can_be_told(unix_us: int) -> None:
    assert time_text(unix_us)


def test_counts() -> None:
    assert count_text(1, "segment") == "1 segment"
    assert count_text(12_000, "batch", "batches") == "12,000 batches"
