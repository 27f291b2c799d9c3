"""Two chained queries whose drivers, workers, producers and server are all killed: each event is in the result once.

In each round, on a server of their own:

- producers write numbered events to a raw stream, under writer ids of their own, and are killed and resume;
- a query makes JSON of them in a cooked stream, in a driver of its own; another query reads that, and writes results;
- a driver is killed with its JVM: while its tasks write, before and after its commit, or at a moment of chance; so are
  single workers of Python, the processes that plan and commit, and, in a round on a cluster, executors;
- the server kills itself in the middle of a record, or is killed at a moment of chance.

All of this happens at once. Then the producers and the queries end undisturbed, and each produced event must be in the
raw stream, in the cooked one and in the results once, in the order of its key. At last the folder is verified.

    python -m tests.spark_source.kills.test_chain --rounds 5 --seed 7 --seconds 60
    python -m tests.spark_source.kills.test_chain --seed 7 --only 3 --keep /tmp/folder
"""

import asyncio
import sys
from typing import Final

import pytest

from tests.crash.torture import (
    SETTINGS,
    Circumstances,
    listen_of_this_process,
    run_from_command_line,
    torture,
)
from tests.spark_source.kills.chain import Chain
from tests.spark_source.kills.conftest import DeadlyServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark-kills")]

SECONDS: Final = 60.0
CLUSTERS: Final = 0.3
"""How many rounds are on a cluster."""


def begin(given: Circumstances) -> tuple[str, Chain]:
    """Make the life of a round."""
    server_is = given.dice.choice(list(SETTINGS))
    server = DeadlyServer(given.server, settings=SETTINGS[server_is], listen=listen_of_this_process())
    is_cluster = given.dice.random() < CLUSTERS
    life = Chain(server, given.histories, given.dice, given.seconds, is_cluster)
    return f"{server_is} server, {'cluster' if is_cluster else 'local'}", life


def begin_locally(given: Circumstances) -> tuple[str, Chain]:
    """Make a life without a cluster, whose start takes long."""
    described, life = begin(given)
    life.is_cluster = False
    return described, life


@pytest.mark.timeout(1200)
@pytest.mark.asyncio
async def test_each_event_is_in_the_result_of_chained_queries_once(seed: int) -> None:
    """Behaviour 71: whatever is killed, the result equals the function of the input."""
    asyncio.get_running_loop().set_debug(False)
    counted = await torture(begin_locally, rounds=1, seed=seed, seconds=0.0)

    assert counted["drivers killed"] >= 2
    assert counted["workers killed"] >= 2
    assert counted["batches"] > 2


if __name__ == "__main__":
    sys.exit(run_from_command_line(begin, __doc__, seconds=SECONDS))
