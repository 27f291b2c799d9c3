"""Policies of a stream: parsed from options of the command line, and described in words."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer

from millrace.model.event_times import EventTimeBounds, OutsideTimes
from millrace.model.figures import count_text, duration_text, size_text
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.policy import RetentionPolicy, ScalingKind, ScalingPolicy
from millrace.model.quantities import parse_bounds, parse_duration, parse_size

_option = partial(typer.Option, rich_help_panel="Policies")

TagOption = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="A tag, to find the stream by; may be given several times."),
]


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The policy options of a command; all optional."""

    events_per_s: Annotated[
        int | None,
        _option(
            min=1,
            metavar="N",
            help="Split a segment that gets more events per second for a while, merge neighbours that get far fewer.",
        ),
    ] = None
    bytes_per_s: Annotated[str | None, _option(metavar="SIZE", help="The same, by bytes per second: 1MiB.")] = None
    min_segments: Annotated[
        int | None,
        _option(
            min=1,
            max=SEGMENTS_PER_STREAM_MAX,
            metavar="N",
            help="How many segments such a stream starts with; merging leaves no fewer. 1 unless given.",
        ),
    ] = None
    factor: Annotated[
        int | None,
        _option(min=2, max=16, metavar="N", help="Into how many parts a segment is split at most. 2 unless given."),
    ] = None
    retain_bytes: Annotated[
        str | None,
        _option(
            metavar="MIN:MAX",
            help="Delete the oldest events above MAX bytes, but always keep MIN: 1GiB:10GiB, or 10GiB.",
        ),
    ] = None
    retain_age: Annotated[
        str | None,
        _option(
            metavar="MIN:MAX",
            help="Delete events older than MAX: 7d. A minimum (7d:) works only with --retain-consumed.",
        ),
    ] = None
    retain_consumed: Annotated[
        bool,
        _option(
            "--retain-consumed",
            help="Delete events that all cursors have passed, within the limits of the other two.",
        ),
    ] = False

    event_times: Annotated[
        str | None,
        _option(
            metavar="PAST:FUTURE",
            help="Accept only events whose time is at most PAST before and at most FUTURE after the server's clock: "
            "7d:1h, or :1h. `any` removes the bounds.",
        ),
    ] = None
    outside_times: Annotated[
        OutsideTimes | None,
        _option(
            "--outside-times",
            help="What to do with other events: refuse them, or clamp their time to the bound.",
            show_default="refuse",
        ),
    ] = None

    def times(self, current: EventTimeBounds | None = None) -> EventTimeBounds | None:
        """Return the resulting bounds of event times.

        Args:
            current: the current bounds, which stay without an option.

        Raises:
            InvalidArgumentError: invalid duration.
            typer.BadParameter: options that need one another.
        """
        if self.event_times == "any":
            current = None
        elif self.event_times is not None:
            past_s, future_s = parse_bounds(self.event_times, parse_duration)
            outside = current.outside if current else OutsideTimes.REFUSE
            current = EventTimeBounds(past_s_max=past_s, future_s_max=future_s, outside=outside)
        if self.outside_times is None:
            return current
        if current is None:
            raise typer.BadParameter("--outside-times needs --event-times")
        return replace(current, outside=self.outside_times)

    def scaling(self, *, segments: int | None, current: ScalingPolicy | None = None) -> ScalingPolicy | None:
        """Return the requested scaling policy; None without an option.

        Args:
            segments: the fixed number of segments, if requested.
            current: the current policy, for options that are not given.

        Raises:
            typer.BadParameter: options that exclude one another.
        """
        target_bytes = None if self.bytes_per_s is None else parse_size(self.bytes_per_s)
        if sum(option is not None for option in (segments, self.events_per_s, target_bytes)) > 1:
            raise typer.BadParameter("give only one of a fixed number of segments, --events-per-s and --bytes-per-s")
        if target_bytes == 0:
            raise typer.BadParameter("--bytes-per-s must be above 0")
        if current is None or current.kind == ScalingKind.FIXED:
            current = None
        least = self.min_segments or (current.segment_count if current else 1)
        parts = self.factor or (current.factor if current else 2)
        if self.events_per_s is not None:
            return ScalingPolicy.by_events_per_s(self.events_per_s, min_segments=least, factor=parts)
        if target_bytes is not None:
            return ScalingPolicy.by_bytes_per_s(target_bytes, min_segments=least, factor=parts)
        if self.min_segments is None and self.factor is None:
            return None if segments is None else ScalingPolicy.fixed(segments)
        if segments is not None or current is None:
            raise typer.BadParameter("--min-segments and --factor need --events-per-s or --bytes-per-s")
        return replace(current, segment_count=least, factor=parts)

    def retention(self) -> RetentionPolicy | None:
        """Return the requested retention policy; None without an option.

        Raises:
            InvalidArgumentError: invalid size or duration, or contradictory bounds.
            typer.BadParameter: bounds that need another option.
        """
        min_bytes, max_bytes = parse_bounds(self.retain_bytes or "", parse_size)
        min_age_s, max_age_s = parse_bounds(self.retain_age or "", parse_duration)
        if self.retain_consumed:
            return RetentionPolicy.by_consumption(
                min_bytes=min_bytes, max_bytes=max_bytes, min_age_s=min_age_s, max_age_s=max_age_s
            )
        if self.retain_age is not None:
            if max_age_s is None or min_age_s is not None:
                raise typer.BadParameter("--retain-age without --retain-consumed is a maximum: 7d")
            return RetentionPolicy.by_time(max_age_s=max_age_s, min_bytes=min_bytes, max_bytes=max_bytes)
        if self.retain_bytes is not None:
            if max_bytes is None:
                raise typer.BadParameter(
                    "--retain-bytes without --retain-consumed needs a maximum: 10GiB, or 1GiB:10GiB"
                )
            return RetentionPolicy.by_size(max_bytes=max_bytes, min_bytes=min_bytes)
        return None


def scaling_text(policy: ScalingPolicy) -> str:
    """Describe a scaling policy."""
    if policy.kind == "fixed":
        return "fixed"
    target = f"{size_text(policy.target_per_s)}/s" if policy.kind == "bytes" else f"{policy.target_per_s:,} events/s"
    return (
        f"by {policy.kind} per second: {target} a segment, split into at most {policy.factor}, "
        f"never fewer than {count_text(policy.segment_count, 'segment')}"
    )


def times_text(bounds: EventTimeBounds | None) -> str:
    """Describe bounds of event times."""
    if bounds is None:
        return "any"
    sides = (("before", bounds.past_s_max), ("after", bounds.future_s_max))
    said = [f"at most {duration_text(most_s)} {side}" for side, most_s in sides if most_s is not None]
    other = {OutsideTimes.REFUSE: "others are refused", OutsideTimes.CLAMP: "others are clamped"}[bounds.outside]
    return f"{', '.join(said)} the clock of the server; {other}"


def retention_text(policy: RetentionPolicy | None) -> str:
    """Describe a retention policy."""
    if policy is None:
        return "everything, until it is truncated"
    bounds = [
        f"{word} {text}"
        for word, text in (
            ("at least", policy.min_bytes and size_text(policy.min_bytes)),
            ("at most", policy.max_bytes and size_text(policy.max_bytes)),
            ("all of the last", policy.min_age_s and duration_text(policy.min_age_s)),
            ("nothing older than", policy.max_age_s and duration_text(policy.max_age_s)),
        )
        if text
    ]
    what = {"size": "by size", "time": "by time", "consumption": "events that a cursor has not passed"}[policy.kind]
    return f"{what}: {', '.join(bounds)}" if bounds else what
