"""From an ack to the push of the same bytes to a tail reader, whatever the number of idle segments beside it."""

import selectors
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from loadtests.protocol import ProtocolClient
from millrace.wire import messages as m

from .floors import loopback_round_trip
from .latency_client import LoneAppender
from .raw_frames import RawFrames
from .report import Bound, Quantity, Row, Target, Unit
from .rounds import interleaved, median_of
from .server import millrace_server
from .session import Session

_SIZE_BYTES: Final = 100
_IDLE_COUNTS: Final = (0, 1000)
_CREDIT_BYTES: Final = 1 << 31
_WARM_UP_COUNT: Final = 20


class TailPair:
    """A writer and a tail reader of one segment, on a connection each; the reader also waits at idle segments.

    Both are watched by one thread, so that the two arrivals are read from one clock in the order they come.
    """

    def __init__(self, address: str, *, idle_count: int) -> None:
        self._writing = ProtocolClient(address)
        self._reading = ProtocolClient(address)
        self._appender = LoneAppender(self._writing, f"raw/tail-beside-{idle_count}", payload_size=_SIZE_BYTES)
        for index in range(idle_count):
            segment_id = self._writing.create_segment(f"raw/idle-{index}")
            self._reading.subscribe(m.Subscribe(segment_id=segment_id, offset=0, credit_bytes=_CREDIT_BYTES))
        self._reading.subscribe(m.Subscribe(segment_id=self._appender.segment_id, offset=0, credit_bytes=_CREDIT_BYTES))
        self._reading.socket.settimeout(None)
        self._pushes = RawFrames(self._reading.socket)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._writing.socket, selectors.EVENT_READ)
        self._selector.register(self._reading.socket, selectors.EVENT_READ)

    def lag_s(self) -> float:
        """Append once; return how long after the ack the reader had the bytes. Below 0 if it had them before."""
        self._appender.send()
        acked_s = pushed_s = 0.0
        while not (acked_s and pushed_s):
            for key, _ in self._selector.select():
                if key.fileobj is self._writing.socket:
                    self._appender.take_ack()
                    acked_s = time.perf_counter()
                else:
                    self._pushes.next()
                    pushed_s = time.perf_counter()
        return pushed_s - acked_s

    def close(self) -> None:
        """Close both connections."""
        self._selector.close()
        self._writing.close()
        self._reading.close()


def measure(session: Session) -> Iterator[Row]:
    """Yield the lag of a tail reader after the ack, beside few and many idle segments."""
    with millrace_server(session.directory) as server:
        pairs = {count: TailPair(server.address, idle_count=count) for count in _IDLE_COUNTS}
        part = Session(session.directory, effort=session.effort / 3)
        try:
            with server.usage() as usage:
                work: dict[int | str, Callable[[], list[float]]] = {
                    count: partial(_lags_s, part, pair) for count, pair in pairs.items()
                }
                work["loopback"] = lambda: [loopback_round_trip(part).p50_s]
                results = interleaved(work)
        finally:
            for pair in pairs.values():
                pair.close()
    round_trip_s = median_of(results["loopback"], lambda samples: samples[0])
    for count in _IDLE_COUNTS:
        lags_s = np.concatenate(results[count])
        p50_s, p99_s, p999_s = np.percentile(lags_s, [50.0, 99.0, 99.9]).tolist()
        yield Row(
            name=f"tail reader after the ack, {count:,} idle segments: p50",
            figure=Quantity(p50_s, Unit.SECONDS),
            reference_name="bare loopback round trip",
            reference=Quantity(round_trip_s, Unit.SECONDS),
            target=Target(Bound.AT_MOST, 1.5),
            syncs=usage.sync_rate(),
            conditions=(
                f"below 0: the push came before the ack; the reader subscribes to all {count + 1:,} segments; "
                f"p99 {Quantity(p99_s, Unit.SECONDS)}, p99.9 {Quantity(p999_s, Unit.SECONDS)}, {len(lags_s):,} samples"
            ),
        )


def _lags_s(session: Session, pair: TailPair) -> list[float]:
    for _ in range(_WARM_UP_COUNT):
        pair.lag_s()
    deadline_s = time.perf_counter() + session.seconds(5.0)
    lags_s = []
    while time.perf_counter() < deadline_s:
        lags_s.append(pair.lag_s())
    return lags_s
