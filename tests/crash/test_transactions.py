"""Transactions over several streams, scaling, truncation and SIGKILL together: each is whole and once, or not at all.

In each round some streams live through some seconds of this:

- processes write transactions of any size over one to three streams, named and unnamed, and commit, prepare, abort or
  leave them; they are killed, and the next life of each resumes what it had begun, by its name;
- what was prepared is handed over to two processes, which commit and abort it by its name at the same time, and are
  killed; they must be told one outcome;
- two processes move what is written to one stream on to another, with their position in the commit;
- plain producers with sequences of their own write to the same streams, and are killed;
- streams are scaled by hand at borders of chance, so that commits are overtaken and torn, and what all have read is
  truncated;
- the server is killed at moments of chance, or stopped, and started again;
- readers follow each stream, and one goes from one consistent cut of three streams to the next: each transaction must
  be before a cut whole, or not at all.

Then all that was asked and told is judged by the checker of histories, and added up apart from it; each name has the
outcome that everybody was told, also after one more kill. At last the folder is verified.

    python -m tests.crash.test_transactions --rounds 20 --seed 7 --seconds 10
    python -m tests.crash.test_transactions --seed 7 --only 13 --keep /tmp/folder
"""

import argparse
import asyncio
import faulthandler
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from millrace.cli.verification import verify_folder
from millrace.client.testing import SETTINGS_SMALL, TestServer
from tests.crash.transactions.life import Life
from tests.support.servers import ENVIRONMENT_OF_BUSY

SECONDS = 6.0

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "quiet": SETTINGS_SMALL,
    "busy": ENVIRONMENT_OF_BUSY,
    "forgetful": {**ENVIRONMENT_OF_BUSY, "MILLRACE_CONTAINER_IDLE_BYTES_MAX": "0"},
}


async def torture(
    *, rounds: int, seed: int, seconds: float, first: int = 0, folder: Path | None = None
) -> Counter[str]:
    """Run so many rounds, say what each was like, and return the sum. A folder that is given is kept if one fails."""
    total: Counter[str] = Counter()
    for number in range(first, first + rounds):
        dice = random.Random(f"{seed}/{number}")
        server_is = dice.choice(list(SETTINGS))
        name = f"seed {seed} round {number}: {server_is}"
        place = folder or Path(tempfile.mkdtemp(prefix="millrace-"))
        data = place / "server"
        server = TestServer(data, settings=SETTINGS[server_is])
        life = Life(server, dice, seconds, place / "histories")
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
        print(f"{name}; {shown(life.counted)}", flush=True)
        total += life.counted
    return total


def shown(counted: Counter[str]) -> str:
    """Return what happened, and how often."""
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counted.items()))


@pytest.mark.slow
@pytest.mark.asyncio
async def test_transactions_are_whole_whatever_happens() -> None:
    """Behaviours 28 to 32 and 61 to 64."""
    asyncio.get_running_loop().set_debug(False)
    counted = await torture(rounds=1, seed=random.SystemRandom().randint(0, 10**6), seconds=SECONDS)

    assert counted["transactions committed"]
    assert counted["decisions told"]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that the server lives in each round")
    parser.add_argument("--only", type=int, help="this round alone")
    parser.add_argument("--keep", type=Path, help="folder of the server and the history, left there if a round fails")
    chosen = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # where it hangs, if it does
    rounds, first = (chosen.rounds, 0) if chosen.only is None else (1, chosen.only)
    total = asyncio.run(
        torture(rounds=rounds, seed=chosen.seed, seconds=chosen.seconds, first=first, folder=chosen.keep)
    )
    print(f"in all: {shown(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
