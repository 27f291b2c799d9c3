"""Reading into Spark beside Spark's own source for Kafka: whole streams, and micro-batches.

Spark's jars for Kafka come with each version of Spark, some later than others, so both sources are measured in one
PySpark of an environment of its own, the oldest that Millrace supports. The broker has synced nothing when it
acknowledges; reading is the same with it or without.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from .child import measured
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .rivals import kafka
from .server import MillraceServer, millrace_server
from .session import AbsentError, Session
from .spark_read import LINE_SIZE_BYTES, SparkResult, SparkWork, conditions_of, median_rate, rate_of, spread
from .stream_client import ClientWork

OLDEST_PYTHON: Final = str(Path(__file__).resolve().parents[1] / ".venv" / "spark40" / "bin" / "python")
_EVENTS: Final = 2_000_000
_ROUNDS: Final = 3
_LINES: Final = 10_000
_LIFETIME_S: Final = 600.0
_IDLE_PER_S: Final = 2.0
_LOAD_PER_S: Final = 50_000.0
_FEED_S: Final = 15.0
_NO_SYNCS: Final = SyncRate(0.0, "none made")
_NAMES: Final = {"text": "Spark's text source", "parquet": "Spark's Parquet source"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A broker and what Spark needs for it; or why there is none."""

    broker: kafka.Kafka | None = None
    jars: str = ""
    absent: str = ""

    @property
    def address(self) -> str:
        """Where the broker is; empty without one."""
        return "" if self.broker is None else self.broker.address


Feeders = dict[str, dict[str, list[str]]]
"""By source and load, the command that writes while a query runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesWork(SparkWork):
    """The same as micro-batches, and what writes meanwhile."""

    feeders: Feeders


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesResult:
    """By source: seconds of whole streams; by source and load, of each micro-batch its phases in ms, and `events`."""

    events: int
    available_now_s: dict[str, list[float]]
    batches: dict[str, dict[str, list[dict[str, int]]]]


def measure(session: Session) -> Iterator[Row]:
    """Yield the rows of both; those of Kafka are left out, and said to be absent, where its jars cannot be had.

    Raises:
        AbsentError: the environment is not there, or Kafka is not; the rows before it are valid.
    """
    version = oldest_spark()
    with (
        tempfile.TemporaryDirectory(dir=session.directory) as folder,
        millrace_server(session.directory, lifetime_s=_LIFETIME_S) as server,
        running_rival(session, version) as rival,
    ):
        if rival.broker is not None:
            _fill(session, rival.broker, _payload(Path(folder)))
        yield from _reading(session, server, rival, version=version, folder=folder)
        yield from _batches(session, server, rival, version=version, folder=folder)
    if rival.absent:
        raise AbsentError(f"Kafka is absent: {rival.absent}")


def oldest_spark() -> str:
    """Return the version of PySpark in the environment at `OLDEST_PYTHON`.

    Raises:
        AbsentError: there is none.
    """
    if not Path(OLDEST_PYTHON).exists():
        raise AbsentError("make bench, which makes an environment with an older PySpark")
    program = "import importlib.metadata as m; print(m.version('pyspark'))"
    return subprocess.run([OLDEST_PYTHON, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def running_rival(session: Session, spark_version: str) -> Iterator[Rival]:
    """Run an empty broker until the end of the block, or say why there is none."""
    with contextlib.ExitStack() as stack:
        try:
            jars = kafka.connector(session.directory, spark_version)
            broker = stack.enter_context(kafka.running_broker(session.directory))
        except AbsentError as error:
            rival = Rival(absent=str(error))
        else:
            rival = Rival(broker=broker, jars=",".join(map(str, jars)))
        yield rival


def _fill(session: Session, broker: kafka.Kafka, payload: Path) -> None:
    payload.write_text("".join(os.urandom(LINE_SIZE_BYTES // 2).hex() + "\n" for _ in range(_LINES)))
    broker.fill("bench", count=session.count(_EVENTS), payload=payload)
    for topic in ("idle", "load"):
        broker.fill(topic, count=1, payload=payload)  # Spark wants a topic to be there


def _payload(folder: Path) -> Path:
    return folder / "payload"


# --- whole streams ---


def _reading(session: Session, server: MillraceServer, rival: Rival, *, version: str, folder: str) -> Iterator[Row]:
    work = SparkWork(
        address=server.address, folder=folder, event_count=session.count(_EVENTS), rounds=_ROUNDS,
        kafka=rival.address, jars=rival.jars,
    )  # fmt: skip
    result = measured("spark_reader", work, SparkResult, python=OLDEST_PYTHON, lifetime_s=_LIFETIME_S)
    name = f"read into Spark {version}, events of {LINE_SIZE_BYTES} B, local[2]"
    others = {"kafka": f"Spark's source for Kafka {kafka.VERSION}", **_NAMES}
    for source, reference_name in others.items():
        if source in result.elapsed_s:
            yield Row(
                name=name,
                figure=rate_of(result, "value"),
                reference_name=reference_name,
                reference=rate_of(result, source),
                target=Target(Bound.AT_LEAST, 1.5) if source == "kafka" else None,
                syncs=_NO_SYNCS,
                conditions=f"the value; {conditions_of(result, 'value')}; {reference_name}: "
                f"{conditions_of(result, source)}",
            )
    yield Row(
        name=f"{name}, all columns",
        figure=rate_of(result, "all"),
        reference_name=others["kafka"] if rival.address else "",
        reference=rate_of(result, "kafka all") if rival.address else None,
        syncs=_NO_SYNCS,
        conditions="seven columns of either; " + conditions_of(result, "all"),
    )


# --- micro-batches ---


def _batches(session: Session, server: MillraceServer, rival: Rival, *, version: str, folder: str) -> Iterator[Row]:
    work = BatchesWork(
        address=server.address, folder=folder, event_count=session.count(_EVENTS), rounds=_ROUNDS,
        kafka=rival.address, jars=rival.jars, feeders=_feeders(session, server, rival, Path(folder)),
    )  # fmt: skip
    result = measured("spark_batches", work, BatchesResult, python=OLDEST_PYTHON, lifetime_s=_LIFETIME_S)
    kafka_name = f"Spark's source for Kafka {kafka.VERSION}"
    ours_s = result.available_now_s["millrace"]
    yield Row(
        name=f"stream of {result.events:,} events of {LINE_SIZE_BYTES} B with AvailableNow, Spark {version}, local[2]",
        figure=median_rate(result.events, ours_s),
        reference_name=kafka_name if rival.address else "",
        reference=median_rate(result.events, result.available_now_s["kafka"]) if rival.address else None,
        target=Target(Bound.AT_LEAST, 1.0) if rival.address else None,
        syncs=_NO_SYNCS,
        conditions=f"from start() to the end of the query, to the sink noop; {spread(ours_s)}",
    )
    for load, what in (("idle", "one event"), ("load", f"{_LOAD_PER_S:,.0f} events/s")):
        by_source = {source: phases for source, loads in result.batches.items() if (phases := loads[load])}
        ours = by_source["millrace"]
        yield Row(
            name=f"micro-batch at {what}, from trigger to commit, Spark {version}, local[2]: p50",
            figure=_median(ours, "triggerExecution"),
            reference_name=kafka_name if "kafka" in by_source else "",
            reference=_median(by_source["kafka"], "triggerExecution") if "kafka" in by_source else None,
            conditions="; ".join(f"{source}: {_parts(phases)}" for source, phases in by_source.items()),
        )


def _feeders(session: Session, server: MillraceServer, rival: Rival, folder: Path) -> Feeders:
    """Return the commands of what writes while a query runs, by source and load."""
    duration_s = session.seconds(_FEED_S)
    feeders: Feeders = {"millrace": {}, "kafka": {}}
    for load, per_s in (("idle", _IDLE_PER_S), ("load", _LOAD_PER_S)):
        work = ClientWork(
            what="paced", address=server.address, stream=f"bench/{load}", duration_s=duration_s, per_s=per_s
        )
        feeders["millrace"][load] = [sys.executable, "-m", "benchmarks.stream_client", json.dumps(asdict(work))]
        if rival.broker is not None:
            feeders["kafka"][load] = rival.broker.producer(
                load, count=round(per_s * duration_s), per_s=per_s, payload=_payload(folder)
            )
    return feeders


def _median(batches: list[dict[str, int]], phase: str) -> Quantity:
    return Quantity(statistics.median(batch.get(phase, 0) for batch in batches) / 1000, Unit.SECONDS)


def _parts(batches: list[dict[str, int]]) -> str:
    """Return where the time of micro-batches goes."""
    phases = ("latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets")
    events = statistics.median(batch["events"] for batch in batches)
    parts = ", ".join(f"{phase} {_median(batches, phase)}" for phase in phases)
    return f"{len(batches)} batches of {events:,.0f} events, {parts}"
