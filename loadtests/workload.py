"""What a scenario asks for, and what its events carry so that every one of them can be accounted for.

An event is 24 bytes and a filler, little-endian:

    offset size field
    0      4    producer   number of the user that wrote it
    4      4    key        number of its routing key; the events of one key are in one segment
    8      8    sequence   1, 2, 3, ... for each key of each producer
    16     8    due_ns     monotonic clock of the machine when the event was due, in nanoseconds
    24     ...  filler

A reader that starts at the head of a segment must therefore see, for each producer and key, 1, 2, 3, ... without a gap,
without a repeat and in that order, and knows how late each event is on the machine that wrote it.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

EVENT: Final = np.dtype([("producer", "<u4"), ("key", "<u4"), ("sequence", "<u8"), ("due_ns", "<i8")])
EVENT_SIZE_BYTES_MIN: Final = EVENT.itemsize
APPEND_SIZE_BYTES_MAX: Final = 8 << 20
_STREAM: Final = np.dtype("<u8")


class ScenarioError(Exception):
    """A scenario asks for what cannot be; the text names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """Users that write.

    Attributes:
        rate_per_s: events that are due per second for each user, evenly; 0 = as many as acks allow.
        burst_s, pause_s: the rate holds for `burst_s`, then nothing is due for `pause_s`; 0 = always.
        keys: routing keys of each user, used in turn.
        events_per_append: 1 writes raw appends of one event each, more writes event blocks.
        outstanding: appends without an ack; what is due beyond waits, and its waiting is measured.
    """

    users: int = 1
    rate_per_s: float = 1000.0
    burst_s: float = 0.0
    pause_s: float = 0.0
    event_size: int = 100
    keys: int = 4
    events_per_append: int = 1
    outstanding: int = 16

    def __post_init__(self) -> None:
        _check("producers", self, users=0, event_size=EVENT_SIZE_BYTES_MIN, keys=1, events_per_append=1, outstanding=1)
        if self.rate_per_s < 0 or self.burst_s < 0 or self.pause_s < 0:
            raise ScenarioError("producers: rate_per_s, burst_s and pause_s must not be below 0")
        if self.event_size * self.events_per_append > APPEND_SIZE_BYTES_MAX:
            raise ScenarioError(f"producers: an append is above {APPEND_SIZE_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TailReaders:
    """Users that each follow all segments from their head, by subscriptions."""

    users: int = 1

    def __post_init__(self) -> None:
        _check("tail_readers", self, users=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpReaders:
    """Users that read segments from head to tail, again and again.

    Attributes:
        read_size: bytes asked for at once.
        bytes_per_s: what each user reads at most; 0 = as fast as it can, which takes all of the generator's processor.
    """

    users: int = 0
    read_size: int = 1 << 20
    bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        _check("catch_up_readers", self, users=0, read_size=1024, bytes_per_s=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A load test."""

    name: str
    description: str = ""
    duration_s: float = 20.0
    segments: int = 4
    producers: Producers = field(default_factory=Producers)
    tail_readers: TailReaders = field(default_factory=TailReaders)
    catch_up_readers: CatchUpReaders = field(default_factory=CatchUpReaders)

    def __post_init__(self) -> None:
        _check("scenario", self, segments=1)
        if self.duration_s <= 0:
            raise ScenarioError("scenario: duration_s must be above 0")

    @property
    def users(self) -> int:
        """Users of all kinds."""
        return self.producers.users + self.tail_readers.users + self.catch_up_readers.users

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the scenario in a TOML file; its name is that of the file.

        Raises:
            ScenarioError: unknown fields, or values that make no sense.
        """
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ScenarioError(f"{path}: {error}") from error
        return cls.parse(content, name=path.stem)

    @classmethod
    def parse(cls, content: Mapping[str, Any], *, name: str) -> Self:
        """Return the scenario in what a TOML file held."""
        values = dict(content)
        for part, kind in _PARTS.items():
            if part in values:
                values[part] = _record(kind, part, values[part])
        scenario: Self = _record(cls, "scenario", {**values, "name": name})
        return scenario

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return the scenario with other values: `{"producers.rate_per_s": 10.0, "duration_s": 5.0}`.

        Raises:
            ScenarioError: unknown fields, or values that make no sense.
        """
        scenario = self
        for path, value in changes.items():
            part, _, name = path.rpartition(".")
            if not part:
                scenario = _replaced(scenario, "scenario", name, value)
            elif part in _PARTS:
                record = _replaced(getattr(scenario, part), part, name, value)
                scenario = replace(scenario, **{part: record})
            else:
                raise ScenarioError(f"{part} is no part of a scenario")
        return scenario

    def segment_of(self, producer: int, key: int) -> int:
        """Return the index of the segment that holds the events of a key."""
        return (producer * self.producers.keys + key) % self.segments


_PARTS: Final[dict[str, type[Any]]] = {
    "producers": Producers,
    "tail_readers": TailReaders,
    "catch_up_readers": CatchUpReaders,
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the appends of a producer are due, in seconds from its start."""

    appends_per_s: float
    burst_s: float = 0.0
    pause_s: float = 0.0

    def due_s(self, index: int) -> float:
        """Return when the append of that index is due; 0 for all without a rate."""
        if self.appends_per_s <= 0:
            return 0.0
        busy_s = index / self.appends_per_s
        if self.burst_s <= 0:
            return busy_s
        return busy_s + int(busy_s / self.burst_s) * self.pause_s


class EventSource:
    """The events of one producer."""

    def __init__(self, producer: int, producers: Producers) -> None:
        self._keys = producers.keys
        self._event_size = producers.event_size
        self._count = producers.events_per_append
        self._appends = 0
        # The last sequence of each key.
        self.written = [0] * producers.keys
        self._template = np.zeros((self._count, self._event_size), np.uint8)
        self._template[:, EVENT.itemsize :] = np.arange(self._event_size - EVENT.itemsize, dtype=np.uint64) % 251
        self._heads = np.zeros(self._count, EVENT)
        self._heads["producer"] = producer

    def next_append(self, due_ns: int) -> tuple[int, list[bytes]]:
        """Return key and events of the next append; keys take turns."""
        key = self._appends % self._keys
        self._appends += 1
        heads = self._heads
        heads["key"] = key
        heads["sequence"] = np.arange(self.written[key] + 1, self.written[key] + self._count + 1, dtype=np.uint64)
        heads["due_ns"] = due_ns
        self.written[key] += self._count
        self._template[:, : EVENT.itemsize] = heads.view(np.uint8).reshape(self._count, EVENT.itemsize)
        data = self._template.tobytes()
        return key, [data[start : start + self._event_size] for start in range(0, len(data), self._event_size)]


def events_in(data: memoryview | bytes | bytearray, event_size: int) -> npt.NDArray[Any]:
    """Return the heads of the events that follow one another in `data`, whole ones only."""
    count = len(data) // event_size
    return np.ndarray((count,), EVENT, data, 0, (event_size,)).copy()


@dataclass(frozen=True, slots=True)
class Violation:
    """An event that is not the one that had to come next for its producer and key."""

    producer: int
    key: int
    expected: int
    found: int

    @property
    def lost(self) -> bool:
        """Whether events are missing before it; otherwise it came again, or too late."""
        return self.found > self.expected


class SequenceChecker:
    """Watches that each producer and key counts 1, 2, 3, ...; one for each reader and segment pass."""

    def __init__(self) -> None:
        self.last: dict[tuple[int, int], int] = {}
        self.events = 0

    def check(self, heads: npt.NDArray[Any]) -> Iterator[Violation]:
        """Yield what is wrong with the next events; after a violation counting continues from the event found."""
        if not len(heads):
            return
        self.events += len(heads)
        streams = heads["producer"].astype(_STREAM) << 32 | heads["key"]
        order = np.argsort(streams, kind="stable")
        streams, sequences = streams[order], heads["sequence"][order]
        borders = np.flatnonzero(np.diff(streams)) + 1
        starts = [0, *borders.tolist()]
        for start, end in zip(starts, [*starts[1:], len(streams)], strict=True):
            stream = int(streams[start])
            name = (stream >> 32, stream & 0xFFFFFFFF)
            run = sequences[start:end]
            expected = np.empty(len(run), np.uint64)
            expected[0] = self.last.get(name, 0) + 1
            expected[1:] = run[:-1] + np.uint64(1)
            for index in np.flatnonzero(run != expected).tolist():
                yield Violation(*name, int(expected[index]), int(run[index]))
            self.last[name] = int(run[-1])


def _check(part: str, record: Any, **least: int) -> None:
    for name, value in least.items():
        if getattr(record, name) < value:
            raise ScenarioError(f"{part}: {name}={getattr(record, name)} must be at least {value}")


def _record(kind: type[Any], part: str, values: Mapping[str, Any]) -> Any:
    kinds = {item.name: item.type for item in fields(kind)}
    checked = {}
    for name, value in values.items():
        if name not in kinds:
            raise ScenarioError(f"{part}: {name} is not a field; there are {', '.join(kinds)}")
        checked[name] = _converted(part, name, kinds[name], value)
    return kind(**checked)


def _replaced(record: Any, part: str, name: str, value: Any) -> Any:
    kinds = {item.name: item.type for item in fields(record)}
    if name not in kinds:
        raise ScenarioError(f"{part}: {name} is not a field; there are {', '.join(kinds)}")
    return replace(record, **{name: _converted(part, name, kinds[name], value)})


def _converted(part: str, name: str, kind: Any, value: Any) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ScenarioError(f"{part}: {name}={value!r} is not of type {kind.__name__}")
