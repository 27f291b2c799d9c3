"""Advice for users of Spark's Kafka source: the equivalent options of this source."""

from collections.abc import Callable
from typing import Final

Advice = str | Callable[[str], str]
"""The advice, or a function that makes it from the option's value."""


def kafka_advice(name: str, value: str) -> str | None:
    """Return the equivalent of an option of Spark's Kafka source; None if it is not one."""
    lowered = name.lower()
    advice = _ADVICE.get(lowered)
    if advice is None:
        if not lowered.startswith("kafka."):
            return None
        advice = _SECURITY if lowered.startswith(("kafka.ssl.", "kafka.sasl.", "kafka.security.")) else _NO_SETTINGS
    return f"is an option of Kafka: {advice if isinstance(advice, str) else advice(value)}"


def _cut(option: str, *, default: str) -> Callable[[str], str]:
    """Return a function that translates a value of startingOffsets or endingOffsets into a cut of this source."""

    def advise(value: str) -> str:
        cut = {"earliest": "head", "latest": "tail"}.get(value.strip().lower())
        if cut:
            return f"write {option}={cut}"
        return f"write {option}={default}, or a cut as str(cut) or a checkpoint has it"

    return advise


def _time(option: str) -> Callable[[str], str]:
    """Return a function that translates a value of startingTimestamp or endingTimestamp into a time of this source."""

    def advise(value: str) -> str:
        text = value.strip()
        if text.isascii() and text.isdigit() and len(text) <= 15:
            return f"write {option}={int(text) * 1000}, in microseconds"
        return f"write {option}=2026-01-31T18:00:00Z, or the time in Unix microseconds"

    return advise


_SECURITY: Final = "write token, and tls=true"
_NO_SETTINGS: Final = "there is no client of Kafka here, leave it out"
_LEAVE_OUT: Final = "leave it out"
_OUTAGE: Final = "write outageTimeout, how long a query waits for a server that is away"

_ADVICE: Final[dict[str, Advice]] = {
    "kafka.bootstrap.servers": "write address",
    "subscribe": "write stream",
    "subscribepattern": "write streamPattern, in which * stands for any characters",
    "assign": "write stream; a task reads each segment, and key picks what is read",
    "startingoffsets": _cut("startCut", default="head"),
    "endingoffsets": _cut("endCut", default="tail"),
    "startingtimestamp": _time("startCut"),
    "endingtimestamp": _time("endCut"),
    "startingoffsetsbytimestamp": _time("startCut"),
    "endingoffsetsbytimestamp": _time("endCut"),
    "startingoffsetsbytimestampstrategy": f"{_LEAVE_OUT}: a time after all events is the tail",
    "maxoffsetspertrigger": "write maxEventsPerTrigger",
    "minoffsetspertrigger": f"{_LEAVE_OUT}, and let the trigger of the query wait",
    "maxtriggerdelay": f"{_LEAVE_OUT}, and let the trigger of the query wait",
    "maxrecordsperpartition": "write partitionBytes, about the bytes of a task",
    "groupidprefix": "write cursor, the name of the query on the server",
    "kafka.group.id": "write cursor, the name of the query on the server",
    "kafkaconsumer.polltimeoutms": _OUTAGE,
    "fetchoffset.numretries": _OUTAGE,
    "fetchoffset.retryintervalms": _OUTAGE,
    "topic": "write stream",
}
"""By lower-case name."""
