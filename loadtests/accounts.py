"""What the users of one load test did and saw, and whether everything adds up."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .histogram import Histogram, Summary
from .workload import Scenario, Violation

_ERRORS_KEPT: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one load test; what `report` prints and what the exit code says."""

    scenario: str
    description: str
    duration_s: float
    append: Summary
    appended_events: int
    appended_bytes: int
    # From the moment an event was due to its arrival at a tail reader.
    tail: Summary
    tail_events: int
    # One read of a catch-up reader.
    read: Summary
    read_events: int
    read_bytes: int
    lost: int
    disordered: int
    error_count: int
    # Processor time of the load generator over the time of the test: near 1, latencies are its own.
    generator_share: float
    # The first ones, in words.
    errors: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing failed, nothing is missing and everything was in order."""
        return not (self.lost or self.disordered or self.error_count)

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {**asdict(self), "passed": self.passed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Result":
        """Return the result that `as_json` returned."""
        values = {name: value for name, value in data.items() if name != "passed"}
        for name in ("append", "tail", "read"):
            values[name] = Summary(**values[name])
        return cls(**values)


class Accounts:
    """The books of one load test. For one thread; users share them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.append = Histogram()
        self.appended_events = 0
        self.appended_bytes = 0
        self.tail = Histogram()
        self.tail_events = 0
        self.read = Histogram()
        self.read_events = 0
        self.read_bytes = 0
        # The last acknowledged sequence of each producer and key.
        self.acknowledged: dict[tuple[int, int], int] = {}
        self._lost = 0
        self._disordered = 0
        self._errors: list[str] = []
        self._error_count = 0
        self._begin_s = time.monotonic()
        self._end_s = 0.0
        self._cpu_s = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self._begin_s = time.monotonic()
        self._cpu_s = time.process_time()

    def end(self) -> None:
        """Stop the clock: what comes now is only finished, not measured for its rate."""
        if not self._end_s:
            self._end_s = time.monotonic()
            self._cpu_s = time.process_time() - self._cpu_s

    @property
    def elapsed_s(self) -> float:
        """Time between the two."""
        return (self._end_s or time.monotonic()) - self._begin_s

    @property
    def error_count(self) -> int:
        """Errors so far."""
        return self._error_count

    def acked(self, producer: int, key: int, *, sequence: int, events: int, size: int, latency_s: float) -> None:
        """Record an append that is durable; `sequence` is that of its last event."""
        self.acknowledged[producer, key] = sequence
        self.appended_events += events
        self.appended_bytes += size
        self.append.record(latency_s)

    def error(self, text: str) -> None:
        """Record something that must not happen."""
        self._error_count += 1
        if len(self._errors) < _ERRORS_KEPT:
            self._errors.append(text)

    def violations(self, found: Iterable[Violation], *, where: str) -> None:
        """Record events that are missing, or came twice or too late."""
        for violation in found:
            if violation.lost:
                self._lost += violation.found - violation.expected
                problem = "are missing"
            else:
                self._disordered += 1
                problem = "came again or too late"
            if len(self._errors) < _ERRORS_KEPT:
                self._errors.append(
                    f"{where}: producer {violation.producer}, key {violation.key}: event {violation.found} "
                    f"where {violation.expected} had to come: events {problem}"
                )

    def missing(self, seen: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """Return how many acknowledged events of each producer and key a reader has not seen."""
        return {name: last - seen.get(name, 0) for name, last in self.acknowledged.items() if seen.get(name, 0) < last}

    def close_reader(self, seen: Mapping[tuple[int, int], int], *, where: str) -> None:
        """Record what a reader, which had the time to read all, has not seen."""
        missing = self.missing(seen)
        if missing:
            self._lost += sum(missing.values())
            (producer, key), count = next(iter(missing.items()))
            self._errors.append(
                f"{where}: {sum(missing.values())} acknowledged events of {len(missing)} keys never came; "
                f"the last {count} of producer {producer}, key {key} among them"
            )

    def result(self) -> Result:
        """Return the outcome."""
        scenario = self.scenario
        return Result(
            scenario=scenario.name,
            description=scenario.description,
            duration_s=self.elapsed_s,
            append=self.append.summary(),
            appended_events=self.appended_events,
            appended_bytes=self.appended_bytes,
            tail=self.tail.summary(),
            tail_events=self.tail_events,
            read=self.read.summary(),
            read_events=self.read_events,
            read_bytes=self.read_bytes,
            lost=self._lost,
            disordered=self._disordered,
            error_count=self._error_count,
            generator_share=self._cpu_s / max(self.elapsed_s, 1e-9) if self._end_s else 0.0,
            errors=list(self._errors),
        )
