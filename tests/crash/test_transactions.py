"""Transactions over several streams while servers, clients and connections fail: each is whole and once, or not at all.

In each round some streams live through some seconds of this:

- processes write transactions of any size over one to three streams, named and unnamed, and commit, prepare, abort or
  leave them; they are killed, and the next life of each resumes what it had begun, by its name;
- what was prepared is handed over to two processes, which commit and abort it by its name at the same time, and are
  killed; they must be told one outcome;
- two processes move what is written to one stream on to another, with their position in the commit;
- processes commit batches as one producer, each with runs of its own that take over from one another: runs that were
  replaced try on, batches are sent again whose outcome was lost, now and then another holder takes the producer away;
- plain producers with sequences of their own write to the same streams, and are killed;
- streams are scaled by hand at borders of chance, so that commits are overtaken and torn, and what all have read is
  truncated;
- one fault follows another, in an order that the seed draws (`Fault`): the server is killed, stopped, or stands still;
  clients stand still, for less than the leases of their transactions or for longer; connections are cut in the middle
  of a message; all streams are split and merged at once. Half of the servers have caches that hold next to nothing;
- readers follow each stream, and two go from one consistent cut of three streams to the next: each transaction must
  be before a cut whole, or not at all. Others take cuts of any streams.

Then all that was asked and told is judged by the checker of histories, which also demands one order of all transactions
that explains what all readers and cuts saw, and added up apart from it; each name has the outcome that everybody was
told, also after one more kill, and each batch is there once. At last the folder is verified.

    python -m tests.crash.test_transactions --rounds 20 --seed 7 --seconds 10
    python -m tests.crash.test_transactions --seed 7 --only 13 --keep /tmp/folder
"""

import asyncio
import sys
from typing import Final

import pytest

from tests.crash.torture import SETTINGS, Circumstances, random_seed, run_from_command_line, server_in, torture
from tests.crash.transactions.single import Life

SECONDS_SHORT: Final = 3.0
"""That a round lives as a part of the test suite."""


def begin(given: Circumstances) -> tuple[str, Life]:
    """Make the life of a round."""
    server_is = given.dice.choice(list(SETTINGS))
    server = server_in(given.server, SETTINGS[server_is])
    return server_is, Life(server, given.dice, given.seconds, given.histories)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_transactions_are_whole_whatever_happens() -> None:
    """Behaviours 28 to 32, 61 to 64, 67 and 69."""
    asyncio.get_running_loop().set_debug(False)
    counted = await torture(begin, rounds=1, seed=random_seed(), seconds=SECONDS_SHORT)

    assert counted["transactions committed"]
    assert counted["decisions told"]
    assert counted["batches"]


if __name__ == "__main__":
    sys.exit(run_from_command_line(begin, __doc__))
