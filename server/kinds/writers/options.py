"""Settings of writers."""

from dataclasses import dataclass, fields

from millrace.server.bounds import demand_above_zero


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersOptions:
    """How long the event numbers of idle writers are kept, while servers run; checked when made.

    Attributes:
        named_idle_s: how long the server remembers an idle writer with an id. Only time in which a server runs counts,
            in whole steps of a sixteenth of the shorter of these two times.
        unnamed_idle_s: how long the server remembers an idle writer without an id. Set it above the longest time that a
            client may be disconnected and come back.
        marks_count_max: for how many ids, the last ones, the server remembers that they have expired; for others it
            remembers that for `named_idle_s`. Each takes about 150 B on disk.
    """

    named_idle_s: int = 30 * 24 * 3600
    unnamed_idle_s: int = 24 * 3600
    marks_count_max: int = 100_000

    def __post_init__(self) -> None:
        demand_above_zero(self, *(item.name for item in fields(self)))
