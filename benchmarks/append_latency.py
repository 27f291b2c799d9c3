"""One durable append at a time: what the path through the server costs over the bare disk and the bare loopback."""

from collections.abc import Iterator
from typing import Final

from loadtests.protocol import ProtocolClient

from .floors import loopback_round_trip, synced_write_100
from .latency_client import LoneAppender
from .report import Bound, Quantity, Row, Target, Unit
from .rounds import interleaved, median_of, spread
from .server import millrace_server
from .session import Session
from .timing import Latencies, repeat

_ROUNDS: Final = 5
_SIZE_BYTES: Final = 100


def measure(session: Session) -> Iterator[Row]:
    """Yield the median latency of a lone append, beside what it cannot beat in the same rounds."""
    part = Session(session.directory, effort=session.effort / _ROUNDS)
    with millrace_server(session.directory) as server, ProtocolClient(server.address) as client:
        appender = LoneAppender(client, "raw/lone", payload_size=_SIZE_BYTES)
        with server.usage() as usage:
            results = interleaved(
                {
                    "disk": lambda: synced_write_100(part).latencies,
                    "loopback": lambda: loopback_round_trip(part),
                    "append": lambda: _appends(part, appender),
                },
                rounds=_ROUNDS,
            )
    floor_s = median_of(results["disk"], _p50_s) + median_of(results["loopback"], _p50_s)
    appends = results["append"]
    yield Row(
        name="durable append of 100 B, 1 connection x 1 outstanding: p50",
        figure=Quantity(median_of(appends, _p50_s), Unit.SECONDS),
        reference_name="bare write + sync, and a bare loopback round trip",
        reference=Quantity(floor_s, Unit.SECONDS),
        target=Target(Bound.AT_MOST, 1.5),
        syncs=usage.sync_rate(1 / median_of(appends, lambda latencies: 1 / latencies.per_s)),
        conditions=f"{appends[-1].tail()} in the last round; {spread(appends, _p50_s)}",
    )


def _appends(session: Session, appender: LoneAppender) -> Latencies:
    return repeat(appender.append, count=session.count(20_000), budget_s=session.seconds(5.0))


def _p50_s(latencies: Latencies) -> float:
    return latencies.p50_s
