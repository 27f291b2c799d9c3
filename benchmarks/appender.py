"""The load generator of raw appends: connections that keep a number of appends outstanding, in a process of its own.

`python -m benchmarks.appender JSON`, with the fields of `AppenderOptions`; prints an `AppenderResult` as JSON. What
it sends was built before (`windows`), and of an ack it reads the request id alone; so it takes far less of the machine
than the server does, and says how much.
"""

import json
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from loadtests.protocol import ProtocolClient, UnexpectedFrameError
from millrace.wire import messages as m
from millrace.wire.framing import encode

from .append_ring import AppendRing
from .raw_frames import RawFrames

_RING_SIZE_BYTES: Final = 256 * 1024
# Acks end a round within this time after the last append, or the server hangs.
_DRAIN_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppenderOptions:
    """What to send, from where, for how long."""

    address: str
    connections: int
    outstanding: int
    payload_size: int
    duration_s: float
    # Goes before what is measured.
    warm_up_s: float
    # Each connection appends to a segment of its own, whose name starts with this.
    segment_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppenderResult:
    """What was acknowledged while it was measured."""

    appends: int
    elapsed_s: float
    # Processor time of the generator in the same time.
    cpu_s: float
    # From the sending of an append to its ack, sampled: one append of each connection at a time.
    p50_s: float
    p99_s: float
    p999_s: float


class _Connection:
    """One connection: what it may send, what it was promised."""

    def __init__(self, options: AppenderOptions, index: int) -> None:
        client = ProtocolClient(options.address)
        segment_id = client.create_segment(f"{options.segment_prefix}-{index}")
        self.socket = client.socket
        self.socket.setblocking(False)
        self._outstanding = options.outstanding
        frame_size = options.payload_size + 64
        count = 1 << max(0, (max(_RING_SIZE_BYTES // frame_size, 2 * options.outstanding) - 1).bit_length())
        self._ring = AppendRing(segment_id, payload_size=options.payload_size, count=count)
        # Bytes of the ring that were sent, and which request id is the last that may be.
        self._position = 0
        self._acked = self._ring.first_request_id - 1
        self._frames = RawFrames(self.socket)
        self._sample_id = 0
        self._sample_s = 0.0
        self.samples_s: list[float] = []
        self.appends = 0
        self.stopping = False

    @property
    def idle(self) -> bool:
        """Whether every append that was begun is acknowledged."""
        return self._acked + 1 == self._ring.first_request_id + self._position / self._ring.frame_size

    def send(self) -> bool:
        """Send what may be sent; return whether the socket took it all."""
        ring = self._ring
        size = ring.frame_size
        while True:
            allowed = self._acked + 1 + self._outstanding - ring.first_request_id
            end = min(allowed, ring.count) * size
            if self.stopping:
                # What is begun is finished.
                end = -(-self._position // size) * size
            if end <= self._position:
                return True
            if not self._sample_id:
                self._sample_id = ring.first_request_id + self._position // size
                self._sample_s = time.perf_counter()
            try:
                self._position += self.socket.send(ring.frames[self._position : end])
            except BlockingIOError:
                return False
            if self._position == ring.count * size:
                ring.advance()
                self._position = 0
            elif self._position < end:
                return False

    def receive(self) -> None:
        """Take acks."""
        for kind, request_id in self._frames.receive():
            if kind == m.AppendAck.type:
                # Acks are cumulative: the id of the frame is the last that it covers.
                self.appends += request_id - self._acked
                self._acked = request_id
            elif kind == m.Ping.type:
                self.socket.send(encode(m.Pong(), request_id=request_id))
            elif kind != m.Throttle.type:
                raise UnexpectedFrameError(f"frame of type {kind} with request id {request_id}")
        if self._sample_id and self._acked >= self._sample_id:
            self.samples_s.append(time.perf_counter() - self._sample_s)
            self._sample_id = 0


def run_appender(options: AppenderOptions) -> AppenderResult:
    """Append until the time is over, then wait for the last acks.

    Raises:
        LoadError: the server refused something or went away.
        TimeoutError: acks are missing.
    """
    connections = [_Connection(options, index) for index in range(options.connections)]
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        _send(selector, connection)
    _turn(selector, time.perf_counter() + options.warm_up_s)
    for connection in connections:
        connection.appends = 0
        connection.samples_s.clear()
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    _turn(selector, begin_s + options.duration_s)
    elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    appends = sum(connection.appends for connection in connections)
    samples_s = [sample for connection in connections for sample in connection.samples_s]
    _drain(selector, connections)
    p50_s, p99_s, p999_s = np.percentile(samples_s, [50.0, 99.0, 99.9]).tolist() if samples_s else (0.0, 0.0, 0.0)
    return AppenderResult(appends=appends, elapsed_s=elapsed_s, cpu_s=cpu_s, p50_s=p50_s, p99_s=p99_s, p999_s=p999_s)


def _turn(selector: selectors.BaseSelector, deadline_s: float) -> None:
    while (left_s := deadline_s - time.perf_counter()) > 0:
        for key, events in selector.select(left_s):
            if events & selectors.EVENT_READ:
                key.data.receive()
            _send(selector, key.data)


def _send(selector: selectors.BaseSelector, connection: _Connection) -> None:
    events = selectors.EVENT_READ if connection.send() else selectors.EVENT_READ | selectors.EVENT_WRITE
    if selector.get_key(connection.socket).events != events:
        selector.modify(connection.socket, events, connection)


def _drain(selector: selectors.BaseSelector, connections: list[_Connection]) -> None:
    deadline_s = time.perf_counter() + _DRAIN_S
    for connection in connections:
        connection.stopping = True
    while not all(connection.idle for connection in connections):
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"appends without an ack after {_DRAIN_S:g} s")
        _turn(selector, time.perf_counter() + 0.01)
    for connection in connections:
        connection.socket.shutdown(socket.SHUT_RDWR)
        connection.socket.close()


if __name__ == "__main__":
    print(json.dumps(asdict(run_appender(AppenderOptions(**json.loads(sys.argv[1]))))))
