"""Writing from Spark beside Spark's own sink for Kafka.

Millrace has synced what a query has committed, each event once. The broker acknowledges from the page cache, and
Spark's sink repeats events when a task fails.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .child import measured
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .rivals import kafka
from .server import MillraceServer, millrace_server
from .session import AbsentError, Session
from .spark_kafka import OLDEST_PYTHON, Rival, oldest_spark, running_rival
from .spark_read import LINE_SIZE_BYTES, SparkWork, median_rate, spread

_EVENTS: Final = 1_000_000
_ROUNDS: Final = 3
_LIFETIME_S: Final = 600.0
_PROMISED: Final = Quantity(0.6e6, Unit.EVENTS_PER_SECOND)
_WAYS: Final = {"batch": "a batch write", "stream": "a query with AvailableNow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterResult:
    """Seconds by sink and way of writing (`batch`, `stream`), and how long Millrace was written to in all."""

    events: int
    version: str
    elapsed_s: dict[str, list[float]]
    millrace_s: float


def measure(session: Session) -> Iterator[Row]:
    """Yield the rows of the newest PySpark beside the design, and of the oldest beside Kafka.

    Raises:
        AbsentError: the environment of the oldest is not there, or Kafka is not; the rows before it are valid.
    """
    with millrace_server(session.directory, lifetime_s=_LIFETIME_S) as server:
        result, syncs = _measured(session, server, Rival(), python=sys.executable)
        for way in _WAYS:
            yield _row(result, way, syncs, reference_name="the design", reference=_PROMISED, ratio=1.0)
    version = oldest_spark()
    with (
        millrace_server(session.directory, lifetime_s=_LIFETIME_S) as server,
        running_rival(session, version) as rival,
    ):
        result, syncs = _measured(session, server, rival, python=OLDEST_PYTHON)
    for way in _WAYS:
        if rival.address:
            reference = median_rate(result.events, result.elapsed_s[f"kafka {way}"])
            name = f"Spark's sink for Kafka {kafka.VERSION}"
            yield _row(result, way, syncs, reference_name=name, reference=reference, ratio=None)
        else:
            yield _row(result, way, syncs, reference_name="the design", reference=_PROMISED, ratio=None)
    if rival.absent:
        raise AbsentError(f"Kafka is absent: {rival.absent}")


def _measured(session: Session, server: MillraceServer, rival: Rival, *, python: str) -> tuple[WriterResult, SyncRate]:
    with tempfile.TemporaryDirectory(dir=session.directory) as folder, server.usage() as usage:
        work = SparkWork(
            address=server.address, folder=str(Path(folder)), event_count=session.count(_EVENTS), rounds=_ROUNDS,
            kafka=rival.address, jars=rival.jars,
        )  # fmt: skip
        result = measured("spark_writer", work, WriterResult, python=python, lifetime_s=_LIFETIME_S)
    return result, SyncRate(usage.syncs / result.millrace_s, "own count")


def _row(
    result: WriterResult, way: str, syncs: SyncRate, *, reference_name: str, reference: Quantity, ratio: float | None
) -> Row:
    rounds_s = result.elapsed_s[f"millrace {way}"]
    return Row(
        name=f"written from Spark {result.version}, events of {LINE_SIZE_BYTES} B, {_WAYS[way]}, local[2]",
        figure=median_rate(result.events, rounds_s),
        reference_name=reference_name,
        reference=reference,
        target=None if ratio is None else Target(Bound.AT_LEAST, ratio),
        syncs=syncs,
        conditions=f"{result.events:,} events out of Parquet, {spread(rounds_s)}",
    )
