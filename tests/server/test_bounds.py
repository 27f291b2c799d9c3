from dataclasses import dataclass

import pytest

from millrace.server.bounds import demand, demand_above_zero, demand_at_least, is_duration, is_size, option_text
from millrace.server.errors import SettingError
from tests.support.tables import table


@dataclass(frozen=True)
class Options:
    room_bytes: int = 0
    wait_s: float = 0.5
    share: float = float("nan")


def test_the_unit_is_in_the_name() -> None:
    sizes = ["file_size_bytes", "room_bytes_high", "bytes_per_s_min"]
    durations = ["tick_s", "lease_s_max"]
    names = [*sizes, *durations, "is_set", "files_max", "bytesize", "_sum", "puts_per_s_max"]

    assert [name for name in names if is_size(name)] == sizes
    assert [name for name in names if is_duration(name)] == durations


@table(
    ("option", "value", "text"),
    [
        ("room_bytes", 64 << 20, "64 MiB"),
        ("room_bytes", -1, "-1"),
        ("wait_s", 90.0, "90 s"),
        ("wait_s", 3600, "1 h"),
        ("wait_s", -1.0, "-1"),
        ("wait_s", float("inf"), "inf"),
        ("share", 0.25, "0.25"),
        ("puts_per_s_max", 20.0, "20"),
        ("count_max", 100_000, "100000"),
        ("zero_fill", True, "true"),
        ("listen", "here", "here"),
    ],
)
def test_values_are_shown_with_their_unit(option: str, value: object, text: str) -> None:
    assert option_text(option, value) == text


def test_an_error_says_the_option_its_value_and_what_would_be_right() -> None:
    with pytest.raises(SettingError, match=r"^room_bytes is 0 B; it must be at least 4 KiB$"):
        demand_at_least(Options(), 4096, "room_bytes")
    with pytest.raises(SettingError, match=r"^room_bytes is 0 B; it must be above 0$"):
        demand_above_zero(Options(), "wait_s", "room_bytes")
    with pytest.raises(SettingError, match=r"^wait_s is 0.5 s; it must be a moment$"):
        demand(False, Options(), "wait_s", "a moment")


def test_what_is_no_number_is_in_no_bounds() -> None:
    with pytest.raises(SettingError, match=r"share is nan"):
        demand_at_least(Options(), 0, "share")
    with pytest.raises(SettingError, match=r"share is nan"):
        demand_above_zero(Options(), "share")
