"""The rows of the kill matrix that need executors: a cluster of a master and two workers, in processes of their own."""

import os
from collections.abc import Iterator

import pytest

from tests.spark_source.kills.cells import cells
from tests.spark_source.kills.cluster import standalone_cluster
from tests.spark_source.kills.conftest import Cell, Drivers
from tests.spark_source.kills.driver import PATIENCE_S, ROOT
from tests.spark_source.kills.points import FOLDER_VARIABLE, Points

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark-kills")]

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
}


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory, points: Points) -> Iterator[Drivers]:
    folder = tmp_path_factory.mktemp("cluster")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {FOLDER_VARIABLE: str(points.folder), "PYTHONPATH": path}
    with standalone_cluster(folder, workers=2, environment=environment) as master:
        made = Drivers(tmp_path_factory.mktemp("driver"), points, master=master, conf=CONF)
        yield made
        made.close()


@pytest.mark.parametrize("point", cells("begin", "middle", "end", suite="middle"))
def test_an_executor_that_is_killed_leaves_nothing(cell: Cell, points: Points, point: str) -> None:
    """Behaviours 67 and 68: its tasks are run by another one, which joins the transaction."""
    points.arm(point, "kill", batch=cell.batch)
    cell.start()
    query = cell.finish()

    assert points.was_taken
    assert query["batches"] == [0, 1, 2]
    cell.check(query["id"])


@pytest.mark.parametrize("point", cells("begin", "middle", "end", suite="middle"))
def test_of_two_attempts_at_once_one_is_committed(cell: Cell, points: Points, point: str) -> None:
    """Behaviours 55 and 68: one attempt waits, Spark starts another one and takes that, and ends the first."""
    cell.partitions = 2  # Spark starts a second attempt when half of the tasks are done
    points.arm(point, "wait", batch=cell.batch)
    cell.start()
    points.wait(within_s=PATIENCE_S)
    query = cell.finish()
    points.release()

    assert query["batches"] == [0, 1, 2]
    cell.check(query["id"])
