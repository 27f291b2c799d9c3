"""What is counted of requests to the store, and what health says."""

import pytest

from millrace.server.errors import ObjectExistsError, StoreBusyError, StoreFullError, StoreUnavailableError
from millrace.server.host.metrics import Metrics
from millrace.server.object_store.monitor import BUSY_S, FORGOTTEN_S, FULL_S, SILENT_S, Kind, StoreMonitor
from tests.support.clock import ManualClock
from tests.support.tables import table


def test_requests_are_counted_by_outcome_and_timed_by_kind() -> None:
    metrics = Metrics()
    monitor = StoreMonitor(metrics, ManualClock())

    monitor.ended("create", 0.5, None)
    monitor.ended("create", 0.5, ObjectExistsError(""))
    monitor.ended("read", 0.5, StoreBusyError(""))
    monitor.repeated()
    monitor.hedged("create")

    assert metrics.store_requests_total.counts() == {"ok": 1, "exists": 1, "busy": 1}
    assert {kind: series.sum for kind, series in metrics.store_request_seconds.all_series().items()} == {
        "create": 1.0,
        "read": 0.5,
    }
    assert metrics.store_retries_total.counts() == {"": 1}
    assert metrics.store_hedges_total.counts() == {"create": 1}


def test_a_store_is_busy_for_a_while_after_it_has_said_so() -> None:
    clock = ManualClock()
    monitor = StoreMonitor(Metrics(), clock)
    assert not monitor.is_busy
    monitor.ended("create", 0.1, StoreBusyError(""))
    monitor.ended("create", 0.1, None)
    assert monitor.is_busy
    clock.move(BUSY_S)
    assert not monitor.is_busy


def test_health_says_that_a_store_is_full_although_leases_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 103: where the log is on the disk, nobody else says so before that is full, too."""
    clock, metrics = ManualClock(), Metrics()
    monitor = StoreMonitor(metrics, clock)
    for _ in range(3):
        monitor.ended("create", 0.1, StoreFullError("it is full (507)"))
        monitor.ended("replace", 0.1, None)
        assert monitor.health() == "the object store is full: it is full (507)"
    clock.move(FULL_S)
    assert monitor.health() == ""
    assert metrics.store_requests_total.counts() == {"full": 3, "ok": 3}
    assert not caplog.records


def test_health_tells_of_a_store_that_lastingly_fails() -> None:
    clock = ManualClock()
    monitor = StoreMonitor(Metrics(), clock)

    monitor.ended("read", 0.1, StoreUnavailableError("no route"))
    assert monitor.health() == ""
    clock.move(SILENT_S)
    assert monitor.health() == ""  # nobody has asked since
    monitor.ended("read", 0.1, StoreUnavailableError("no route"))
    assert monitor.health() == "the object store has failed for 10 s: no route"
    clock.move(FORGOTTEN_S)
    assert monitor.health() == ""


@pytest.mark.parametrize("error", [None, ObjectExistsError("")])
def test_any_answer_is_a_sign_of_life(error: Exception | None) -> None:
    clock = ManualClock()
    monitor = StoreMonitor(Metrics(), clock)
    monitor.ended("delete", 0.1, StoreUnavailableError("no route"))
    clock.move(SILENT_S)
    monitor.ended("delete", 0.1, StoreUnavailableError("no route"))

    monitor.ended("create", 0.1, error)

    assert monitor.health() == ""


@table(("failing", "answering"), [("create", "read"), ("delete", "list"), ("get", "replace")])
def test_reads_do_not_speak_for_changes(failing: Kind, answering: Kind) -> None:
    """A bucket that lets nobody write any more is told although readers are served, and the other way round."""
    clock = ManualClock()
    monitor = StoreMonitor(Metrics(), clock)
    monitor.ended(failing, 0.1, StoreUnavailableError("full"))
    clock.move(SILENT_S)
    monitor.ended(failing, 0.1, StoreUnavailableError("full"))

    monitor.ended(answering, 0.1, None)

    assert monitor.health() == "the object store has failed for 10 s: full"
    monitor.ended(failing, 0.1, None)
    assert monitor.health() == ""
