"""Writers, readers, scaling, truncation and SIGKILL together: every key's sequence is +1 at the readers.

In each round a stream lives through some seconds of this:

- writers with and without an id write numbered events of many keys, one by one and in blocks; producers in processes of
  their own are killed, or put to sleep, and others continue under their ids;
- the stream is scaled by hand at borders of chance, and by the policy of its server, which is set to act at once;
- in two rounds of three what all consumers have passed is truncated: by hand, or by retention through their cursors;
- the server is killed at moments of chance, also while it starts, or stopped, and started again;
- three consumers must get everything: one reads events, one record batches, one stops all the time and resumes from
  the text of its place. One reader comes late, is overtaken by truncations, and continues with what is left;
- somebody asks all the time for cuts, distances, explanations and single events;
- somebody visits streams where nobody else is, of which the server may hold nothing in memory.

Then the stream is sealed, and must be what all of them say: see `Life._check`. At last the folder is verified.

    python -m tests.crash.test_elastic --rounds 20 --seed 7
    python -m tests.crash.test_elastic --seed 7 --only 13 --keep /tmp/folder
"""

import sys

import pytest

from tests.crash.elastic.life import Life, Truncation
from tests.crash.torture import SETTINGS, Circumstances, random_seed, run_from_command_line, server_in, torture

HASTY = {
    "MILLRACE_STREAMS_TICK_S": "0.05",
    "MILLRACE_STREAMS_RETENTION_INTERVAL_S": "0.05",
    "MILLRACE_STREAMS_FAST_WINDOW_S": "0.2",
    "MILLRACE_STREAMS_SLOW_WINDOW_S": "0.4",
    "MILLRACE_STREAMS_SPLIT_AFTER_S": "0.2",
    "MILLRACE_STREAMS_MERGE_AFTER_S": "0.3",
}
"""What streams do by themselves happens within the seconds of a round."""


def begin(given: Circumstances) -> tuple[str, Life]:
    """Make the life of a round."""
    truncation = given.dice.choice(list(Truncation))
    server_is = given.dice.choice(list(SETTINGS))
    server = server_in(given.server, {**SETTINGS[server_is], **HASTY})
    life = Life(server, given.dice, given.seconds, truncation, given.histories)
    return f"truncated {truncation.value}, {server_is}", life


@pytest.mark.slow
@pytest.mark.asyncio
async def test_every_key_is_complete_and_in_order_whatever_happens() -> None:
    """Behaviours 1 to 5, 16, 22 to 27, 39 and 48."""
    await torture(begin, rounds=1, seed=random_seed())


if __name__ == "__main__":
    sys.exit(run_from_command_line(begin, __doc__))
