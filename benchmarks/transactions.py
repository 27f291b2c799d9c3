"""What it costs that events become readable together: transactions beside plain writes of the same events."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from loadtests.protocol import ProtocolClient

from .report import Bound, Quantity, Row, Target, Unit
from .rounds import interleaved, median_by, median_of, spread
from .server import MillraceServer, millrace_server
from .session import Session
from .timing import Latencies, repeat
from .transaction_client import EVENT_COUNT, SEGMENT_COUNT, TransactionClient, through_client

_ROUNDS: Final = 21
"""Short, and in turns: a shared machine is slower for some seconds now and then, which meets both sides so."""
_AT_ONCE_ROUNDS: Final = 5
_AT_ONCE_COUNT: Final = 16
_EVENTS: Final = f"{EVENT_COUNT:,} events of 100 B over {SEGMENT_COUNT} segments"


def measure(session: Session) -> Iterator[Row]:
    """Yield the median time of a transaction beside that of a plain flush, and how many are committed at once."""
    part = Session(session.directory, effort=session.effort / _ROUNDS)
    with millrace_server(session.directory) as server, ProtocolClient(server.address) as client:
        lone = TransactionClient(client, "bench/transactions")
        with server.usage() as usage:
            results = interleaved(
                {
                    "flush": lambda: repeat(lone.flush, count=part.count(10_000), budget_s=part.seconds(8.0)),
                    "commit": lambda: repeat(lone.commit, count=part.count(10_000), budget_s=part.seconds(8.0)),
                },
                rounds=_ROUNDS,
            )
        commits, flushes = results["commit"], results["flush"]
        yield Row(
            name=f"transaction of {_EVENTS}, begin to commit: p50",
            figure=Quantity(median_of(commits, _p50_s), Unit.SECONDS),
            reference_name="a plain flush of the same events",
            reference=Quantity(median_of(flushes, _p50_s), Unit.SECONDS),
            target=Target(Bound.AT_MOST, 1.5),
            syncs=usage.sync_rate(1 / median_of(commits, lambda latencies: 1 / latencies.per_s)),
            conditions=f"{commits[-1].tail()} in the last round; {spread(commits, _p50_s)}",
        )
    with millrace_server(session.directory) as server:
        with server.usage() as usage:
            written = through_client(
                server.address, count=part.count(10_000), budget_s=part.seconds(8.0), rounds=_ROUNDS
            )
        commits, flushes = written["commit"], written["flush"]
        yield Row(
            name=f"transaction of {_EVENTS}, through the client: p50",
            figure=Quantity(median_of(commits, _p50_s), Unit.SECONDS),
            reference_name="write_many and flush of the same events",
            reference=Quantity(median_of(flushes, _p50_s), Unit.SECONDS),
            target=Target(Bound.AT_MOST, 1.5),
            syncs=usage.sync_rate(1 / median_of(commits, lambda latencies: 1 / latencies.per_s)),
            conditions=f"{commits[-1].tail()} in the last round; {spread(commits, _p50_s)}",
        )
    with millrace_server(session.directory) as server:
        with server.usage() as usage:
            seconds = session.seconds(4.0) / _AT_ONCE_ROUNDS
            rounds = [_at_once(server, seconds=seconds) for _ in range(_AT_ONCE_ROUNDS)]
        rates = [1 / each for each in rounds]
        yield Row(
            name=f"transactions of {_EVENTS}, {_AT_ONCE_COUNT} at once",
            figure=Quantity(median_by(rates, float), Unit.COMMITS_PER_SECOND),
            syncs=usage.sync_rate(median_by(rates, float)),
            conditions=f"a connection and a thread each, in one process; {spread(rates, float)}",
        )


def _at_once(server: MillraceServer, *, seconds: float) -> float:
    """Return how long a commit takes when so many connections make one after the other."""

    def work(number: int) -> int:
        writer, count = writers[number], 0
        while time.perf_counter() < deadline_s:
            writer.commit()
            count += 1
        return count

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ProtocolClient(server.address)) for _ in range(_AT_ONCE_COUNT)]
        writers = [TransactionClient(client, "bench/at-once") for client in clients]
        begin_s = time.perf_counter()
        deadline_s = begin_s + seconds
        with ThreadPoolExecutor(_AT_ONCE_COUNT) as pool:
            count = sum(pool.map(work, range(_AT_ONCE_COUNT)))
        return (time.perf_counter() - begin_s) / count


def _p50_s(latencies: Latencies) -> float:
    return latencies.p50_s
