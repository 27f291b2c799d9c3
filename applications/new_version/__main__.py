"""Replace an application by its next version, on a live stream: `python -m applications.new_version`.

The old version runs. The new one begins at the head of the same stream, beside it, writes into a stream of its own, is
killed on the way, and catches up. What both say of the same readings is compared. Then both are stopped, a bookmark is
saved, both run up to it, and the new version continues where the old one ended. Readings come all the time. At the end
each has one result: of the old version before the bookmark, of the new one after it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import millrace
from applications.following import PATIENCE_S, Follower
from millrace import blocking
from millrace.cli.output import print_done, print_table
from millrace.examples.demo.data import Reading, readings
from millrace.examples.running import Program, ended_by_sigterm, server_at
from millrace.model.figures import duration_text

from .compare import Comparison
from .weather import READINGS, create, places, result_of, write

RESULTS: Final = "weather/results"
TRIAL: Final = "weather/results-of-a-trial"
SWITCH: Final = "bookmark:switch"
AT_ONCE: Final = 24
PAUSE_S: Final = 0.25
LAST: Final = 500
"""So many readings are kept for the time after the switch."""


class Screen(Follower):
    """Shows the results to people: here, it notes which version told what, and that each sensor's are in order."""

    def __init__(self, address: str, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(address, RESULTS, patience_s=patience_s)
        self.told: Counter[tuple[int, millrace.EventPosition]] = Counter()
        self.first_s: dict[int, float] = {}
        self._latest: dict[str, millrace.EventPosition] = {}

    def take(self, event: millrace.Event, came_s: float) -> None:
        result = result_of(event.value)
        latest = self._latest.get(result.sensor)
        if latest is not None and result.place <= latest:
            raise SystemExit(f"{result.sensor}: {result.place} came after {latest}")
        self._latest[result.sensor] = result.place
        self.told[result.version, result.place] += 1
        self.first_s.setdefault(result.version, came_s)

    def wait_for_version(self, number: int) -> None:
        """Wait until a version has told its first result."""
        self.wait_until(lambda: number in self.first_s)


class Feed:
    """Writes readings as they come: a few, again and again, until it is told to end."""

    def __init__(self, address: str, left: Sequence[Reading]) -> None:
        self._address = address
        self._left = left
        self._written = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        with blocking.connect(self._address) as client:
            for begin in range(0, len(self._left) - LAST, AT_ONCE):
                if self._ending.wait(PAUSE_S):
                    break
                write(client, self._left[begin : begin + AT_ONCE])
                self._written = begin + AT_ONCE

    def end(self) -> Sequence[Reading]:
        """Write no more; return what is left."""
        self._ending.set()
        self._thread.join()
        return self._left[self._written :]


def compare_at(until: str, *, address: str, folder: Path) -> Comparison:
    """Compare what both versions say of the readings up to a place, when both have come to it."""
    command = [sys.executable, "-m", f"{__package__}.compare", address, RESULTS, TRIAL, until]
    with (folder / "compare.log").open("wb") as log:
        printed = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=True, timeout=PATIENCE_S).stdout
    return Comparison(**json.loads(printed))


def show(compared: Comparison) -> None:
    """Print what is compared."""
    rows = [
        ("readings", compared.readings),
        ("unusual for both", compared.both),
        ("only for the old version", compared.old),
        ("only for the new version", compared.new),
    ]
    print_table(("up to the bookmark", "count"), rows, right=("count",))
    if compared.examples:
        columns = ("sensor", "F", "the new version expected", "the old version expected")
        print_table(
            columns, [(name, *map("{:.1f}".format, rest)) for name, *rest in compared.examples], right=columns[1:]
        )


def check(client: blocking.Client, screen: Screen) -> None:
    """Tell a gap or a repeat: each reading has one result, of the version that the switch says."""
    before, after = places(client, millrace.HEAD, SWITCH), places(client, SWITCH, millrace.TAIL)
    screen.wait_for(len(before) + len(after))
    expected = Counter([(1, place) for place in before] + [(2, place) for place in after])
    if wrong := (screen.told - expected) | (expected - screen.told):
        raise SystemExit(
            f"{wrong.total()} results are missing, repeated, or of the wrong version, such as {next(iter(wrong))}"
        )
    print_done(f"each reading has one result: {len(before):,} of the old version, {len(after):,} of the new one")


def version(number: int, into: str, until: str | None = None, *, address: str, folder: Path) -> Program:
    """Return a version as a program. Its checkpoint is the same, whatever it writes into, and until when."""
    arguments = (f"{__package__}.watch", str(number), address, str(folder / f"version-{number}"), into)
    log = folder / f"version-{number}.log"
    return Program(*arguments, *([] if until is None else [until]), log=log)


def replace(client: blocking.Client, address: str, folder: Path) -> None:
    """Run the old version, try the new one, compare them, switch, and check what was told."""
    taken = readings()
    create(client, READINGS, RESULTS, TRIAL)
    history = taken[: len(taken) // 2]
    write(client, history)
    with Screen(address) as screen, ExitStack() as stack:

        def start(number: int, into: str, until: str | None = None) -> Program:
            return stack.enter_context(version(number, into, until, address=address, folder=folder))

        old = start(1, RESULTS)
        screen.wait_for(len(history))
        print_done(f"the old version has told its results of {len(history):,} readings, and continues")
        feed = Feed(address, taken[len(history) :])
        new = start(2, TRIAL)
        with client.reader(TRIAL, start=millrace.HEAD) as reader:
            next(reader)
        new.kill()
        new.start()
        print_done("the new version has begun at the head of the same stream, was killed, and continues")
        client.bookmarks(READINGS).save("trial")
        show(compare_at("bookmark:trial", address=address, folder=folder))

        old.kill()
        new.kill()
        client.bookmarks(READINGS).save("switch")
        began_s = time.perf_counter()
        for each in [start(1, RESULTS, SWITCH), start(2, TRIAL, SWITCH)]:
            each.wait(PATIENCE_S)
        ended_s = time.perf_counter()
        start(2, RESULTS)
        write(client, feed.end())
        screen.wait_for_version(2)
        print_done(
            f"both have come to the switch after {duration_text(ended_s - began_s)}, and the first result "
            f"of the new version was there {duration_text(screen.first_s[2] - ended_s)} later"
        )
        check(client, screen)


@ended_by_sigterm()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m applications.new_version", description=__doc__)
    parser.add_argument("--address", help="of a server; without it one is started")
    options = parser.parse_args(arguments)
    with server_at(options.address) as address, tempfile.TemporaryDirectory() as folder:
        with blocking.connect(address) as client:
            replace(client, address, Path(folder))


if __name__ == "__main__":
    main()
