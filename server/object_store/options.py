"""Options of the object store."""

from dataclasses import dataclass
from typing import Final

from millrace.server.bounds import demand, demand_above_zero, demand_at_least
from millrace.wire.limits import KIB, MIB

BYTES_PER_S_MIN: Final = MIB
"""The default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreOptions:
    """How the object store is asked, where `store` names one; checked when made.

    Attributes:
        attempt_s: how long one request may take, not counting the time for its bytes; then it counts as lost, and is
            made again.
        bytes_per_s_min: a request may take longer for its bytes: as long as it takes at so many a second. Lower it if
            the way to the store is slow: a chunk may have 32 MiB, and several are sent at once.
        patience_s: how long requests are made again before the store counts as unavailable. So does one that asks to
            slow down for all of that time; it is asked again later.
        puts_count_max: chunks that are written at once; further ones wait.
        small_puts_per_s_max: takes the place of container.small_flushes_per_s_max, as each flush is a PUT.
        read_size_bytes: of one GET; takes the place of cache.page_size_bytes, as far as the cache is large enough.
        read_ahead_bytes: takes the place of cache.read_ahead_bytes, as a store is far away.
        reads_count_max: GETs of readers at once; takes the place of cache.fetches_max.
        reserve_bytes: kept in the store if the log is there, and deleted when the store is full: room for the appends
            that are under way then, for truncations and deletions, and for the copy of the checkpoint after which
            chunks are deleted. 0: none.
        lease_s: how long a server may be silent in the store until another one may take its history over; it renews its
            lease three times in that time, with a PUT each. 0: 10 s, or 3 s if the log is in the store.
    """

    attempt_s: float = 15.0
    bytes_per_s_min: int = BYTES_PER_S_MIN
    patience_s: float = 60.0
    puts_count_max: int = 16
    small_puts_per_s_max: float = 20.0
    read_size_bytes: int = 4 * MIB
    read_ahead_bytes: int = 32 * MIB
    reads_count_max: int = 32
    # Of appends, container.queue_size_bytes_high may be under way; a record has 16 MiB at most, the rest is for a copy.
    reserve_bytes: int = 96 * MIB
    lease_s: float = 0.0

    def __post_init__(self) -> None:
        demand_above_zero(self, "attempt_s")
        demand_at_least(self, KIB, "bytes_per_s_min")
        demand_at_least(self, 0.0, "patience_s", "small_puts_per_s_max")
        demand_at_least(self, 0, "read_ahead_bytes", "reserve_bytes")
        demand_at_least(self, 1, "reads_count_max")
        demand(64 * KIB <= self.read_size_bytes <= 64 * MIB, self, "read_size_bytes", "64 KiB to 64 MiB")
        demand(1 <= self.puts_count_max <= 256, self, "puts_count_max", "1 to 256")
        demand(self.lease_s == 0.0 or 1.0 <= self.lease_s <= 600.0, self, "lease_s", "1 s to 10 min, or 0")
