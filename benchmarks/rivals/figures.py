"""What every rival is asked: one append at a time, its best rate, and the rate of its Python client."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.report import Quantity, Row, SyncRate, Unit
from benchmarks.timing import Latencies

EVENT_SIZE_BYTES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Events of 100 B acknowledged per second, and how they were sent."""

    events_per_s: float
    syncs: SyncRate | None
    conditions: str

    @property
    def figure(self) -> Quantity:
        """The rate as a figure of the report."""
        return Quantity(self.events_per_s, Unit.EVENTS_PER_SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalFigures:
    """One rival, measured."""

    name: str
    # What its acknowledgement promises, as configured here.
    acknowledges: str
    one_at_a_time: Latencies
    one_at_a_time_syncs: SyncRate | None
    best: Rate
    # Through the client library that a Python programmer would use, one event a call, batched as well as it can.
    python_client: Rate

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the report."""
        yield Row(
            name=f"{self.name}: one append at a time, p50",
            figure=self.one_at_a_time.p50,
            syncs=self.one_at_a_time_syncs,
            conditions=f"{self.acknowledges}; {self.one_at_a_time.tail()}",
        )
        for name, rate in (("best append rate", self.best), ("Python client's append rate", self.python_client)):
            yield Row(name=f"{self.name}: {name}", figure=rate.figure, syncs=rate.syncs, conditions=rate.conditions)
