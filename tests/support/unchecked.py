"""Records that no server decides, logged by a container that runs: they damage what they name."""

from millrace.server.container.container import SegmentContainer
from millrace.server.container.entity_cache import Pins
from millrace.server.container.in_flight import PendingDecision
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import encode


async def log_unchecked(container: SegmentContainer, record: m.Record) -> None:
    """Log a record as `SegmentContainer.log_decision` does, without its checks; return when it is applied.

    Nothing else may be in flight: the admitted view becomes the durable one.
    """
    assert not len(container.in_flight)
    pins = Pins()
    container.state.pin_required(m.required_entities(record), into=pins)
    decision = PendingDecision(record, (type(record),), pins)
    container.log.submit(AppendRun.of_record(encode(record)))
    container.in_flight.add(decision)
    await decision.durable()
    container.state.admit_as_durable()
