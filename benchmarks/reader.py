"""The load generator of catch-up reads: subscribers that take whole segments as fast as they come.

`python -m benchmarks.reader JSON`, with the fields of `ReaderOptions`; prints a `ReaderResult` as JSON. Each connection
subscribes to one segment from its start and counts payload bytes by the headers alone: what is measured is the server.
"""

import json
import selectors
import struct
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

from loadtests.protocol import ProtocolClient, UnexpectedFrameError
from millrace.wire import messages as m
from millrace.wire.framing import decode, encode

_HEADER: Final = struct.Struct("<IIBBHIQ")
_DATA_PREFIX_SIZE_BYTES: Final = 24 + 24
_BUFFER_SIZE_BYTES: Final = 1 << 20
_WINDOW_BYTES: Final = 8 << 20
# Credit is given back in pieces of this size, as our client does.
_CREDIT_BYTES: Final = 2 << 20
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """What to read, once."""

    address: str
    # Segment id, and how many bytes to read from its start.
    segments: list[tuple[int, int]]
    # Segments that are read at the same time, each over a connection of its own.
    at_once: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderResult:
    """What was read."""

    size_bytes: int
    elapsed_s: float
    # Processor time of the generator.
    cpu_s: float

    @property
    def bytes_per_s(self) -> float:
        """Payload received per second, by all readers together."""
        return self.size_bytes / self.elapsed_s


class _Subscriber:
    """One connection and the frame that is arriving on it."""

    def __init__(self, address: str, segment_id: int, size: int) -> None:
        self._client = ProtocolClient(address)
        self.socket = self._client.socket
        self._segment_id = segment_id
        self.size = size
        self._head = bytearray()
        # Bytes of the arriving frame that are still to come, after its head.
        self._rest = 0
        self._subscription = 0
        # Credit given so far, and what of it was used since it was last given.
        self._granted = min(_WINDOW_BYTES, size)
        self._used = 0

    def begin(self) -> None:
        """Subscribe."""
        request = m.Subscribe(segment_id=self._segment_id, offset=0, credit_bytes=self._granted)
        self._subscription = self._client.subscribe(request)
        self.socket.setblocking(False)

    def receive(self, buffer: memoryview) -> int:
        """Take what is there; return how many bytes of payload it was."""
        count = self.socket.recv_into(buffer)
        if count == 0:
            raise UnexpectedFrameError("the server closed the connection")
        payload, position = 0, 0
        while position < count:
            if self._rest:
                taken = min(self._rest, count - position)
                self._rest -= taken
                position += taken
                payload += taken
                continue
            taken = min(_DATA_PREFIX_SIZE_BYTES - len(self._head), count - position)
            self._head += buffer[position : position + taken]
            position += taken
            if len(self._head) >= _HEADER.size:
                self._take_head()
        self._used += payload
        if self._used >= _CREDIT_BYTES and self._granted < self.size:
            grant = min(self._used, self.size - self._granted)
            self._granted += grant
            self._used = 0
            self.socket.send(encode(m.Credit(grant), request_id=self._subscription))
        return payload

    def _take_head(self) -> None:
        length, _, kind, _, _, _, request_id = _HEADER.unpack_from(self._head)
        if kind == m.Data.type:
            if len(self._head) == _DATA_PREFIX_SIZE_BYTES:
                self._rest = length - _DATA_PREFIX_SIZE_BYTES
                self._head.clear()
        elif len(self._head) >= length:
            _, message = decode(bytes(self._head[:length]))
            if not isinstance(message, m.Ping):
                raise UnexpectedFrameError(f"{message}")
            self.socket.send(encode(m.Pong(), request_id=request_id))
            del self._head[:length]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def run_reader(options: ReaderOptions) -> ReaderResult:
    """Read everything once, `at_once` segments at a time. What is timed begins when all are connected."""
    buffer = memoryview(bytearray(_BUFFER_SIZE_BYTES))
    subscribers = [_Subscriber(options.address, segment_id, size) for segment_id, size in options.segments]
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    for start in range(0, len(subscribers), options.at_once):
        _read_together(subscribers[start : start + options.at_once], buffer)
    elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    for subscriber in subscribers:
        subscriber.close()
    return ReaderResult(size_bytes=sum(size for _, size in options.segments), elapsed_s=elapsed_s, cpu_s=cpu_s)


def _read_together(subscribers: list[_Subscriber], buffer: memoryview) -> None:
    with selectors.DefaultSelector() as selector:
        left = 0
        for subscriber in subscribers:
            subscriber.begin()
            left += subscriber.size
            selector.register(subscriber.socket, selectors.EVENT_READ, subscriber)
        while left:
            ready = selector.select(_TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"{left} bytes did not come within {_TIMEOUT_S:g} s")
            for key, _ in ready:
                left -= key.data.receive(buffer)


if __name__ == "__main__":
    print(json.dumps(asdict(run_reader(ReaderOptions(**json.loads(sys.argv[1]))))))
