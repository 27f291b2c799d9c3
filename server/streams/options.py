"""Settings of what streams do by themselves, and of their metrics."""

from dataclasses import dataclass

from millrace.server.bounds import demand, demand_above_zero, demand_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsOptions:
    """Rhythms and thresholds of scaling and retention; checked when made.

    Attributes:
        tick_s: how often the load of each segment is measured.
        retention_interval_s: how often the server looks for events that retention policies allow it to delete.
        fast_window_s: the time over which a rate is averaged to decide whether a segment is hot.
        slow_window_s: the time over which a rate is averaged to decide whether neighbours are cold.
        split_above: a segment is hot when its load is above this many times its target.
        split_after_s: how long a segment must be hot before it is split.
        merge_below: neighbours are cold when their load together is below this many times the target of one segment.
        merge_after_s: how long neighbours must be cold before they are merged.
    """

    tick_s: float = 2.0
    retention_interval_s: float = 6.0
    fast_window_s: float = 10.0
    slow_window_s: float = 60.0
    split_above: float = 1.1
    split_after_s: float = 15.0
    merge_below: float = 0.5
    merge_after_s: float = 45.0

    def __post_init__(self) -> None:
        demand_above_zero(self, "tick_s", "retention_interval_s", "fast_window_s")
        demand(self.slow_window_s >= self.fast_window_s, self, "slow_window_s", "at least fast_window_s")
        # A split gives two segments of half the load each, together what was above the target: never cold at once.
        demand(0 <= self.merge_below < 1, self, "merge_below", "at least 0 and below 1")
        demand_at_least(self, 1, "split_above")
        demand_at_least(self, 0, "split_after_s", "merge_after_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """How many streams and cursors have metrics of their own; checked when made.

    Attributes:
        streams_count_max: how many streams have their own metrics, the busiest ones; all others are counted together.
        cursors_count_max: how many cursors have their own metrics, those with the largest lag; all others are counted
            together.
        cursor_silence_s: a cursor that ends by not being set, such as that of a query in Spark, leaves the metrics when
            it was not set for this time. It still holds events for retention until it ends.
    """

    streams_count_max: int = 50
    cursors_count_max: int = 100
    cursor_silence_s: float = 3600.0

    def __post_init__(self) -> None:
        demand_at_least(self, 0, "streams_count_max", "cursors_count_max")
        demand_above_zero(self, "cursor_silence_s")
