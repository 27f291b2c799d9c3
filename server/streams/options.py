"""Settings of what streams, and their writers, do by themselves."""

from dataclasses import dataclass

from millrace.server.errors import ConfigurationError
from millrace.wire.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsOptions:
    """Rhythms and thresholds of scaling and retention; checked when made.

    Attributes:
        tick_s: the loads of segments are measured this often.
        retention_interval_s: streams are searched for what may go this often.
        fast_window_s, slow_window_s: over how long rates are averaged, weighted by age.
        split_above: a segment is hot above this many times its target,
        split_after_s: and is split when it was hot for this long.
        merge_below: neighbours are cold when together they are below this part of the target of one,
        merge_after_s: and are merged when they were cold for this long.
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
        if min(self.tick_s, self.retention_interval_s, self.fast_window_s) <= 0:
            raise ConfigurationError("tick_s, retention_interval_s and fast_window_s must be above 0")
        if self.slow_window_s < self.fast_window_s:
            raise ConfigurationError("slow_window_s must not be below fast_window_s")
        # A split gives two segments of half the load each, together what was above the target: never cold at once.
        if not 0 <= self.merge_below < 1 <= self.split_above:
            raise ConfigurationError("merge_below must be below 1, split_above at least 1")
        if min(self.split_after_s, self.merge_after_s) < 0:
            raise ConfigurationError("split_after_s and merge_after_s must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsOptions:
    """Bounds of transactions; checked when made.

    Attributes:
        open_count_max: transactions that may be open at once,
        open_per_stream_count_max: of them over one stream,
        open_per_session_count_max: and begun by one client since the server started.
        open_parts_count_max: parts that the open ones may have together; each is a segment in memory.
        open_size_bytes_max: memory that the open ones may take with their parts, as it is estimated.
        lease_s_max: the longest lease that a client may ask for.
        tick_s: leases are looked at this often.
        named_outcome_s: for how long it is known how one with a name ended, counted while the server runs,
        unnamed_outcome_s: and one without.
        outcomes_count_max: of so many at most.
        producers_count_max: producers that may be known; none is ever forgotten.
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
        bounds = (
            self.open_count_max,
            self.open_per_stream_count_max,
            self.open_per_session_count_max,
            self.open_parts_count_max,
            self.open_size_bytes_max,
            self.lease_s_max,
            self.outcomes_count_max,
            self.producers_count_max,
        )
        if min(bounds) <= 0:
            raise ConfigurationError("the bounds of transactions must be above 0")
        if min(self.tick_s, self.named_outcome_s, self.unnamed_outcome_s) <= 0:
            raise ConfigurationError("tick_s, named_outcome_s and unnamed_outcome_s must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersOptions:
    """For how long the event numbers of idle writers are kept; checked when made.

    Attributes:
        named_idle_s: of a writer with an id.
        unnamed_idle_s: of a writer without one: how long it may be without a connection and still be exactly-once.
        marks_count_max: of so many ids it is kept that they have expired, of those that did so last; of the others for
            `named_idle_s` again.
    """

    named_idle_s: int = 30 * 24 * 3600
    unnamed_idle_s: int = 24 * 3600
    marks_count_max: int = 100_000

    def __post_init__(self) -> None:
        if min(self.named_idle_s, self.unnamed_idle_s) <= 0:
            raise ConfigurationError("named_idle_s and unnamed_idle_s must be above 0")
        if self.marks_count_max <= 0:
            raise ConfigurationError("marks_count_max must be above 0")
