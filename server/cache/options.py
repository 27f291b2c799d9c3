"""Options of the cache."""

from dataclasses import dataclass

from millrace.server.bounds import demand, demand_at_least
from millrace.wire.limits import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How much is kept, and how far reads run ahead of sequential readers; checked when made.

    Attributes:
        budget_bytes: memory for the cache of old events. Up to `fetches_max` pages that are being fetched come on top.
        page_size_bytes: how much is fetched from tier 2 at once.
        protected_share: the share of the cache for pages that were read more than once; other reads use the rest.
        read_ahead_bytes: how far pages are fetched ahead of a reader that reads in order; 0 turns this off.
        read_ahead_share: the share of the cache for pages that were fetched ahead and not read yet.
        fetches_max: how many fetches run at the same time; others wait.
        readers_max: for how many readers the server remembers that they read in order.
    """

    budget_bytes: int = 256 * MIB
    # Large, because a fetch costs a thread switch.
    page_size_bytes: int = 1 * MIB
    protected_share: float = 0.8
    read_ahead_bytes: int = 4 * MIB
    read_ahead_share: float = 0.25
    fetches_max: int = 16
    readers_max: int = 1024

    def __post_init__(self) -> None:
        demand(4 * KIB <= self.page_size_bytes <= 64 * MIB, self, "page_size_bytes", "4 KiB to 64 MiB")
        demand(
            self.budget_bytes >= 4 * self.page_size_bytes, self, "budget_bytes", "at least four times page_size_bytes"
        )
        demand(0.0 <= self.protected_share <= 0.95, self, "protected_share", "0 to 0.95")
        demand_at_least(self, 0, "read_ahead_bytes")
        demand(0.0 <= self.read_ahead_share <= 1.0, self, "read_ahead_share", "0 to 1")
        demand_at_least(self, 1, "fetches_max", "readers_max")
