"""Develop the pattern on a slice of history: `python -m applications.fraud.develop ADDRESS CHECKPOINT`.

It tries several limits, each as a batch over the slice, and compares the alerts with what was disputed. With the best
limits it runs the query that will run live, up to the end of the slice. It prints a line of JSON: the trials, in the
order of `TRIALS`.
"""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace import EventPosition, blocking
from millrace.examples.running import STATE_IN_ROCKSDB, spark_session

from .limits import TRIALS, Limits, Score
from .patterns import PAYMENT, patterns
from .payments import Alert, alert_of, disputes
from .watch import SLICE, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Trial(NamedTuple):
    """What the pattern has told of the slice with some limits."""

    limits: Limits
    score: Score
    alerts: list[Alert]


def trials(spark: "SparkSession", address: str) -> list[Trial]:
    """Try all limits over the slice."""

    reader = spark.read.format("millrace").schema(PAYMENT).options(address=address, valueFormat="json", **SLICE)
    payments = reader.load().cache()
    with blocking.connect(address) as client:
        disputed = disputes(client) & {row["number"] for row in payments.select("number").collect()}
    found = []
    for limits in TRIALS:
        alerts = [alert_of(row) for row in patterns(payments, limits).collect()]
        found.append(Trial(limits, Score.of([alert.number for alert in alerts], disputed), alerts))
    return found


def best(tried: Sequence[Trial]) -> Trial:
    """Return the trial with the best mean of precision and recall (F1)."""
    return max(tried, key=lambda trial: trial.score.f1)


def trials_of(printed: bytes) -> list[Trial]:
    """Return the trials of a line that this program has printed."""
    return [
        Trial(Limits(*limits), Score(*score), list(map(_alert_of, alerts)))
        for limits, score, alerts in json.loads(printed)
    ]


def _alert_of(fields: Sequence[Any]) -> Alert:
    card, number, rule, payment, before = fields
    return Alert(card, number, rule, EventPosition(*payment), EventPosition(*before))


if __name__ == "__main__":
    _, at, folder = sys.argv
    with spark_session("develop", STATE_IN_ROCKSDB) as session:
        tried = trials(session, at)
        running = query(session, best(tried).limits, address=at, checkpoint=folder, **SLICE)
        running.processAllAvailable()
        running.stop()
    print(json.dumps(tried))
