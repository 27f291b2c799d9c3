"""Find fraud among payments with cards: `python -m applications.fraud`.

A pattern is developed on a slice of history: several limits are tried, and their alerts are compared with the payments
that were disputed. Then the same query runs live. It differs in one option: it has no end. It is killed in the middle
of its work and started again. At the end the alerts of each card are those that plain Python finds in the same
payments, each once, in their order.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import millrace
from applications.following import PATIENCE_S
from millrace import blocking
from millrace.cli.output import print_done, print_note, print_table
from millrace.examples.running import Program, ended_by_sigterm, server_at
from millrace.model.figures import duration_text

from .desk import Desk
from .develop import Trial, best, trials_of
from .limits import Limits, Score
from .payments import ALERTS, DISPUTES, PAYMENTS, Alert, Payment, alert_of, create, dispute, pay
from .plain import alerts, placed
from .simulated import Simulated, simulated
from .watch import SLICE

BEGIN: Final = 0.2
"""The part of the payments that is older than the slice,"""
LABELLED: Final = 0.7
"""the part for which people have said by now which they dispute,"""
NOW: Final = 0.78
"""and the part that is there before the query runs live."""
WATCHED: Final = 0.4
"""This part of the payments that come live is told before more come;"""
KILL: Final = 0.5
"""after this part the query is killed,"""
RETURN: Final = 0.6
"""and up to this part they come whether it is back or not."""
AT_ONCE: Final = 32
PAUSE_S: Final = 0.1


class Seen(NamedTuple):
    """What was seen of the live query."""

    payments: Sequence[Payment]
    latencies_s: Sequence[float]
    recovery_s: float


def write_history(client: blocking.Client, made: Simulated) -> Sequence[Payment]:
    """Write the payments up to now, with the bookmarks of the slice, and the disputes; return what is yet to come."""
    payments = made.payments
    begin, labelled, now = (int(len(payments) * part) for part in (BEGIN, LABELLED, NOW))
    pay(client, payments[:begin])
    client.bookmarks(PAYMENTS).save("begin")
    pay(client, payments[begin:labelled])
    client.bookmarks(PAYMENTS).save("labelled")
    pay(client, payments[labelled:now])
    dispute(client, [payment for payment in payments[:labelled] if payment.number in made.disputed])
    print_note(f"{now:,} payments are history; {labelled - begin:,} of them are the slice")
    return payments[now:]


def develop(address: str, folder: Path) -> list[Trial]:
    """Try limits on the slice, and run the query over it; return what was tried."""
    log = folder / "develop.log"
    command = [sys.executable, "-m", f"{__package__}.develop", address, str(folder / "checkpoint")]
    with log.open("wb") as errors:
        finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, check=False, timeout=2 * PATIENCE_S)
    if finished.returncode != 0:
        raise SystemExit(f"the development failed: {log.read_text(errors='replace')[-3000:]}")
    return trials_of(finished.stdout)


def show_trials(tried: Sequence[Trial]) -> None:
    """Print how good the limits are on the slice."""
    rows = [
        (*trial.limits, *trial.score, *_parts(trial.score), "chosen" if trial == best(tried) else "") for trial in tried
    ]
    columns = ("minutes", "times", "km/h", "told", "right", "disputed", "precision", "recall", "F1", "")
    print_table(columns, rows, right=columns[:-1])


def live(client: blocking.Client, address: str, folder: Path, limits: Limits, coming: Sequence[Payment]) -> Seen:
    """Run the query while payments come, and kill it once."""

    def is_told() -> int:
        return client.distance(client.stream_head(ALERTS), client.stream_cut(ALERTS)).events

    watching = (f"{__package__}.watch", address, str(folder / "checkpoint"), *map(str, limits))
    watched, killed, returned = (int(len(coming) * part) for part in (WATCHED, KILL, RETURN))
    with Desk(address) as desk, Program(*watching, log=folder / "watch.log") as process:

        def feed(payments: Sequence[Payment]) -> None:
            for begin in range(0, len(payments), AT_ONCE):
                some = payments[begin : begin + AT_ONCE]
                desk.paid_s.update(dict.fromkeys((payment.number for payment in some), time.perf_counter()))
                pay(client, some)
                time.sleep(PAUSE_S)

        def wait_for_all() -> None:
            desk.wait_for(len(expected(client, limits)))

        wait_for_all()  # of what came since the slice: so the query runs
        feed(coming[:watched])
        wait_for_all()
        feed(coming[watched:killed])
        process.kill()
        count = is_told()
        began_s = time.perf_counter()
        process.start()
        feed(coming[killed:returned])
        desk.wait_for(count + 1)
        recovery_s = time.perf_counter() - began_s
        feed(coming[returned:])
        wait_for_all()
    return Seen(coming, desk.latencies_s, recovery_s)


def expected(client: blocking.Client, limits: Limits, *, end: millrace.CutChoice | str = millrace.TAIL) -> list[Alert]:
    """Return what must be told of the payments up to a place, found in plain Python."""
    return alerts(placed(client, SLICE["startCut"], end), limits)


def told(client: blocking.Client) -> list[Alert]:
    """Return all alerts, those of a card in their order."""
    with client.reader(ALERTS, end=millrace.TAIL) as reader:
        return [alert_of(json.loads(event.value)) for event in reader]


def check(found: Iterable[Alert], right: Iterable[Alert], *, what: str) -> None:
    """Check that alerts are the right ones, each once, those of each card in their order.

    Raises:
        SystemExit: they are not.
    """
    of_card: defaultdict[str, tuple[list[Alert], list[Alert]]] = defaultdict(lambda: ([], []))
    for index, some in enumerate((found, right)):
        for alert in some:
            of_card[alert.card][index].append(alert)
    for card, (has, needs) in of_card.items():
        if has != needs:
            raise SystemExit(f"{what}: of {card} {len(has)} alerts are told in place of {len(needs)}: {has}, {needs}")


def check_slice(client: blocking.Client, tried: Sequence[Trial]) -> None:
    """Check what the trials say of the slice, and that the query says the same as the batch.

    Raises:
        SystemExit: they are wrong.
    """
    for trial in tried:
        in_order = sorted(trial.alerts, key=lambda alert: alert.number)
        check(in_order, expected(client, trial.limits, end=SLICE["endCut"]), what=f"tried with {trial.limits}")
    check(told(client), expected(client, best(tried).limits, end=SLICE["endCut"]), what="the query over the slice")
    print_done(
        f"a batch and the query find the same {best(tried).score.told} alerts in the slice, as does plain Python"
    )


def show_live(seen: Seen, score: Score) -> None:
    """Print how good and how fast the live query was."""
    times = (statistics.median(seen.latencies_s), max(seen.latencies_s), seen.recovery_s)
    columns = ("live payments", "told", "right", "disputed", "precision", "recall", "F1", "p50", "longest", "restart")
    row = (f"{len(seen.payments):,}", *score, *_parts(score), *map(duration_text, times))
    print_table(columns, [row], right=columns)


def _parts(score: Score) -> tuple[str, ...]:
    return tuple(f"{part:.2f}" for part in (score.precision, score.recall, score.f1))


@ended_by_sigterm()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m applications.fraud", description=__doc__)
    parser.add_argument("--address", help="of a server; without it one is started")
    parser.add_argument("--seed", type=int, default=11, help="of the payments (%(default)s)")
    options = parser.parse_args(arguments)
    made = simulated(options.seed)
    with ExitStack() as stack:
        address = stack.enter_context(server_at(options.address))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = stack.enter_context(blocking.connect(address))
        if not create(client):
            raise SystemExit(f"of {PAYMENTS}, {DISPUTES} and {ALERTS} some are there already; use a new server")
        coming = write_history(client, made)
        tried = develop(address, folder)
        show_trials(tried)
        check_slice(client, tried)
        limits = best(tried).limits
        seen = live(client, address, folder, limits, coming)
        found = told(client)
        check(found, expected(client, limits), what="the live query")
        numbers = {payment.number for payment in coming}
        score = Score.of([alert.number for alert in found if alert.number in numbers], numbers & made.disputed)
        show_live(seen, score)
        print_done(f"all {len(found)} alerts are those that plain Python finds, each once, those of a card in order")


if __name__ == "__main__":
    main()
