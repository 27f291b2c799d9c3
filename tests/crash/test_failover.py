"""Two servers over one bucket, one of which stands by, while servers, store and network fail: nothing is lost.

In each round the clients of `tests.crash.test_transactions` live on a pair of servers for some seconds: producers with
sequences, transactions, queries, and readers from the head. One thing after the other fails, in an order of chance:

- the server that serves is killed, and another one takes over, or it is started again first; or it is stopped in order;
- it stands still (SIGSTOP) until the other one has taken over and has deleted what was in the log, and wakes then; or
  it cannot reach the store meanwhile, as its requests or their answers are lost. What a client has sent to it after
  that must not be acknowledged, and must not be there;
- the server that stands by is killed;
- the store is killed, and comes back at once, or after longer than the lease;
- the network of the server that serves vanishes, towards its clients and the store, without a reset, until the other
  one has taken over;
- packets of one server are lost for a moment.

Packets are lost in a network of its own. Where that cannot be made, a notice says so, and the other things fail.

After each of them a client must get an ack soon. How soon after a kill, SIGSTOP, and the loss of the network is
printed, where a server stood by: the aim is 5 s on a machine that is not overloaded. At the end all is judged as in
`tests.crash.test_transactions`, and `millrace verify` finds no damage in the store.

    python -m tests.crash.test_failover --rounds 5 --seed 7 --seconds 30
    python -m tests.crash.test_failover --seed 7 --only 3 --keep /tmp/folder
"""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.crash.failover.life import Life
from tests.crash.failover.networks import StoreNetwork, enter_own_network, has_own_network, why_no_network
from tests.crash.failover.pair import Pair, damage_in_store
from tests.crash.torture import Circumstances, random_seed, run_from_command_line
from tests.support.s3 import NO_VERSITYGW, find_versitygw

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 20.0
SECONDS_SHORT: Final = 8.0


@cache
def store_network() -> StoreNetwork | None:
    """Return the network of the stores of all rounds; None where packets cannot be dropped."""
    return StoreNetwork(count=2) if has_own_network() else None


def begin(given: Circumstances) -> tuple[str, Life]:
    """Make the life of a round."""
    network = store_network()
    pair = Pair(given.server, network=network)
    return "packets are lost" if network else "no packets are lost", Life(
        pair, given.dice, given.seconds, given.histories
    )


def main() -> int:
    """Run from the command line."""
    if find_versitygw() is None:
        print(NO_VERSITYGW)
        return 1
    enter_own_network("tests.crash.test_failover")
    return run_from_command_line(begin, __doc__, seconds=SECONDS, verify=damage_in_store)


@pytest.mark.slow
@pytest.mark.skipif(find_versitygw() is None, reason=NO_VERSITYGW)
def test_nothing_is_lost_whatever_fails_between_two_servers_and_their_store() -> None:
    """Behaviours 91, 92 and 94: a short round in a process of its own, in a network of its own if that can be had."""
    seed = random_seed()
    print(f"seed {seed}", why_no_network())
    command = [sys.executable, "-m", "tests.crash.test_failover", "--rounds", "1", "--seed", str(seed)]
    subprocess.run([*command, "--seconds", str(SECONDS_SHORT)], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
