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

import argparse
import asyncio
import faulthandler
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from millrace.cli.verification import verify_folder
from millrace.client.testing import SETTINGS_SMALL, TestServer
from tests.crash.elastic.life import Life, Truncation
from tests.support.servers import ENVIRONMENT_OF_BUSY

SECONDS = 6.0

HASTY = {
    "MILLRACE_STREAMS_TICK_S": "0.05",
    "MILLRACE_STREAMS_RETENTION_INTERVAL_S": "0.05",
    "MILLRACE_STREAMS_FAST_WINDOW_S": "0.2",
    "MILLRACE_STREAMS_SLOW_WINDOW_S": "0.4",
    "MILLRACE_STREAMS_SPLIT_AFTER_S": "0.2",
    "MILLRACE_STREAMS_MERGE_AFTER_S": "0.3",
}
"""What streams do by themselves happens within the seconds of a round."""


FORGETFUL = {
    **ENVIRONMENT_OF_BUSY,
    "MILLRACE_CONTAINER_IDLE_BYTES_MAX": "0",
    "MILLRACE_CONTAINER_VERIFIED_AT_ONCE_COUNT_MAX": "0",
}
"""What is idle is nowhere but in the checkpoint."""

SETTINGS: dict[str, Mapping[str, str]] = {
    "quiet": SETTINGS_SMALL,
    "busy": ENVIRONMENT_OF_BUSY,
    "forgetful": FORGETFUL,
}


async def torture(*, rounds: int, seed: int, seconds: float, first: int = 0, folder: Path | None = None) -> None:
    """Run so many rounds, and say what each was like. A folder that is given is kept if one fails."""
    for number in range(first, first + rounds):
        dice = random.Random(f"{seed}/{number}")
        truncation = dice.choice(list(Truncation))
        server_is = dice.choice(list(SETTINGS))
        name = f"seed {seed} round {number}: truncated {truncation.value}, {server_is}"
        place = folder or Path(tempfile.mkdtemp(prefix="millrace-"))
        data = place / "server"
        server = TestServer(data, settings={**SETTINGS[server_is], **HASTY})
        life = Life(server, dice, seconds, truncation, place / "histories")
        try:
            server.start()
            await life.run()
            if dice.random() < 0.5:
                server.kill()
            else:
                assert server.stop() == 0
            verification = await asyncio.to_thread(verify_folder, data)
            assert not verification.findings, verification.findings
        except BaseException:
            print(f"{name}; FAILED after {dict(life.counted)}", flush=True)
            raise
        finally:
            server.stop()
            if folder is None:
                shutil.rmtree(place, ignore_errors=True)
        if folder is not None:
            shutil.rmtree(place)
        print(f"{name}; {', '.join(f'{count:,} {what}' for what, count in sorted(life.counted.items()))}", flush=True)
        assert life.counted["epochs"] > 1


@pytest.mark.slow
@pytest.mark.asyncio
async def test_every_key_is_complete_and_in_order_whatever_happens() -> None:
    """Behaviours 1 to 5, 16, 22 to 27, 39 and 48."""
    await torture(rounds=1, seed=random.SystemRandom().randint(0, 10**6), seconds=SECONDS)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each round")
    parser.add_argument("--only", type=int, help="this round alone")
    parser.add_argument("--keep", type=Path, help="folder of the server and the history, left there if a round fails")
    chosen = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # where it hangs, if it does
    rounds, first = (chosen.rounds, 0) if chosen.only is None else (1, chosen.only)
    asyncio.run(torture(rounds=rounds, seed=chosen.seed, seconds=chosen.seconds, first=first, folder=chosen.keep))
    return 0


if __name__ == "__main__":
    sys.exit(main())
