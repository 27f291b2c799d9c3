"""Options of the object store."""

from dataclasses import dataclass

from millrace.server.bounds import demand, demand_above_zero, demand_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreOptions:
    """How the object store is asked, where `store` names one; checked when made.

    Attributes:
        attempt_s: how long one request may take; then it counts as lost, and is made again.
        patience_s: how long requests are made again before the store counts as unavailable. A store that asks to slow
            down is obeyed for as long as it does.
        puts_count_max: chunks that are written at once; further ones wait.
    """

    attempt_s: float = 15.0
    patience_s: float = 60.0
    puts_count_max: int = 16

    def __post_init__(self) -> None:
        demand_above_zero(self, "attempt_s")
        demand_at_least(self, 0.0, "patience_s")
        demand(1 <= self.puts_count_max <= 256, self, "puts_count_max", "1 to 256")
