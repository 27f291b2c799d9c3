"""Try schedules from the command line: many seeds, or one with all that happened in it."""

import argparse
import itertools
import math
import sys
import time
from collections import Counter

from millrace.server.wal import ObjectWal

from . import __doc__ as description
from .mutants import CollectsFences, OneFolder
from .schedule import run_schedule

LOGS = {each.__name__: each for each in (ObjectWal, CollectsFences, OneFolder)}


def main() -> int:
    """Return 1 if a rule was violated."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", "--seed", type=int, default=0, help="the first one")
    parser.add_argument("--minutes", type=float, help="as many as begin within so many minutes, instead of --seeds")
    parser.add_argument("--only", type=int, help="this one alone; all that happens is printed")
    parser.add_argument("--log", choices=LOGS, default=ObjectWal.__name__, help="the real log, or a mutant")
    chosen = parser.parse_args()
    log_class = LOGS[chosen.log]
    if chosen.only is not None:
        outcome = run_schedule(chosen.only, log_class=log_class)
        print(outcome)
        return int(bool(outcome.violations))
    counted: Counter[str] = Counter()
    failed: list[int] = []
    started_s = time.monotonic()
    limit_s = math.inf if chosen.minutes is None else chosen.minutes * 60
    ran = 0
    for seed in itertools.count(chosen.first):
        took_s = time.monotonic() - started_s
        if took_s >= limit_s or (chosen.minutes is None and ran == chosen.seeds):
            break
        outcome = run_schedule(seed, log_class=log_class)
        ran += 1
        counted += outcome.counted
        if outcome.violations:
            failed.append(seed)
            print(f"\nseed {seed}: {'; '.join(f'{rule.name}: {text}' for rule, text in outcome.violations)[:1000]}")
        elif sys.stdout.isatty() or ran % 500 == 0:
            end = "\r" if sys.stdout.isatty() else "\n"
            print(
                f"seed {seed}: {len(failed)} failed, {ran / took_s if took_s else 0:.0f} a second", end=end, flush=True
            )
    told = ", ".join(f"{count:,} {what}" for what, count in sorted(counted.items()))
    print(f"\n{ran:,} schedules, {len(failed)} failed {failed[:20]}: {told}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
