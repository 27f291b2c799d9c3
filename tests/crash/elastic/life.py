"""A stream that is written, read, scaled, truncated and killed at the same time, from its creation to its end.

What happens is drawn by dice, but for what the policies of the server do; the moments are those of the machine. So the
same seed gives the same kind of life, and not the same instant of each kill.
"""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pyarrow as pa

import millrace
from millrace.client.client import Client
from millrace.client.errors import CutTruncatedError, OutcomeUnknownError, SegmentNotFoundError, SegmentTruncatedError
from millrace.client.read.reader import ReaderOptions
from millrace.client.testing import TestServer
from millrace.client.write.options import WriterOptions
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.event import EventPosition
from millrace.model.policy import RetentionPolicy, ScalingPolicy, StreamConfig
from millrace.model.stream import StreamInfo
from tests.crash.elastic.producer import Producer
from tests.crash.elastic.seen import Numbered, Seen, check_slice, has_passed, marks_left
from tests.crash.patience import PATIENT
from tests.crash.recorded_reads import RecordedRead, record_lineage, recorded_cut
from tests.crash.recorded_writes import record_outcome
from tests.support.history import Recorder, demand, read_lines

STREAM = "torture/elastic"
WRITERS = 3
PRODUCERS = 2
KEYS_PER_WRITER = 6
SEGMENTS_OPEN_MAX = 12
STREAMS_VISITED = 6
READS_AT_ONCE = 8
SLICES = 3
PATIENCE_S = 300.0
"""Beyond the time of the life itself: after so long something waits for what never comes."""


class Truncation(Enum):
    """Who drops what everybody has read."""

    NOBODY = "by nobody"
    BY_HAND = "by hand"
    BY_CURSORS = "by cursors"


def always(cut: StreamCut) -> Callable[[], StreamCut]:
    """Return the place of a consumer that does not move."""
    return lambda: cut


@dataclass
class Consumer:
    """A reader that must get everything, and where it is."""

    seen: Seen
    place: Callable[[], StreamCut]


@dataclass
class Life:
    """One life of the stream.

    Attributes:
        histories: a folder, in which each process records its part of the history.
        counted: what happened, and how often.
    """

    server: TestServer
    dice: random.Random
    seconds: float
    truncation: Truncation
    histories: Path
    counted: Counter[str] = field(default_factory=Counter)
    consumers: list[Consumer] = field(default_factory=list)
    _ends_s: float = 0.0

    def __post_init__(self) -> None:
        self.histories.mkdir(parents=True)
        self._recorder = Recorder("life", self.histories / "life.jsonl")

    async def run(self) -> None:
        """Live it. Whoever sees what must not be raises AssertionError."""
        connected = millrace.connect(self.server.address, options=PATIENT)
        async with asyncio.timeout(self.seconds + PATIENCE_S), connected as client:
            await client.create_stream(STREAM, self._configuration())
            head = await client.stream_cut(STREAM).head()
            self.consumers = [Consumer(Seen(name), lambda: head) for name in ("events", "batches", "again and again")]
            for consumer in self.consumers:
                await self._register(client, consumer)
            if self.truncation is Truncation.BY_CURSORS:
                self._recorder.call("policy", "truncate", stream=STREAM)
            self._ends_s = time.monotonic() + self.seconds
            async with asyncio.TaskGroup() as reading:
                reading.create_task(self._read_events(client, self.consumers[0]), name="events")
                reading.create_task(self._read_batches(client, self.consumers[1]), name="batches")
                reading.create_task(self._read_again_and_again(client, self.consumers[2]), name="again and again")
                reading.create_task(self._read_late(client), name="late")
                await self._write_and_disturb(client)
                await client.seal_stream(STREAM)
            await self._check(client)
            await client.delete_stream(STREAM)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_s

    def _configuration(self) -> StreamConfig:
        return StreamConfig(
            scaling=ScalingPolicy.by_events_per_s(self.dice.randint(500, 4000), factor=self.dice.randint(2, 3)),
            retention=RetentionPolicy.by_consumption() if self.truncation is Truncation.BY_CURSORS else None,
        )

    async def _write_and_disturb(self, client: Client) -> None:
        producers = [
            Producer(
                self.server.address,
                STREAM,
                f"producer-{number}",
                random.Random(self.dice.random()),
                self.histories,
                count_stored=lambda key: self._count_stored(client, key),
                is_truncated=self.truncation is not Truncation.NOBODY,
            )
            for number in range(PRODUCERS)
        ]
        async with asyncio.TaskGroup() as tasks:
            for number in range(WRITERS):
                tasks.create_task(self._write(client, number), name=f"writer {number}")
            for producer in producers:
                tasks.create_task(producer.run(lambda: self._is_over), name=producer.name)
            tasks.create_task(self._scale(client), name="scale")
            tasks.create_task(self._probe(client), name="probe")
            tasks.create_task(self._kill(), name="kill")
            tasks.create_task(self._visit(client), name="visit")
            if self.truncation is Truncation.BY_HAND:
                tasks.create_task(self._truncate(client), name="truncate")
            for consumer in self.consumers:
                tasks.create_task(self._move_cursor(client, consumer), name=f"cursor of {consumer.seen.name}")
        for producer in producers:
            self.counted["producers killed"] += producer.kills
            self.counted["producers fenced"] += producer.fenced

    # --- writing ---

    async def _write(self, client: Client, number: int) -> None:
        dice = random.Random(self.dice.random())
        life = 0
        while not self._is_over:
            try:
                await self._write_keys(
                    client, f"{number}.{life}", dice, writer_id=f"torture-{number}" if number % 2 else None
                )
            except OutcomeUnknownError:
                # What was sent last went to a segment that is truncated away by now: nothing says what became of it.
                assert self.truncation is not Truncation.NOBODY
                self.counted["writers left in the dark"] += 1
            life += 1

    async def _write_keys(self, client: Client, name: str, dice: random.Random, *, writer_id: str | None) -> None:
        """Write until it is over."""
        keys = [f"{name}.{key}" for key in range(KEYS_PER_WRITER)]
        nexts = dict.fromkeys(keys, 0)
        options = WriterOptions(block_size_bytes=dice.choice([1024, 4096, 1 << 20]), drain_high_bytes=200_000,
                                drain_low_bytes=100_000)  # fmt: skip
        rests_s = time.monotonic() + dice.uniform(0.3, 1.5)
        async with client.writer(STREAM, writer_id=writer_id, options=options) as writer:
            before = sum(writer.last_event_numbers.values())
            while True:  # at least once: on a machine so busy that the life is over before the writer is open, too
                for _ in range(dice.randint(1, 30)):
                    self._write_some(writer, name, nexts, dice)
                await asyncio.sleep(dice.random() * 0.04)
                await writer.drain()
                if self._is_over:
                    break
                if time.monotonic() > rests_s:  # so that there is something to merge
                    await writer.flush()
                    await asyncio.sleep(dice.uniform(0.0, 0.6))
                    rests_s = time.monotonic() + dice.uniform(0.3, 1.5)
            await writer.flush()
            assert writer.pending_bytes == 0
            self.counted["times re-routed"] += writer.statistics().reroutes
            if self.truncation is Truncation.NOBODY:
                assert sum(writer.last_event_numbers.values()) - before == sum(nexts.values())

    def _write_some(self, writer: millrace.Writer, name: str, nexts: dict[str, int], dice: random.Random) -> None:
        key = dice.choice(list(nexts))
        chance = dice.random()
        keys = [key] * dice.randint(1, 8) if chance < 0.1 else list(nexts) if chance < 0.2 else [key]
        numbers = []
        for each in keys:
            numbers.append(nexts[each])
            nexts[each] += 1
        events = [f"{each}:{number}" for each, number in zip(keys, numbers, strict=True)]
        call = self._recorder.call(name, "write", stream=STREAM, writer=name, events=events, keys=keys)
        values = [b"%d" % number for number in numbers]
        if chance < 0.1:
            future = writer.write_many(values, key=key)
        elif chance < 0.2:
            future = writer.write_many(values, keys=keys)
        else:
            future = writer.write(values[0], key=key)
        record_outcome(self._recorder, call, future)

    async def _count_stored(self, client: Client, key: str) -> int:
        """Return how many events of a key are stored now: what a reader was given, and what is before it."""
        while True:
            reader = self.consumers[0]
            # Taken in one step: nothing is given to the reader between the two. The tail is asked for after them, so
            # that the reader is not beyond it.
            count, place = reader.seen.counts[key], reader.place()
            tail = await client.stream_cut(STREAM).tail()
            try:
                async with client.reader(STREAM, start=place, end=tail) as rest:
                    async for event in rest:
                        count += event.key == key
                return count
            except CutTruncatedError:
                assert self.truncation is not Truncation.NOBODY

    # --- disturbing ---

    async def _scale(self, client: Client) -> None:
        dice = random.Random(self.dice.random())
        while not self._is_over:
            opened = (await client.stream_info(STREAM)).open_segments
            first = dice.randrange(len(opened))
            chosen = opened[first : first + dice.choice([1, 1, 2, 3, len(opened)])]
            low, high = chosen[0].key_range.low, chosen[-1].key_range.high
            count = 1 if len(opened) > SEGMENTS_OPEN_MAX else dice.choice([1, 1, 2, 3])
            borders = sorted({low, high, *(dice.randrange(low + 1, high) for _ in range(count - 1))})
            try:
                await client.scale_stream(
                    STREAM, seal=[segment.segment_id for segment in chosen],
                    ranges=list(itertools.pairwise(borders)),
                )  # fmt: skip
                self.counted["scaled by hand"] += 1
            except InvalidArgumentError:
                self.counted["scaled by others first"] += 1
            if dice.random() < 0.1:
                await client.update_stream(STREAM, self._configuration())
            await asyncio.sleep(dice.random() * 0.3)

    async def _kill(self) -> None:
        dice = random.Random(self.dice.random())
        while not self._is_over:
            await asyncio.sleep(dice.uniform(0.1, 2.5))
            chance = dice.random()
            if chance < 0.15:
                assert await asyncio.to_thread(self.server.stop) == 0
                self.counted["stopped"] += 1
            else:
                await asyncio.to_thread(self.server.kill)
                self.counted["killed"] += 1
            if chance > 0.8:
                await self._kill_while_it_starts(dice.uniform(0.3, 0.8))
                self.counted["killed while starting"] += 1
            await asyncio.to_thread(self.server.start)

    async def _kill_while_it_starts(self, after_s: float) -> None:
        starting = asyncio.create_task(asyncio.to_thread(self.server.start))
        await asyncio.sleep(after_s)
        os.kill(self.server.pid, signal.SIGKILL)
        with contextlib.suppress(RuntimeError):
            await starting
        await asyncio.to_thread(self.server.kill)  # and be sure that it is gone

    async def _truncate(self, client: Client) -> None:
        """Truncate at places of consumers, as soon as all others have passed them."""
        dice = random.Random(self.dice.random())
        cuts: list[StreamCut] = []
        while not self._is_over:
            await asyncio.sleep(dice.random() * 0.2)
            cuts.append(dice.choice(self.consumers).place())
            # The stream is asked after the consumers, so it knows all of their segments.
            places = [consumer.place() for consumer in self.consumers]
            info = await client.stream_info(STREAM)
            cuts = [cut for cut in cuts if cut.places.keys() <= info.lineage().by_id.keys()]
            for cut in reversed(cuts):
                progress = info.progress(cut)
                if all(has_passed(info, place, progress) for place in places):
                    call = self._recorder.call("truncate", "truncate", stream=STREAM, cut=recorded_cut(cut))
                    await client.truncate_stream(STREAM, cut)
                    self._recorder.answer(call, "done")
                    self.counted["truncated by hand"] += 1
                    break

    async def _register(self, client: Client, consumer: Consumer) -> None:
        if self.truncation is Truncation.BY_CURSORS:
            await client.cursors(STREAM).set(consumer.seen.name, consumer.place())

    async def _move_cursor(self, client: Client, consumer: Consumer) -> None:
        dice = random.Random(self.dice.random())
        while not self._is_over:
            await asyncio.sleep(dice.random() * 0.1)
            await self._register(client, consumer)

    async def _probe(self, client: Client) -> None:
        """Ask all the time for what must be true at any moment."""
        dice = random.Random(self.dice.random())
        seen = self.consumers[0].seen
        while not self._is_over:
            await asyncio.sleep(dice.random() * 0.05)
            info = await client.stream_info(STREAM)
            for cut in (info.head(), info.tail()):
                info.lineage().check_cut(cut.places)
            await client.explain_stream(STREAM)
            since = await client.stream_cut(STREAM).at_time(int((time.time() - dice.random()) * 1_000_000))
            await client.bookmarks(STREAM).save("probe", HEAD)
            try:
                await client.distance(since, TAIL)
                if len(seen.marks) > 1:
                    (first, start), (last, end) = sorted(dice.sample(seen.marks[-5:], 2), key=lambda mark: mark[0])
                    assert (await client.distance(start, end)).events == last - first
                    count = dice.randint(0, last - first)
                    middle = await client.stream_cut(STREAM).after_events(count, start=start)
                    assert (await client.distance(start, middle)).events == count
            except CutTruncatedError:
                assert self.truncation is not Truncation.NOBODY
                self.counted["probes too late"] += 1
            if seen.recent:
                place = dice.choice(seen.recent)
                try:
                    event = await client.fetch_event(place)
                    assert (event.key, int(event.value)) == seen.events[place]
                except (SegmentNotFoundError, SegmentTruncatedError):
                    assert self.truncation is not Truncation.NOBODY
            self.counted["probes"] += 1

    async def _visit(self, client: Client) -> None:
        """Come back to streams where nobody else is: what a server forgets of them it must find again."""
        dice = random.Random(self.dice.random())
        counts: dict[str, int] = {}
        while not self._is_over:
            name = f"torture/quiet-{dice.randrange(STREAMS_VISITED)}"
            count = counts.setdefault(name, 0)
            created = await client.create_stream(name)  # False, too, where a kill made it ask again
            assert not (created and count), f"{name} was there, and {count} events in it"
            async with client.writer(name, writer_id="visitor") as writer:
                assert sum(writer.last_event_numbers.values()) == count
                for number in range(count, count + dice.randint(1, 5)):
                    writer.write(b"%d" % number, key="k")
                    counts[name] = number + 1
            if dice.random() < 0.3:
                opened = (await client.stream_info(name)).open_segments
                ranges = [(0.0, 0.5), (0.5, 1.0)] if len(opened) == 1 else [(0.0, 1.0)]
                await client.scale_stream(name, seal=[segment.segment_id for segment in opened], ranges=ranges)
            async with client.reader(name, end=TAIL) as reader:
                values = [int(event.value) async for event in reader]
            assert values == list(range(counts[name])), f"{name} holds {values}, not {counts[name]} numbers"
            if dice.random() < 0.05:
                await client.seal_stream(name)
                await client.delete_stream(name)
                del counts[name]
            self.counted["visits"] += 1
            await asyncio.sleep(dice.random() * 0.05)
        for name in counts:
            await client.seal_stream(name)
            await client.delete_stream(name)

    # --- reading ---

    def _begin(self, name: str, *, start: StreamCut | None = None) -> RecordedRead:
        return RecordedRead(self._recorder, name, STREAM, start=start)

    async def _read_events(self, client: Client, consumer: Consumer) -> None:
        dice = random.Random(self.dice.random())
        read = self._begin(consumer.seen.name)
        async with client.reader(STREAM, options=_some_options(dice)) as reader:
            consumer.place = reader.position
            async for event in reader:
                _take(event, read, consumer.seen)
                if dice.random() < 0.002:
                    consumer.seen.mark(reader.position())
            read.end(reader.position(), is_tail=True)

    async def _read_batches(self, client: Client, consumer: Consumer) -> None:
        dice = random.Random(self.dice.random())
        read = self._begin(consumer.seen.name)
        async with client.reader(STREAM, options=_some_options(dice)) as reader:
            consumer.place = reader.position
            async for batch in reader.arrow_batches():
                for place, (key, number) in _events_of(batch):
                    _take_one(key, number, place, read)
                    consumer.seen.take(key, number, place)
                if dice.random() < 0.02:
                    consumer.seen.mark(reader.position())
            read.end(reader.position(), is_tail=True)

    async def _read_again_and_again(self, client: Client, consumer: Consumer) -> None:
        """Stop all the time, and continue from the text of the place."""
        dice = random.Random(self.dice.random())
        while True:
            left = dice.randint(1, 400)
            start = StreamCut.parse(str(consumer.place()))
            read = self._begin(consumer.seen.name, start=start)
            async with client.reader(STREAM, start=start) as reader:
                async for event in reader:
                    _take(event, read, consumer.seen)
                    left -= 1
                    if not left:
                        break
                cut = reader.position()
                consumer.place = always(cut)
            read.end(cut, is_tail=left > 0)
            self.counted["readers one after the other"] += 1
            if left:
                return

    async def _read_late(self, client: Client) -> None:
        """Read slowly and without a cursor; where that was too slow, continue with what is left."""
        dice = random.Random(self.dice.random())
        start: StreamCut | None = None
        while True:
            read = self._begin("late", start=start)
            options = ReaderOptions(window_bytes=64 * 1024)
            try:
                async with client.reader(STREAM, start=start or HEAD, options=options) as reader:
                    async for event in reader:
                        _take(event, read)
                        if dice.random() < 0.01 and not self._is_over:
                            await asyncio.sleep(dice.random() * 0.3)
                    read.end(reader.position(), is_tail=True)
                    return
            except CutTruncatedError as error:
                lost = error
            read.flush()
            assert self.truncation is not Truncation.NOBODY
            assert lost.resume_at is not None
            start = lost.resume_at
            self.counted["overtaken"] += 1

    # --- at the end ---

    async def _check(self, client: Client) -> None:
        history = await client.stream_history(STREAM)
        record_lineage(self._recorder, STREAM, history)
        self._recorder.close()
        verdict = await asyncio.to_thread(demand, read_lines(self.histories))
        assert verdict.counts["acknowledged"] > 0
        assert not verdict.counts["unread"]
        assert history[-1].number > 1, "the stream was never scaled"
        self.counted["epochs"] = history[-1].number
        self.counted["scaled by policy"] = history[-1].number - self.counted["scaled by hand"]
        self.counted["events"] = len(self.consumers[0].seen.events)

        await self._check_slices(client, await client.stream_info(STREAM))

    async def _check_slices(self, client: Client, info: StreamInfo) -> None:
        """Read what is left in parallel while the server is killed once more, and slices of it."""
        dice = random.Random(self.dice.random())
        killing = asyncio.create_task(self._kill_once(dice.random()))
        try:
            left = await self._read_in_parallel(client, HEAD, TAIL, dice)
        finally:
            await killing
        head = info.progress(info.head())
        for consumer in self.consumers:
            expected = {
                place: event
                for place, event in consumer.seen.events.items()
                if place.segment_id in head and (place.offset, place.event_index) >= head[place.segment_id]
            }
            strange = expected.items() ^ left.items()
            assert not strange, f"what is left is not what {consumer.seen.name} was given: {sorted(strange)[:20]}"
            marks = marks_left(consumer.seen, info.head(), info)
            for _ in range(SLICES if len(marks) > 1 else 0):
                (first, start), (last, end) = sorted(dice.sample(marks, 2), key=lambda mark: mark[0])
                events = await self._read_in_parallel(client, start, end, dice)
                check_slice(consumer.seen, events, start=first, end=last)
                async with client.reader(STREAM, start=start, end=end) as reader:
                    again = {event.position: (event.key, int(event.value)) async for event in reader}
                assert again == events
                assert (await client.distance(start, end)).events == last - first
                self.counted["slices"] += 1
        self.counted["read in parallel"] = len(left)

    async def _kill_once(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    async def _read_in_parallel(
        self, client: Client, start: millrace.Cut, end: millrace.Cut, dice: random.Random
    ) -> dict[EventPosition, Numbered]:
        parts = await client.plan_ranges(STREAM, start=start, end=end, max_bytes=dice.randint(4_000, 400_000))
        dice.shuffle(parts)
        found: dict[EventPosition, Numbered] = {}

        async def read_some() -> None:
            while parts:
                async for batch in client.read_range(parts.pop()):
                    for place, event in _events_of(batch):
                        assert place not in found, f"{place} is in two ranges"
                        found[place] = event

        async with asyncio.TaskGroup() as tasks:
            for _ in range(READS_AT_ONCE):
                tasks.create_task(read_some())
        self.counted["ranges"] += 1
        return found


def _some_options(dice: random.Random) -> ReaderOptions:
    return ReaderOptions(window_bytes=dice.choice([1 << 16, 1 << 20, 32 << 20]))


def _take(event: millrace.Event, read: RecordedRead, seen: Seen | None = None) -> None:
    assert event.key is not None
    _take_one(event.key, int(event.value), event.position, read)
    if seen is not None:
        seen.take(event.key, int(event.value), event.position)


def _take_one(key: str, number: int, place: EventPosition, read: RecordedRead) -> None:
    read.take(f"{key}:{number}", segment=place.segment_id, offset=place.offset, index=place.event_index)


def _events_of(batch: pa.RecordBatch) -> Iterator[tuple[EventPosition, Numbered]]:
    columns = [batch.column(name).to_pylist() for name in ("segment", "offset", "index", "key", "value")]
    for segment_id, offset, index, key, value in zip(*columns, strict=True):
        yield EventPosition(segment_id, offset, index), (key, int(value))
