"""Latency of the requests of one connection, from arrival to answer, by message type.

The arrival time is that of the socket read, which the connection measures anyway; requests that arrive together share
it. Appends are counted by batch: appends that arrived with one read, and whose outcomes are sent together, are one
observation.
"""

from collections import deque
from typing import Final, NamedTuple

from millrace.server.host.clock import Clock
from millrace.server.host.metrics import Histogram
from millrace.wire import messages as m

APPEND: Final = m.Append.type.name


class RequestTimer(NamedTuple):
    """A request in progress: its id, the name of its type, and its arrival time."""

    request_id: int
    name: str
    received_s: float


class Latency:
    """The requests of one connection that are under way.

    Attributes:
        received_s: when the bytes arrived that are walked now.
    """

    __slots__ = ("_append_seconds", "_appends", "_clock", "_seconds", "received_s")

    def __init__(self, clock: Clock, seconds: Histogram) -> None:
        self._clock = clock
        self._seconds = seconds
        self._append_seconds = seconds.series(APPEND)
        self.received_s = 0.0
        # The number and arrival time of appends that arrived together, in the order of their outcomes.
        self._appends: deque[tuple[int, float]] = deque()

    def appends_taken(self, count: int) -> None:
        """Record appends whose outcomes will be sent."""
        appends, received_s = self._appends, self.received_s
        if appends and appends[-1][1] == received_s:
            count += appends.pop()[0]
        appends.append((count, received_s))

    def appends_told(self, count: int) -> None:
        """Observe the oldest appends, whose outcomes were sent."""
        now_s = self._clock.monotonic_s()
        while count:
            together, received_s = self._appends.popleft()
            if together > count:
                self._appends.appendleft((together - count, received_s))
                together = count
            count -= together
            self._append_seconds.observe(now_s - received_s, together)

    def answered(self, timer: RequestTimer) -> None:
        """Observe any other request, which was answered, or failed."""
        self._seconds.series(timer.name).observe(self._clock.monotonic_s() - timer.received_s)
