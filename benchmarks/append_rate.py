"""Raw appends at full rate: small ones against Redis, large ones against the bare disk."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.rivals.redis_streams import redis_streams

from .appender import AppenderOptions, AppenderResult
from .child import measured
from .floors import MIB, SyncedWrites, synced_write_mib
from .report import Bound, Quantity, Row, Target, Unit
from .rounds import ROUNDS, interleaved, median_by, median_of, spread
from .server import MillraceServer, Usage, millrace_server
from .session import AbsentError, Session


@dataclass(frozen=True, slots=True)
class Load:
    """One shape of load."""

    connections: int
    outstanding: int
    payload_size: int

    def __str__(self) -> str:
        size = f"{self.payload_size // MIB} MiB" if self.payload_size >= MIB else f"{self.payload_size:,} B"
        return f"appends of {size}, {self.connections} connections x {self.outstanding} outstanding"


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one load."""

    result: AppenderResult
    usage: Usage

    @property
    def per_s(self) -> float:
        """Appends acknowledged per second."""
        return self.result.appends / self.result.elapsed_s

    def conditions(self) -> str:
        """Return latencies, and who used the processors."""
        result = self.result
        p50, p99, p999 = (Quantity(value, Unit.SECONDS) for value in (result.p50_s, result.p99_s, result.p999_s))
        return (
            f"p50 {p50}, p99 {p99}, p99.9 {p999}; processors: generator {result.cpu_s / result.elapsed_s:.2f}, "
            f"server {self.usage.cpu_share(self.per_s):.2f}"
        )


_MANY_SMALL: Final = Load(16, 256, 100)
_LARGE: Final = (Load(1, 4, MIB), Load(8, 2, MIB))
LOADS: Final = (_MANY_SMALL, Load(16, 16, 100), Load(16, 16, 4096), *_LARGE)


def measure(session: Session) -> Iterator[Row]:
    """Yield a row for each load: the median of interleaved rounds on one server."""
    part = Session(session.directory, effort=session.effort / ROUNDS)
    with millrace_server(session.directory) as server:
        numbers = itertools.count()
        work: dict[Load | str, Callable[[], Round | SyncedWrites]] = {
            load: partial(_round, part, server, load, numbers) for load in LOADS
        }
        work["disk"] = lambda: synced_write_mib(part)
        results = interleaved(work)
    disk = [result for result in results["disk"] if isinstance(result, SyncedWrites)]
    for load in LOADS:
        rounds = [result for result in results[load] if isinstance(result, Round)]
        middle = median_by(rounds, _per_s)
        conditions = f"{middle.conditions()}; {spread(rounds, _per_s)}"
        if load in _LARGE:
            yield Row(
                name=str(load),
                figure=Quantity(middle.per_s * load.payload_size, Unit.BYTES_PER_SECOND),
                reference_name="bare synced writes of 1 MiB",
                reference=Quantity(median_of(disk, lambda writes: writes.bytes_per_s.value), Unit.BYTES_PER_SECOND),
                target=Target(Bound.AT_LEAST, 0.6),
                syncs=middle.usage.sync_rate(middle.per_s),
                conditions=conditions,
            )
            continue
        rival = _redis(session) if load == _MANY_SMALL else None
        yield Row(
            name=str(load),
            figure=Quantity(middle.per_s, Unit.APPENDS_PER_SECOND),
            reference_name="Redis Streams, appendfsync always, its own benchmark" if rival else "",
            reference=rival,
            target=Target(Bound.AT_LEAST, 3.0) if rival else None,
            syncs=middle.usage.sync_rate(middle.per_s),
            conditions=conditions,
        )


def _redis(session: Session) -> Quantity | None:
    with contextlib.suppress(AbsentError):
        return Quantity(session.once(redis_streams).best.events_per_s, Unit.APPENDS_PER_SECOND)
    return None


def _round(session: Session, server: MillraceServer, load: Load, numbers: Iterator[int]) -> Round:
    # What the round before left is written to tier 2 first, or it would be measured here.
    server.settle()
    options = AppenderOptions(
        address=server.address,
        connections=load.connections,
        outstanding=load.outstanding,
        payload_size=load.payload_size,
        duration_s=session.seconds(9.0),
        warm_up_s=0.3,
        segment_prefix=f"raw/rate-{next(numbers)}",
    )
    with server.usage() as usage:
        result = measured("appender", options, AppenderResult)
    return Round(result, usage)


def _per_s(result: Round) -> float:
    return result.per_s
