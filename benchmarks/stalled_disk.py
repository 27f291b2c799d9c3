"""What others see of a disk that stalls while one connection appends, with and without syncs in the event loop."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import numpy as np

from loadtests.protocol import ProtocolClient

from .appender import AppenderOptions, AppenderResult
from .child import measured
from .report import Quantity, Row, Unit
from .rounds import ROUNDS, interleaved
from .server import MillraceServer, millrace_server
from .session import Session
from .stalling_server import PERIOD_S, STALL_S

_PAUSE_S: Final = 0.002
_SEGMENT: Final = "raw/other"
_LONE: Final = "MILLRACE_WAL_LONE_SIZE_BYTES_MAX"


def measure(session: Session) -> Iterator[Row]:
    """Yield what a request of another connection takes at worst, on one server of each kind."""
    part = Session(session.directory, effort=session.effort / ROUNDS)
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:
        work: dict[str, Callable[[], list[float]]] = {}
        for place, settings in (("by the log thread", {_LONE: "0"}), ("in the event loop", {})):
            server = stack.enter_context(
                millrace_server(session.directory, settings=settings, module="benchmarks.stalling_server")
            )
            work[place] = partial(_requests_s, part, server, numbers)
        results = interleaved(work)
    reference: Quantity | None = None
    for place, rounds in results.items():
        p50_s, p99_s, p999_s = np.percentile(np.concatenate(rounds), [50.0, 99.0, 99.9]).tolist()
        figure = Quantity(p999_s, Unit.SECONDS)
        yield Row(
            name=f"request beside a lone append on a disk that stalls, synced {place}: p99.9",
            figure=figure,
            reference_name="" if reference is None else "synced by the log thread",
            reference=reference,
            conditions=(
                f"a sync takes {Quantity(STALL_S, Unit.SECONDS)} longer every {Quantity(PERIOD_S, Unit.SECONDS)}; "
                f"p50 {Quantity(p50_s, Unit.SECONDS)}, p99 {Quantity(p99_s, Unit.SECONDS)}, "
                f"worst {Quantity(max(map(max, rounds)), Unit.SECONDS)}, {sum(map(len, rounds)):,} samples"
            ),
        )
        reference = figure


def _requests_s(session: Session, server: MillraceServer, numbers: Iterator[int]) -> list[float]:
    """Return how long requests took, with pauses in between, while one connection appends one at a time."""
    duration_s = session.seconds(15.0)
    options = AppenderOptions(
        address=server.address,
        connections=1,
        outstanding=1,
        payload_size=100,
        duration_s=duration_s,
        warm_up_s=0.0,
        segment_prefix=f"raw/stalled-{next(numbers)}",
    )
    samples_s = []
    with ThreadPoolExecutor(1) as pool, ProtocolClient(server.address) as client:
        client.create_segment(_SEGMENT)
        appending = pool.submit(measured, "appender", options, AppenderResult)
        while not appending.done():
            time.sleep(_PAUSE_S)
            begin_s = time.perf_counter()
            client.segment_info(_SEGMENT)
            samples_s.append(time.perf_counter() - begin_s)
        appending.result()
    return samples_s
