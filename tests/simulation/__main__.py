"""Try schedules from the command line: many seeds, or one with all that happened in it."""

import argparse
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
    parser.add_argument("--first", type=int, default=0, help="the first one")
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
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        outcome = run_schedule(seed, log_class=log_class)
        counted += outcome.counted
        if outcome.violations:
            failed.append(seed)
            print(f"\nseed {seed}: {'; '.join(f'{rule.name}: {text}' for rule, text in outcome.violations)[:1000]}")
        elif sys.stdout.isatty() or seed % 500 == 499:
            end = "\r" if sys.stdout.isatty() else "\n"
            rate = (seed + 1 - chosen.first) / (time.monotonic() - started_s)
            print(f"seed {seed}: {len(failed)} failed, {rate:.0f} a second", end=end, flush=True)
    told = ", ".join(f"{count:,} {what}" for what, count in sorted(counted.items()))
    print(f"\n{chosen.seeds:,} schedules, {len(failed)} failed {failed[:20]}: {told}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
