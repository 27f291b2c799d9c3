"""The parts of the suite beside `make test`, by name: slow tests, tortures, examples drawn afresh.

::

    python -m tests.parts                         # list the parts
    python -m tests.parts crash spark             # run two of them
    python -m tests.parts all --seed 7
    python -m tests.parts auto --minutes 20       # two parts and a seed, drawn from the content of HEAD

A slow test belongs to the part of its folder. Each command of a part takes a seed and a number of minutes, and begins
nothing new when its minutes are over; a target of make runs whole. Running out of time is not a failure. A failed check
is one, and so is a command that has not ended `ENDING_MINUTES` after its time.
"""

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ENDING_MINUTES: Final = 10.0
DRAWN_COUNT: Final = 2

PYTHON: Final = (sys.executable, "-m")
PYTEST: Final = (*PYTHON, "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the suite.

    Attributes:
        title: what it tests, in some words.
        folder: where its slow tests are, relative to the repository; folders of other parts in it are left out.
        programs: the modules that it runs, which take `--seed` and `--minutes`.
        targets: the targets of make that it runs, whole.
        properties: whether it runs the property tests with more examples.
        is_drawn: whether `auto` may draw it: only what runs on a bare machine.
    """

    title: str
    folder: str = ""
    programs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    properties: bool = False
    is_drawn: bool = True


PARTS: Final = {
    "server": Part("real disks, processes and stores under the server", "tests/server"),
    "crash": Part("kills, power loss and stalled processes", "tests/crash"),
    "spark": Part("Spark queries, batches, sinks and SQL", "tests/spark_source"),
    "kills": Part("kills of drivers, executors and servers of Spark queries", "tests/spark_source/kills"),
    "examples": Part("example programs and the demo", "tests/examples"),
    "applications": Part("the applications, whole", "tests/applications"),
    "rest": Part("clients, commands, documents, installation", "tests"),
    "torture": Part(
        "rounds of kills, stops and cut connections; every promise is checked",
        programs=(
            "tests.crash.test_transactions",
            "tests.crash.test_elastic",
            "tests.crash.test_producers",
        ),
    ),
    "failover": Part(
        "rounds of kills, stops and cut networks of two servers over one store; needs `make s3`",
        programs=("tests.crash.test_failover",),
        is_drawn=False,
    ),
    "matrix": Part(
        "the whole kill matrix, and chained queries",
        programs=("tests.spark_source.kills", "tests.spark_source.kills.test_chain"),
    ),
    "spark40": Part("the Spark tests with the oldest PySpark that is supported", targets=("spark40",), is_drawn=False),
    "schedules": Part("virtual clusters over a faulty store", programs=("tests.simulation",)),
    "properties": Part("property tests with ten times the examples, drawn afresh", properties=True),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended: `failed` names the commands that failed."""

    name: str
    seconds: float
    failed: tuple[str, ...]


def commands(part: Part, *, seed: int, minutes: float) -> list[list[str]]:
    """Return the commands of a part, which share the minutes."""
    if part.folder:
        others = [each.folder for each in PARTS.values() if each.folder.startswith(f"{part.folder}/")]
        ignored = [f"--ignore={folder}" for folder in others]
        return [[*PYTEST, "-m", "slow or spark", f"--minutes-max={minutes:g}", part.folder, *ignored]]
    if part.properties:
        drawn = ["--hypothesis-profile=thorough", f"--hypothesis-seed={seed}", f"--order-seed={seed}"]
        return [[*PYTEST, "-m", "hypothesis and not slow and not spark", f"--minutes-max={minutes:g}", *drawn]]
    if part.targets:
        return [["make", target] for target in part.targets]
    share = minutes / len(part.programs)
    return [[*PYTHON, program, "--seed", str(seed), "--minutes", f"{share:g}"] for program in part.programs]


def draw(tree: str) -> tuple[list[str], int]:
    """Return the parts and the seed for the content of a commit: equal content draws the same."""
    dice = random.Random(tree)
    return dice.sample([name for name, part in PARTS.items() if part.is_drawn], DRAWN_COUNT), dice.randrange(10**6)


def run(name: str, *, seed: int, minutes: float) -> Outcome:
    """Run the commands of a part one after the other, whatever fails."""
    started_s = time.monotonic()
    failed: list[str] = []
    each_command = commands(PARTS[name], seed=seed, minutes=minutes)
    limit_s = (minutes / len(each_command) + ENDING_MINUTES) * 60
    for command in each_command:
        shown = shlex.join(["python", *command[1:]] if command[0] == sys.executable else command)
        print(f"\n== {name}: {shown}", flush=True)
        if not _succeeds(command, limit_s):
            failed.append(shown)
    return Outcome(name, time.monotonic() - started_s, tuple(failed))


def _succeeds(command: Sequence[str], limit_s: float) -> bool:
    """Run a command in a process group of its own, so that none of its children outlives it."""
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            print(f"not ended {ENDING_MINUTES:g} minutes after its time", flush=True)
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def head_tree() -> str:
    """Return the hash of the content of HEAD."""
    command = ["git", "rev-parse", "HEAD^{tree}"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that the command line names; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "all", "auto", []], metavar="PART", help="or all, or auto")
    parser.add_argument("--minutes", type=float, default=60.0, help="for each part (default: 60)")
    parser.add_argument("--seed", type=int, help="of programs and drawn examples (default: drawn)")
    chosen = parser.parse_args(arguments)
    if not chosen.parts:
        for name, part in PARTS.items():
            print(f"{name:12} {part.title}")
        return 0
    names, seed = list(chosen.parts), random.SystemRandom().randrange(10**6)
    if "auto" in names:
        names, seed = draw(head_tree())
    elif "all" in names:
        names = list(PARTS)
    seed = seed if chosen.seed is None else chosen.seed
    print(f"parts: {', '.join(names)}; seed {seed}", flush=True)
    outcomes = [run(name, seed=seed, minutes=chosen.minutes) for name in names]
    print()
    for outcome in outcomes:
        print(f"{outcome.name:12} {outcome.seconds / 60:5.1f} min  {'failed' if outcome.failed else 'passed'}")
        for command in outcome.failed:
            print(f"  {command}")
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
