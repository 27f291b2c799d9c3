"""Settings of what streams, and their writers, do by themselves."""

from dataclasses import dataclass, fields

from millrace.server.bounds import demand, demand_above_zero, demand_at_least
from millrace.wire.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsOptions:
    """Rhythms and thresholds of scaling and retention; checked when made.

    Attributes:
        tick_s: how often the loads of segments are measured.
        retention_interval_s: how often streams are searched for what may go.
        fast_window_s: over how long rates are averaged, weighted by age, to see that a segment is hot.
        slow_window_s: over how long rates are averaged, weighted by age, to see that neighbours are cold.
        split_above: a segment is hot above this many times its target.
        split_after_s: a segment is split when it was hot for this long.
        merge_below: neighbours are cold when together they are below this part of the target of one.
        merge_after_s: neighbours are merged when they were cold for this long.
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
class TransactionsOptions:
    """Bounds of transactions; checked when made. Leases and ages count while the server runs.

    Attributes:
        open_count_max: transactions that may be open at once; further ones are told to try again.
        open_per_stream_count_max: transactions that may be open over one stream at once.
        open_per_session_count_max: transactions that may be open of one client, of those begun since the server
            started.
        open_parts_count_max: parts of all open transactions together; each is a segment in memory.
        open_size_bytes_max: memory that open transactions take with their parts, as it is estimated: 1.2 KB each,
            2.5 KB a part, and for all that began in one epoch 150 B once for each open segment of a stream.
        lease_s_max: the longest lease that a client may ask for.
        tick_s: how often leases are looked at.
        named_outcome_s: how long it is known how a transaction with a name ended.
        unnamed_outcome_s: how long it is known how a transaction without a name ended.
        outcomes_count_max: how many ended transactions are known at most; those without names are forgotten first.
        producers_count_max: producers that may be known; none is ever forgotten, and further ones are refused.
    """

    open_count_max: int = 10_000
    open_per_stream_count_max: int = 2_000
    open_per_session_count_max: int = 1_000
    open_parts_count_max: int = 200_000
    open_size_bytes_max: int = 512 * MIB
    lease_s_max: int = 24 * 3600
    tick_s: float = 0.25
    named_outcome_s: int = 7 * 24 * 3600
    unnamed_outcome_s: int = 3600
    outcomes_count_max: int = 1_000_000
    producers_count_max: int = 100_000

    def __post_init__(self) -> None:
        demand_above_zero(self, *(item.name for item in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersOptions:
    """How long the event numbers of idle writers are kept, while servers run; checked when made.

    Attributes:
        named_idle_s: how long the event numbers of an idle writer with an id are kept; only time that servers run
            counts, in whole sixteenths of the shorter of the two times.
        unnamed_idle_s: how long those of one without an id are kept: set it above the longest time that a client may be
            cut off and come back.
        marks_count_max: of so many ids, those that expired last, it is kept that they did; of the others for
            `named_idle_s` again. It costs about 150 B of the checkpoint each.
    """

    named_idle_s: int = 30 * 24 * 3600
    unnamed_idle_s: int = 24 * 3600
    marks_count_max: int = 100_000

    def __post_init__(self) -> None:
        demand_above_zero(self, *(item.name for item in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """How many streams and cursors have metrics of their own; checked when made.

    Attributes:
        streams_count_max: streams with metrics of their own, the busiest ones; the others are counted together.
        cursors_count_max: cursors with metrics of their own, those that lag most; the others are counted together.
    """

    streams_count_max: int = 50
    cursors_count_max: int = 100

    def __post_init__(self) -> None:
        demand_at_least(self, 0, "streams_count_max", "cursors_count_max")
