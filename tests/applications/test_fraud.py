"""A pattern is developed on a slice and run live by changing one option; what it tells is what plain Python finds."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from pyspark.sql import Row

import millrace
from applications.fraud import __main__ as command
from applications.fraud.desk import Desk
from applications.fraud.develop import Trial, best, trials_of
from applications.fraud.limits import TRIALS, Limits, Score
from applications.fraud.patterns import Watch
from applications.fraud.payments import ALERTS, PAYMENTS, Alert, City, Payment, alert_of, create, pay
from applications.fraud.plain import Placed, alerts, placed
from applications.fraud.simulated import simulated
from applications.fraud.watch import LIVE, SLICE
from millrace import blocking
from millrace.client.testing import TestServer
from tests.support.tables import table

LIMITS = Limits(minutes=20, times=4, kmh=900)
SEATTLE, MIAMI = City("Seattle", 47.4, -122.3), City("Miami", 25.8, -80.3)
MINUTE_US = 60_000_000


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_the_alerts_are_those_of_plain_python_although_the_query_is_killed() -> None:
    """Behaviours 26, 54, 55, 56 and 67. As a process of its own: Spark stays in its process until that ends."""
    program = [sys.executable, "-m", "applications.fraud"]
    finished = subprocess.run(program, capture_output=True, text=True, check=False)

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "a batch and the query find the same" in finished.stderr
    assert "those that plain Python finds, each once" in finished.stderr
    lines = finished.stdout.splitlines()
    assert sum(line.rstrip().endswith("chosen") for line in lines) == 1
    at = next(number for number, line in enumerate(lines) if "live payments" in line)
    cells = lines[at + 1 :][-1].split()
    shown = [line for line in lines if re.match(r" *\d+\.\d\d s  card-\d+  (tested|far apart) ", line)]
    assert len(shown) == int(cells[1]) > 20
    assert float(cells[4]) > 0.5
    assert float(cells[5]) > 0.5


def test_one_option_makes_the_query_run_live() -> None:
    assert SLICE["stream"] == PAYMENTS
    assert SLICE.items() ^ LIVE.items() == {("endCut", SLICE["endCut"])}


def test_a_seed_makes_the_same_payments() -> None:
    made = simulated(3)

    assert made == simulated(3)
    assert made.payments != simulated(4).payments
    assert [payment.number for payment in made.payments] == list(range(len(made.payments)))
    assert all(one.at_us <= other.at_us for one, other in zip(made.payments, made.payments[1:], strict=False))
    assert 0.01 < len(made.disputed) / len(made.payments) < 0.05


def payments_of(*each: tuple[float, int, City | None]) -> list[Placed]:
    """Return five usual payments of a card in Seattle, days before, and more: minutes, cents, city."""
    usual = [(-1440.0 * day, 1000, SEATTLE) for day in (9, 8, 7, 6, 5)]
    return [
        Placed(Payment("ada", number, int(minutes * MINUTE_US), cents, city), millrace.EventPosition(1, 10 * number, 0))
        for number, (minutes, cents, city) in enumerate([*usual, *each])
    ]


@table(
    ("more", "rules"),
    [
        ([(0, 100, None), (20, 3500, None)], {6: "tested"}),
        ([(0, 201, None), (20, 3500, None)], {}),  # not small
        ([(0, 100, None), (21, 3500, None)], {}),  # not soon
        ([(0, 100, None), (20, 3400, None)], {}),  # not more than four times (5000 + 100) / 6
        ([(0, 100, None), (60, 90, None), (70, 3500, None)], {7: "tested"}),
        ([(0, 900, SEATTLE), (200, 900, MIAMI)], {6: "far apart"}),
        ([(0, 900, SEATTLE), (400, 900, MIAMI)], {}),  # an aeroplane does that
        ([(0, 900, SEATTLE), (100, 900, None), (200, 900, MIAMI)], {7: "far apart"}),
        ([(0, 900, SEATTLE), (200, 900, MIAMI), (210, 900, SEATTLE)], {6: "far apart", 7: "far apart"}),
    ],
)
def test_what_must_be_told(more: list[tuple[float, int, City | None]], rules: dict[int, str]) -> None:
    assert {alert.number: alert.rule for alert in alerts(payments_of(*more), LIMITS)} == rules


def test_an_alert_names_both_payments() -> None:
    more = [(0.0, 100, None), (1.0, 90, None), (20.0, 3500, None)]

    assert alerts(payments_of(*more), LIMITS) == [
        Alert("ada", 7, "tested", millrace.EventPosition(1, 70, 0), before=millrace.EventPosition(1, 60, 0))
    ]


def test_nobody_knows_what_is_usual_for_a_new_card() -> None:
    five = payments_of((0.0, 100, None), (1.0, 3500, None))[-2:]

    assert alerts(five, LIMITS) == []


class Held:
    """State in memory, with the two methods of Spark's that are used."""

    def __init__(self) -> None:
        self._value: tuple[Any, ...] | None = None

    def get(self) -> tuple[Any, ...] | None:
        return self._value

    def update(self, value: tuple[Any, ...]) -> None:
        assert type(value) is tuple
        self._value = value


class Handle:
    """The handle of one key."""

    def __init__(self) -> None:
        self._states: dict[str, Held] = {}

    def getValueState(self, name: str, schema: str) -> Held:  # noqa: N802
        return self._states.setdefault(name, Held())


def rows(some: Iterable[Placed]) -> Iterator[Row]:
    for payment, place in some:
        city = payment.city or (None, None, None)
        yield Row(
            _key=payment.card, number=payment.number, cents=payment.cents, at_us=payment.at_us,
            city=city[0], latitude=city[1], longitude=city[2],
            _segment=place.segment_id, _offset=place.offset, _index=place.event_index,
        )  # fmt: skip


def watched(mine: Sequence[Placed], chance: Random, limits: Limits) -> Iterator[Alert]:
    """Yield what the pattern tells of the payments of one card, cut into batches, each of them mixed up."""
    handle: Any = Handle()
    while mine:
        count = chance.randint(1, 40)
        batch, mine = list(mine[:count]), mine[count:]
        chance.shuffle(batch)
        watch = Watch(limits)
        watch.init(handle)
        yield from map(alert_of, watch.handleInputRows((batch[0].payment.card,), rows(batch), None))


@pytest.mark.slow
@pytest.mark.parametrize("limits", TRIALS)
def test_the_pattern_tells_the_same_however_payments_come(limits: Limits) -> None:
    """Also of a card whose stream was split: the segment ascends, and the offsets begin once more."""
    made = [payment for payment in simulated(5).payments if payment.card < "card-040"]
    of_card: dict[str, list[Placed]] = {}
    for payment in made:
        segment, offset = divmod(payment.number, 5000)
        of_card.setdefault(payment.card, []).append(Placed(payment, millrace.EventPosition(segment, offset, 0)))
    chance = Random(1)

    found = [alert for mine in of_card.values() for alert in watched(mine, chance, limits)]

    assert found == alerts((each for mine in of_card.values() for each in mine), limits)
    assert {alert.rule for alert in found} == {"tested", "far apart"}


def test_the_best_trial_has_the_best_mean() -> None:
    eager, good, cautious = (
        Trial(limits, Score.of(told, disputed=[1, 2, 3, 4]), [])
        for limits, told in zip(TRIALS, ([*range(40)], [1, 2, 3, 9], [1]), strict=False)
    )

    assert (good.score.precision, good.score.recall, good.score.f1) == (0.75, 0.75, 0.75)
    assert (cautious.score.precision, cautious.score.recall, cautious.score.f1) == (1.0, 0.25, 0.4)
    assert best([eager, good, cautious]) == good
    assert Score.of([], disputed=[1]).f1 == 0


def test_trials_are_read_as_they_were_printed() -> None:
    found = alerts(payments_of((0.0, 100, None), (20.0, 3500, None)), LIMITS)
    trial = Trial(LIMITS, Score.of([6], disputed=[6, 7]), found)

    assert trials_of(json.dumps([trial]).encode()) == [trial]


def tell(client: blocking.Client, told: Iterable[Alert]) -> None:
    """Write alerts as the query does."""
    with client.writer(ALERTS) as writer:
        for alert in told:
            places = {
                name: dict(zip(("segment", "offset", "index"), place, strict=True))
                for name, place in (("payment", alert.payment), ("before", alert.before))
            }
            value = {"card": alert.card, "number": alert.number, "rule": alert.rule, **places}
            writer.write(json.dumps(value).encode(), key=alert.card)


@pytest.fixture
def client(millrace_server: TestServer) -> Iterator[blocking.Client]:
    """A server with a third of the payments."""
    with blocking.connect(millrace_server.address) as client:
        assert create(client)
        assert not create(client)
        made = simulated(11).payments
        pay(client, made[: len(made) // 3])
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["", "missing", "once more", "in another order", "another rule"])
def test_wrong_alerts_are_seen(client: blocking.Client, wrong: str) -> None:
    """The check of the command can fail."""
    right = alerts(placed(client, millrace.HEAD, millrace.TAIL), LIMITS)
    card = next(alert.card for alert in right if sum(each.card == alert.card for each in right) > 1)
    first, *rest = (alert for alert in right if alert.card == card)
    others = [alert for alert in right if alert.card != card]
    changed = {
        "": [first, *rest],
        "missing": rest,
        "once more": [first, *rest, first],
        "in another order": [*rest, first],
        "another rule": [first._replace(rule="unknown"), *rest],
    }
    tell(client, [*others, *changed[wrong]])

    found = command.told(client)

    if wrong:
        with pytest.raises(SystemExit, match=f"here: of {card} "):
            command.check(found, right, what="here")
    else:
        command.check(found, right, what="here")
        assert len(found) == len(right) > 20


@pytest.mark.slow
def test_the_desk_shows_the_payments_that_an_alert_names(
    client: blocking.Client, millrace_server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = payments_of((0.0, 100, None), (7.0, 3500, None))
    pay(client, [payment for payment, _ in mine])
    of_ada = [each for each in placed(client, millrace.HEAD, millrace.TAIL) if each.payment.card == "ada"]
    (alert,) = alerts(of_ada, LIMITS)
    with Desk(millrace_server.address) as desk:
        desk.paid_s[alert.number] = 0.0
        tell(client, [alert])
        desk.wait_for(1)

        assert len(desk.latencies_s) == 1
        assert "ada  tested     $1.00 online, and 7 minutes later $35.00 online" in capsys.readouterr().out

    tell(client, [alert._replace(payment=alert.before)])
    with pytest.raises(SystemExit, match="names"), Desk(millrace_server.address) as desk:
        desk.wait_for(2)
