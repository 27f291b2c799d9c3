"""Reading into Spark beside Spark's own sources on the same bytes, in one local Spark."""

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .child import measured
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .server import millrace_server
from .session import Session

LINE_SIZE_BYTES: Final = 100
_EVENTS: Final = 3_000_000
_ROUNDS: Final = 3
_NO_SYNCS: Final = SyncRate(0.0, "none made")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWork:
    """What a local Spark reads or writes, and how often.

    Attributes:
        kafka: the address of a broker, which has the events to read in the topic `bench`; empty for none.
        jars: what Spark needs for it, with commas.
    """

    address: str
    folder: str
    event_count: int
    rounds: int
    kafka: str = ""
    jars: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkResult:
    """Seconds of wall and of processor time (the JVM and its Python workers, not the server) by source and round."""

    events: int
    elapsed_s: dict[str, list[float]]
    cpu_s: dict[str, list[float]]


def measure(session: Session) -> Iterator[Row]:
    """Yield the rows of the design, and one with every column."""
    with (
        tempfile.TemporaryDirectory(dir=session.directory) as folder,
        millrace_server(session.directory) as server,
    ):
        work = SparkWork(address=server.address, folder=folder, event_count=session.count(_EVENTS), rounds=_ROUNDS)
        begin_cpu_s = server.cpu_s()
        result = measured("spark_reader", work, SparkResult)
        server_cpu_s = server.cpu_s() - begin_cpu_s
    ours = rate_of(result, "value")
    for source, name, ratio in (("text", "Spark's text source", 3.0), ("parquet", "Spark's Parquet source", 0.5)):
        yield Row(
            name=f"read into Spark, events of {LINE_SIZE_BYTES} B, local[2]",
            figure=ours,
            reference_name=name,
            reference=rate_of(result, source),
            target=Target(Bound.AT_LEAST, ratio),
            syncs=_NO_SYNCS,
            conditions=f"the column `value`; {conditions_of(result, 'value')}; {name}: {conditions_of(result, source)}",
        )
    yield Row(
        name=f"read into Spark, events of {LINE_SIZE_BYTES} B with all seven columns, local[2]",
        figure=rate_of(result, "all"),
        syncs=_NO_SYNCS,
        conditions=f"{conditions_of(result, 'all')}; the server used {server_cpu_s:.1f} s of processor in all",
    )


def rate_of(result: SparkResult, source: str) -> Quantity:
    """Return the rate at which a source was read."""
    return median_rate(result.events, result.elapsed_s[source])


def median_rate(events: int, rounds_s: list[float]) -> Quantity:
    """Return the rate of the median round."""
    return Quantity(events / statistics.median(rounds_s), Unit.EVENTS_PER_SECOND)


def conditions_of(result: SparkResult, source: str) -> str:
    """Return how the rounds of a source went."""
    cpu_us = 1e6 * statistics.median(result.cpu_s[source]) / result.events
    return (
        f"{result.events:,} events to the sink noop, {spread(result.elapsed_s[source])}, "
        f"{cpu_us:.2f} µs of processor an event in Spark"
    )


def spread(rounds_s: list[float]) -> str:
    """Return how many rounds there were, and how long the shortest and the longest took."""
    return f"median of {len(rounds_s)} rounds, {min(rounds_s):.2f} to {max(rounds_s):.2f} s"
