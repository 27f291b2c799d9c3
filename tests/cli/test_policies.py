from typing import Any

import pytest
import typer

from millrace.cli.policies import PolicyOptions, retention_text, scaling_text
from millrace.model.errors import InvalidArgumentError
from millrace.model.policy import RetentionPolicy, ScalingPolicy
from tests.support.tables import table

EVENTS = ScalingPolicy.by_events_per_s(100, min_segments=2, factor=4)


def scaling(
    *, segments: int | None = None, current: ScalingPolicy | None = None, **options: Any
) -> ScalingPolicy | None:
    """Return what these options of a command line ask for."""
    return PolicyOptions(**options).scaling(segments=segments, current=current)


@table(
    ("given", "policy"),
    [
        ({}, None),
        ({"segments": 3}, ScalingPolicy.fixed(3)),
        ({"events_per_s": 100, "min_segments": 2, "factor": 4}, EVENTS),
        ({"bytes_per_s": "1MiB"}, ScalingPolicy.by_bytes_per_s(1 << 20)),
        ({"bytes_per_s": "1k", "current": EVENTS}, ScalingPolicy.by_bytes_per_s(1024, min_segments=2, factor=4)),
        ({"events_per_s": 5, "current": ScalingPolicy.fixed(9)}, ScalingPolicy.by_events_per_s(5)),
        ({"segments": 9, "current": EVENTS}, ScalingPolicy.fixed(9)),
        (
            {"min_segments": 7, "current": EVENTS},
            ScalingPolicy.by_events_per_s(100, min_segments=7, factor=4),
        ),
    ],
)
def test_options_of_scaling(given: dict[str, Any], policy: ScalingPolicy | None) -> None:
    assert scaling(**given) == policy


@table(
    "given",
    [
        {"segments": 3, "events_per_s": 5},
        {"events_per_s": 5, "bytes_per_s": "1k"},
        {"bytes_per_s": "0"},
        {"segments": 3, "min_segments": 2},
        {"min_segments": 2},
        {"factor": 2, "current": ScalingPolicy.fixed(3)},
    ],
)
def test_options_of_scaling_that_exclude_one_another(given: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter):
        scaling(**given)


@table(
    ("given", "policy"),
    [
        ({}, None),
        ({"retain_bytes": "1k:1MiB"}, RetentionPolicy.by_size(min_bytes=1024, max_bytes=1 << 20)),
        ({"retain_bytes": "1MiB"}, RetentionPolicy.by_size(max_bytes=1 << 20)),
        ({"retain_age": "7d"}, RetentionPolicy.by_time(max_age_s=604_800)),
        (
            {"retain_age": "7d", "retain_bytes": "1k:"},
            RetentionPolicy.by_time(max_age_s=604_800, min_bytes=1024),
        ),
        ({"retain_consumed": True}, RetentionPolicy.by_consumption()),
        (
            {"retain_consumed": True, "retain_age": "1h:7d", "retain_bytes": ":1k"},
            RetentionPolicy.by_consumption(max_bytes=1024, min_age_s=3600, max_age_s=604_800),
        ),
    ],
)
def test_options_of_retention(given: dict[str, Any], policy: RetentionPolicy | None) -> None:
    assert PolicyOptions(**given).retention() == policy


@table("given", [{"retain_bytes": "1k:"}, {"retain_age": "1h:2h"}, {"retain_age": "1h:"}])
def test_bounds_that_make_no_sense_alone(given: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter):
        PolicyOptions(**given).retention()


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        PolicyOptions(retain_bytes="2k:1k").retention()


def test_policies_in_words() -> None:
    assert scaling_text(ScalingPolicy.fixed(3)) == "fixed"
    assert scaling_text(EVENTS) == (
        "by events per second: 100 events/s a segment, split into at most 4, never fewer than 2 segments"
    )
    assert "1.0 MiB/s a segment" in scaling_text(ScalingPolicy.by_bytes_per_s(1 << 20))
    assert retention_text(None) == "everything, until it is truncated"
    assert retention_text(RetentionPolicy.by_time(max_age_s=604_800)) == "by time: nothing older than 7 d 0 h"
    assert retention_text(RetentionPolicy.by_consumption()) == "events that a cursor has not passed"
