"""Try seeds from the command line: many of them, or one with all that happened in it."""

import argparse
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.server.wal import ObjectWal

from . import __doc__ as description
from .mutants import CollectsFences, OneFolder
from .schedule import run_schedule
from .server.tortures import TORTURES
from .server.world import run_torture

LOGS: Final = {each.__name__: each for each in (ObjectWal, CollectsFences, OneFolder)}
TURN_S_MAX: Final = 20.0
"""How long a kind of simulation runs before the next one has its turn."""
SHOWN_CHARACTERS_MAX: Final = 1000


@dataclass
class Tried:
    """The seeds of one kind of simulation.

    Attributes:
        run: runs a seed; returns what was violated, what was counted, and which rare branches were reached.
        replay: the arguments that replay a seed, without it.
        reached: in how many seeds a rare branch was reached.
    """

    name: str
    run: Callable[[int], tuple[Sequence[str], Counter[str], Counter[str]]]
    replay: str
    seed: int
    ran: int = 0
    failed: list[int] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)

    def go_on(self, *, until_s: float, count_max: float) -> None:
        """Run seeds, one at least, until a moment of the monotonic clock or until so many have run."""
        while self.ran < count_max:
            violations, counted, reached = self.run(self.seed)
            if violations:
                self.failed.append(self.seed)
                print(f"\n{self.name}: {'; '.join(violations)[:SHOWN_CHARACTERS_MAX]}")
                print(f"replay: python -m tests.simulation {self.replay} --only {self.seed}", flush=True)
            self.counted += counted
            self.reached += Counter(reached.keys())
            self.seed += 1
            self.ran += 1
            if time.monotonic() >= until_s:
                break
        print(f"{self.name}: {self.ran:,} seeds, {len(self.failed)} failed", flush=True)

    def __str__(self) -> str:
        counted = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counted.items()))
        reached = [f"  {count:6,} of {self.ran:,}  {branch}" for branch, count in sorted(self.reached.items())]
        return "\n".join([f"{self.name}: {self.ran:,} seeds, failed {self.failed[:20]}: {counted}", *reached])


def _schedules(log: str, seed: int) -> Tried:
    def run(seed: int) -> tuple[Sequence[str], Counter[str], Counter[str]]:
        outcome = run_schedule(seed, log_class=LOGS[log])
        return [f"{rule.name}: {text}" for rule, text in outcome.violations], outcome.counted, Counter()

    return Tried("log", run, f"--log {log}", seed)


def _torture(name: str, seed: int) -> Tried:
    def run(seed: int) -> tuple[Sequence[str], Counter[str], Counter[str]]:
        outcome = run_torture(TORTURES[name], seed)
        return outcome.violations, outcome.counted, outcome.reached

    return Tried(name, run, f"--torture {name}", seed)


def main() -> int:
    """Return 1 if a rule was violated."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torture", choices=TORTURES, help="of servers and clients (default: each, and the log)")
    parser.add_argument("--log", choices=LOGS, help="schedules of the log alone: the real one, or a mutant")
    parser.add_argument("--seed", "--first", type=int, default=0, help="the first one")
    parser.add_argument("--only", type=int, help="this seed alone; all that happens is printed")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seeds", type=int, help="how many of each kind (default: 10)")
    length.add_argument("--minutes", type=float, help="as many as begin within so many minutes")
    length.add_argument("--hours", type=float, help="as many as begin within so many hours")
    chosen = parser.parse_args()
    if chosen.only is not None:
        if chosen.torture is None:
            schedule = run_schedule(chosen.only, log_class=LOGS[chosen.log or ObjectWal.__name__])
            print(schedule)
            return int(bool(schedule.violations))
        outcome = run_torture(TORTURES[chosen.torture], chosen.only)
        print(outcome)
        print(outcome.trace)
        return int(bool(outcome.violations))
    names = [chosen.torture] if chosen.torture else [] if chosen.log else list(TORTURES)
    kinds = [_torture(name, chosen.seed) for name in names]
    if not chosen.torture:
        kinds.append(_schedules(chosen.log or ObjectWal.__name__, chosen.seed))
    if chosen.minutes is None and chosen.hours is None:
        for each in kinds:
            each.go_on(until_s=math.inf, count_max=10 if chosen.seeds is None else chosen.seeds)
    else:
        length_s = 60 * (chosen.minutes if chosen.hours is None else 60 * chosen.hours)
        turn_s = min(TURN_S_MAX, length_s / len(kinds))
        end_s = time.monotonic() + length_s
        for each in itertools.cycle(kinds):
            now_s = time.monotonic()
            if now_s >= end_s:
                break
            each.go_on(until_s=min(end_s, now_s + turn_s), count_max=math.inf)
    print()
    for each in kinds:
        print(each)
    return int(any(each.failed for each in kinds))


if __name__ == "__main__":
    sys.exit(main())
