"""Events through our own client: blocks from lists, and one by one with a future each, against the rivals' clients."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from .child import measured
from .floors import SyncedWrites, synced_write_mib
from .report import Bound, Quantity, Row, Target, Unit
from .rivals import postgres, rabbitmq_streams, redis_streams
from .rounds import ROUNDS, interleaved, median_by, median_of, spread
from .server import MillraceServer, Usage, millrace_server
from .session import AbsentError, Session
from .stream_client import ClientResult, ClientWork

_EVENT_SIZE_BYTES: Final = 100
_MANY_PER_S: Final = 10e6
_ONE_BY_ONE_PER_S: Final = 1e6


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one way to write."""

    result: ClientResult
    usage: Usage

    def conditions(self) -> str:
        """Return who used the processors; start-up is in it."""
        share = self.result.cpu_s / self.result.elapsed_s
        return f"processors: client {share:.2f}, server {self.usage.cpu_s / self.result.elapsed_s:.2f}"


def measure(session: Session) -> Iterator[Row]:
    """Yield a row for each way to write, the last against each rival that is here."""
    part = Session(session.directory, effort=session.effort / ROUNDS)
    with millrace_server(session.directory) as server:
        numbers = itertools.count()
        work: dict[str, Callable[[], Round | SyncedWrites]] = {
            what: partial(_round, part, server, what, numbers) for what in ("write_many", "write")
        }
        work["disk"] = lambda: synced_write_mib(part)
        results = interleaved(work)
    disk = [result for result in results["disk"] if isinstance(result, SyncedWrites)]
    half_of_disk = median_of(disk, lambda writes: writes.bytes_per_s.value) / _EVENT_SIZE_BYTES / 2
    yield _row(
        [result for result in results["write_many"] if isinstance(result, Round)],
        name="events of 100 B through write_many, blocks of 10,000, 1 writer",
        reference_name="10 M events/s" if half_of_disk > _MANY_PER_S else "half of bare synced writes of 1 MiB",
        reference=min(_MANY_PER_S, half_of_disk),
    )
    one_by_one = [result for result in results["write"] if isinstance(result, Round)]
    name = "events of 100 B through write, one by one, a future each"
    yield _row(one_by_one, name=name, reference_name="the design", reference=_ONE_BY_ONE_PER_S)
    for rival in (redis_streams.redis_streams, postgres.postgres, rabbitmq_streams.rabbitmq_streams):
        with contextlib.suppress(AbsentError):
            figures = session.once(rival)
            yield _row(
                one_by_one,
                name=name,
                reference_name=f"{figures.name}, its Python client",
                reference=figures.python_client.events_per_s,
            )


def _row(rounds: list[Round], *, name: str, reference_name: str, reference: float) -> Row:
    middle = median_by(rounds, _per_s)
    return Row(
        name=name,
        figure=Quantity(middle.result.per_s, Unit.EVENTS_PER_SECOND),
        reference_name=reference_name,
        reference=Quantity(reference, Unit.EVENTS_PER_SECOND),
        target=Target(Bound.AT_LEAST, 1.0),
        # Next to nothing is synced before and after the client has written.
        syncs=middle.usage.sync_rate(middle.usage.appends / middle.result.elapsed_s),
        conditions=f"{middle.conditions()}; {spread(rounds, _per_s)}",
    )


def _round(session: Session, server: MillraceServer, what: str, numbers: Iterator[int]) -> Round:
    server.settle()
    work = ClientWork(
        what=what, address=server.address, stream=f"bench/write-{next(numbers)}", duration_s=session.seconds(9.0)
    )
    with server.usage() as usage:
        result = measured("stream_client", work, ClientResult)
    return Round(result, usage)


def _per_s(result: Round) -> float:
    return result.result.per_s
