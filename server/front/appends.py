"""The appends of one connection: into the container in the order they came, outcomes out in the same order."""

from collections.abc import Callable

from millrace.server.container.admission import PendingAppend
from millrace.server.container.container import RETRY_AFTER_MS, SegmentContainer
from millrace.server.errors import PipelineBrokenError, ServerError, ShuttingDownError
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import encode
from millrace.wire.limits import APPENDS_IN_FLIGHT_MAX

from .flow_control import FlowControl, Reason
from .outlet import Outlet


class Appends:
    """Admits the appends of one connection and tells their outcomes.

    Args:
        settled: called after outcomes were sent, as the container made them known.
    """

    def __init__(
        self,
        container: SegmentContainer,
        *,
        outlet: Outlet,
        flow: FlowControl,
        settled: Callable[[], None],
    ) -> None:
        self._container = container
        self._session = outlet.session
        self._outlet = outlet
        self._flow = flow
        self._counters = outlet.counters
        self._settled = settled

    def take(self, run: AppendRun) -> None:
        """Admit a run, whose segment and writer are resident, or refuse it; `settle` tells.

        If the container is full, the peer is told once, and not read until there is room.

        Raises:
            ProtocolError: the client continues after too many failures that it does not acknowledge.
        """
        self._counters.appends_total += run.frame_count
        try:
            if self._session.is_draining:
                raise ShuttingDownError("the server is shutting down", retry_after_ms=1000)
            if self._session.appends.is_broken(run.segment_id, run.writer_number):
                raise PipelineBrokenError("an earlier append of this pipeline failed; this one was not applied")
            taken = self._container.append(run, self)
        except ServerError as error:
            self._counters.requests_failed_total += run.frame_count
            refused = PendingAppend(self, run)
            refused.settle(error)
            taken = [refused]
        self._session.appends.add(taken)
        self._flow.set(Reason.APPENDS_IN_FLIGHT, self._session.appends.count >= APPENDS_IN_FLIGHT_MAX)
        pressure = self._container.pressure
        if pressure:
            self._counters.throttled_total += 1
            self._container.when_relieved(self._relieved)
            self._outlet.send(encode(m.Throttle(RETRY_AFTER_MS, pressure)))
            self._flow.set(Reason.CONTAINER_FULL, True)

    def settle(self) -> None:
        """Send the outcomes that are known: called by the container once for each log batch."""
        self._session.settle()
        self._outlet.flush()
        self._flow.set(Reason.APPENDS_IN_FLIGHT, self._session.appends.count >= APPENDS_IN_FLIGHT_MAX)
        self._settled()

    def cancel(self) -> None:
        """Wait for room no longer; appends on their way still become durable."""
        self._container.forget_relief(self._relieved)

    def _relieved(self) -> None:
        self._flow.set(Reason.CONTAINER_FULL, False)
