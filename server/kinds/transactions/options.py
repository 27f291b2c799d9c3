"""Settings of transactions."""

from dataclasses import dataclass, fields

from millrace.server.bounds import demand_above_zero
from millrace.wire.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsOptions:
    """Bounds of transactions; checked when made. Leases and ages count while the server runs.

    Attributes:
        open_count_max: how many transactions may be open at the same time; for others, clients have to try again. The
            addresses of clients share this bound and the others of all transactions: each may have as much as is free.
        open_per_stream_count_max: how many transactions may be open over one stream.
        open_per_session_count_max: how many transactions of one client may be open; those from before the last start of
            the server do not count.
        open_parts_count_max: how many parts all open transactions may have together; each is a segment in memory.
        open_size_bytes_max: how much memory open transactions may use together. It is estimated: 1.2 KB each, 2.5 KB
            for a part, and 150 B for each open segment of their streams.
        lease_s_max: the longest lease that a client may ask for.
        tick_s: how often the server checks whether leases have run out.
        named_outcome_s: how long the server remembers how a transaction with a name ended.
        unnamed_outcome_s: how long the server remembers how a transaction without a name ended.
        outcomes_count_max: how many ended transactions the server remembers; those without names are forgotten first.
        producers_count_max: how many producers the server may know; further ones are refused. One address may make as
            many known as are free. A producer that committed nothing is forgotten with its last transaction.
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
