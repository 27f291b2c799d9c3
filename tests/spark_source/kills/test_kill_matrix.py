"""The kill matrix of the sink: who is killed, and when, as in `docs/spark.md`; a test for each cell.

Behaviours 55, 67 and 68: whoever is killed, each (query, batch) is in the stream once. Nothing is left to luck but what
the seed says, which a failing test prints: processes wait at a point, or a COMMIT is held, until the other has died.
"""

import signal

import pytest

from tests.crash.deadly_server import Point, arm, disarm
from tests.spark_source.kills.cells import cells, only_in_the_whole_matrix
from tests.spark_source.kills.commit_relay import HOLD, LOSE, LOSE_ANSWER
from tests.spark_source.kills.conftest import BATCH_EVENTS, BATCHES_COUNT, Cell, DeadlyServer
from tests.spark_source.kills.driver import PATIENCE_S
from tests.spark_source.kills.points import Points

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark-kills")]


@pytest.fixture(autouse=True)
def unarmed(deadly: DeadlyServer) -> None:
    """A cell that failed leaves nothing to the next one."""
    disarm(deadly.folder)
    if not deadly.running:
        deadly.start()


# --- attempts of tasks ---


@pytest.mark.parametrize("point", cells("begin", "middle", "end", suite="middle"))
@pytest.mark.parametrize("action", cells("fail", "die", suite="die"))
def test_an_attempt_that_fails_leaves_nothing(cell: Cell, points: Points, point: str, action: str) -> None:
    """Behaviour 68: an error, or the worker of Python is killed; Spark tries the task again."""
    points.arm(point, action, batch=cell.batch)
    cell.start()
    query = cell.finish()

    assert points.was_taken
    assert query["batches"] == [0, 1, 2]
    cell.check(query["id"])


# --- the driver ---


@pytest.mark.smoke
@pytest.mark.parametrize("point", cells("middle", "end", "before", "after", suite="after"))
def test_a_driver_that_is_killed_leaves_each_batch_once(cell: Cell, points: Points, point: str) -> None:
    """Behaviours 55 and 67: while tasks write, before the commit, and between it and Spark's own commit log."""
    points.arm(point, "wait", batch=cell.batch)
    cell.start()
    points.wait(within_s=PATIENCE_S)
    cell.drivers.kill()
    held = len(cell.stored())
    cell.start()
    query = cell.finish()

    assert query["batches"] == list(range(cell.batch, BATCHES_COUNT))
    assert held == BATCH_EVENTS * (cell.batch + (point == "after"))
    cell.check(query["id"], left=int(point != "after"))


@only_in_the_whole_matrix
def test_a_driver_that_is_killed_during_its_commit_has_committed(cell: Cell, points: Points) -> None:
    """Behaviours 55 and 67: the server carries out the COMMIT of a driver that is dead by then, before the next one."""
    cell.start_up_to_its_batch(points)
    cell.relay.arm(HOLD)
    cell.go_on(points)
    cell.relay.wait(within_s=PATIENCE_S)
    cell.drivers.kill()
    assert len(cell.stored()) == BATCH_EVENTS * cell.batch
    cell.relay.deliver(within_s=PATIENCE_S)
    assert len(cell.stored()) == BATCH_EVENTS * (cell.batch + 1)
    cell.start()

    cell.check(cell.finish()["id"])


@only_in_the_whole_matrix
def test_a_commit_that_arrives_after_its_batch_was_run_again_is_refused(cell: Cell, points: Points) -> None:
    """Behaviours 67 and 69: the COMMIT of a killed driver was on its way for long; another run has taken over."""
    cell.start_up_to_its_batch(points)
    cell.relay.arm(HOLD)
    cell.go_on(points)
    cell.relay.wait(within_s=PATIENCE_S)
    cell.drivers.kill()
    cell.start()
    query = cell.finish()
    cell.check(query["id"], left=1)
    cell.relay.deliver(within_s=PATIENCE_S)

    cell.check(query["id"])


@only_in_the_whole_matrix
@pytest.mark.parametrize("point", ["middle", "before", "after"])
def test_a_driver_that_was_taken_for_dead_is_fenced(cell: Cell, points: Points, point: str) -> None:
    """Behaviour 69: it is stopped, another one does its work, and it continues: nothing is there twice, and it ends."""
    points.arm(point, "wait", batch=cell.batch)
    cell.start()
    points.wait(within_s=PATIENCE_S)
    older = cell.drivers.leave()
    older.signal(signal.SIGSTOP)
    cell.start()
    query = cell.finish()
    cell.check(query["id"], left=int(point != "after"))
    older.signal(signal.SIGCONT)
    points.release()
    outcome = older.outcome()
    older.kill()

    # Whatever stops it first: the server, or the log of the checkpoint, in which another one has written.
    assert outcome["error"] != ""
    cell.check(query["id"], left=int(point != "after"))


# --- the server ---


@pytest.mark.parametrize("point", cells("begin", "middle", "end", "before", "after", suite="before"))
def test_a_server_that_is_killed_between_two_steps_is_waited_for(
    cell: Cell, points: Points, deadly: DeadlyServer, point: str
) -> None:
    """Behaviours 67 and 89: the query continues when it is back, and is not started again."""
    points.arm(point, "wait", batch=cell.batch)
    cell.start()
    points.wait(within_s=PATIENCE_S)
    deadly.kill()
    points.release()
    deadly.start()
    query = cell.finish()

    assert query["batches"] == [0, 1, 2]
    cell.check(query["id"])


@pytest.mark.parametrize("when", cells("queued", "torn", "written", "synced", "applied", suite="applied"))
@pytest.mark.parametrize(
    "what", cells("TransactionBegun", "PartsAdded", "TransactionCommitted", suite="TransactionCommitted")
)
def test_a_server_that_is_killed_in_a_step_is_waited_for(
    cell: Cell, points: Points, deadly: DeadlyServer, what: str, when: str
) -> None:
    """Behaviours 31 and 67: at each moment of the record that begins, fills or commits a transaction."""
    cell.start_up_to_its_batch(points)
    arm(deadly.folder, Point(what, when))
    cell.go_on(points)
    cell.wait_for_end_of(deadly)
    disarm(deadly.folder)
    deadly.kill()
    deadly.start()
    query = cell.finish()

    assert query["batches"] == [0, 1, 2]
    cell.check(query["id"])


@only_in_the_whole_matrix
def test_server_and_driver_are_killed_at_once(cell: Cell, points: Points, deadly: DeadlyServer) -> None:
    """Behaviour 67: the commit is on its way, and both die."""
    cell.start_up_to_its_batch(points)
    cell.relay.arm(HOLD)
    cell.go_on(points)
    cell.relay.wait(within_s=PATIENCE_S)
    deadly.kill()
    cell.drivers.kill()
    deadly.start()
    cell.start()

    cell.check(cell.finish()["id"], left=1)


# --- the connection ---


@pytest.mark.parametrize("what", cells(LOSE, LOSE_ANSWER, suite=LOSE_ANSWER))
def test_a_connection_that_is_lost_on_commit_is_made_again(cell: Cell, points: Points, what: str) -> None:
    """Behaviours 55 and 67: before the request has arrived, or after it was carried out, before its answer."""
    cell.start_up_to_its_batch(points)
    cell.relay.arm(what)
    cell.go_on(points)
    query = cell.finish()
    cell.relay.wait(within_s=0.0)

    assert query["batches"] == [0, 1, 2]
    cell.check(query["id"])
