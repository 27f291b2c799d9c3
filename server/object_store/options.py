"""Options of the object store."""

from dataclasses import dataclass

from millrace.server.bounds import demand, demand_above_zero, demand_at_least
from millrace.wire.limits import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreOptions:
    """How the object store is asked, where `store` names one; checked when made.

    Attributes:
        attempt_s: how long one request may take, with all of its bytes (a chunk may have 32 MiB, and several are sent
            at once); then it counts as lost, and is made again. Raise it if the way to the store is slow.
        patience_s: how long requests are made again before the store counts as unavailable. A store that asks to slow
            down is obeyed for as long as it does.
        puts_count_max: chunks that are written at once; further ones wait.
        small_puts_per_s_max: takes the place of container.small_flushes_per_s_max, as each flush is a PUT.
        read_size_bytes: of one GET; takes the place of cache.page_size_bytes, as far as the cache is large enough.
        read_ahead_bytes: takes the place of cache.read_ahead_bytes, as a store is far away.
        reads_count_max: GETs of readers at once; takes the place of cache.fetches_max.
    """

    attempt_s: float = 15.0
    patience_s: float = 60.0
    puts_count_max: int = 16
    small_puts_per_s_max: float = 20.0
    read_size_bytes: int = 4 * MIB
    read_ahead_bytes: int = 32 * MIB
    reads_count_max: int = 32

    def __post_init__(self) -> None:
        demand_above_zero(self, "attempt_s")
        demand_at_least(self, 0.0, "patience_s", "small_puts_per_s_max")
        demand_at_least(self, 0, "read_ahead_bytes")
        demand_at_least(self, 1, "reads_count_max")
        demand(64 * KIB <= self.read_size_bytes <= 64 * MIB, self, "read_size_bytes", "64 KiB to 64 MiB")
        demand(1 <= self.puts_count_max <= 256, self, "puts_count_max", "1 to 256")
