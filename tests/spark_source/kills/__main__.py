"""Run the whole kill matrix, again and again: every round has its own seed, and a line for each cell.

python -m tests.spark_source.kills --rounds 10 --seed 7
"""

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.spark_source.kills.cells import SEED_VARIABLE, WHOLE_VARIABLE
from tests.spark_source.kills.driver import ROOT

MODULES: Final = ("test_executors.py", "test_kill_matrix.py")
"""Those of the table; the chained queries have a command of their own."""


def main() -> int:
    """Return what pytest returned for the first round that failed, or 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark_source.kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="no cell begins after so many; as many rounds as fit")
    parser.add_argument("--seed", type=int, help="of the first round; each one after it has the next number")
    parser.add_argument("-k", dest="expression", default="", help="only these cells, as pytest takes them")
    arguments = parser.parse_args()
    first = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    limit_s = None if arguments.minutes is None else arguments.minutes * 60
    started_s = time.monotonic()
    for number in range(arguments.rounds) if limit_s is None else itertools.count():
        left: list[str] = []
        if limit_s is not None:
            left_s = limit_s - (time.monotonic() - started_s)
            if left_s <= 0:
                break
            left = [f"--minutes-max={left_s / 60:g}"]
        seed = first + number
        print(f"round {number + 1}: --seed {seed}", flush=True)
        finished = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-v", "-x", "-p", "no:cacheprovider",
                "-k", arguments.expression, *left, *(str(Path(__file__).with_name(name)) for name in MODULES),
            ],
            cwd=ROOT,
            env={**os.environ, SEED_VARIABLE: str(seed), WHOLE_VARIABLE: "1"},
            check=False,
        )  # fmt: skip
        if finished.returncode:
            print(f"failed: run it again with --seed {seed}", flush=True)
            return finished.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
