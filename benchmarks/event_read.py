"""Events out of our own client, from tier 2 in the page cache: as record batches, and one by one."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from .child import measured
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .rounds import interleaved, median_by, spread
from .server import MillraceServer, millrace_server
from .session import Session
from .stream_client import ClientResult, ClientWork

_EVENTS: Final = 5_000_000
_EVENTS_ONE_BY_ONE: Final = 2_000_000
_STREAM: Final = "bench/read"
_PROMISES: Final = {"arrow_batches": ("arrow_batches()", 10e6), "async_for": ("async for, one by one", 1e6)}


def measure(session: Session) -> Iterator[Row]:
    """Yield a row for each way to read."""
    with tempfile.TemporaryDirectory(dir=session.directory) as name:
        folder = Path(name) / "data"
        with millrace_server(session.directory, folder=folder) as server:
            _do(server, "fill", session.count(_EVENTS))
        with millrace_server(session.directory, folder=folder) as server:
            # Once before, for the page cache.
            _do(server, "arrow_batches", 0)
            work: dict[str, Callable[[], ClientResult]] = {
                "arrow_batches": partial(_do, server, "arrow_batches", 0),
                "async_for": partial(_do, server, "async_for", session.count(_EVENTS_ONE_BY_ONE)),
            }
            results = interleaved(work)
    for what, (title, promise) in _PROMISES.items():
        middle = median_by(results[what], _per_s)
        yield Row(
            name=f"events of 100 B out of {title}",
            figure=Quantity(middle.per_s, Unit.EVENTS_PER_SECOND),
            reference_name="the design",
            reference=Quantity(promise, Unit.EVENTS_PER_SECOND),
            target=Target(Bound.AT_LEAST, 1.0),
            syncs=SyncRate(0.0, "none made"),
            conditions=(
                f"{middle.events:,} events; processors: client {middle.cpu_s / middle.elapsed_s:.2f}; "
                f"{spread(results[what], _per_s)}"
            ),
        )


def _do(server: MillraceServer, what: str, event_count: int) -> ClientResult:
    work = ClientWork(what=what, address=server.address, stream=_STREAM, event_count=event_count)
    return measured("stream_client", work, ClientResult)


def _per_s(result: ClientResult) -> float:
    return result.per_s
