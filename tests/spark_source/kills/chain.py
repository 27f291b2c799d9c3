"""Two chained queries, and what must be there when they have lived through kills of all their parts.

    producers -> raw -> first query -> cooked -> second query -> results

The first query makes JSON of the events; the second one decodes it, and writes with each event where it was read. So
the results are the function of the cooked stream, places included, and that is the function of what was produced.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import millrace
from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.model.event import Event
from tests.crash.patience import PATIENT
from tests.crash.producing import event_of, key_of
from tests.spark_source.kills.accounts import Fact, findings
from tests.spark_source.kills.cluster import standalone_cluster
from tests.spark_source.kills.conftest import LEASE
from tests.spark_source.kills.driver import ROOT
from tests.spark_source.kills.parts import MARK, ProducerPart, QueryPart, ServerPart

RAW, COOKED, RESULTS = STREAMS = ("chain/raw", "chain/cooked", "chain/results")
KEYS: Final = {f"{MARK}-keyed": 11, f"{MARK}-few": 2, f"{MARK}-keyless": 0}
PATIENCE_S: Final = 1000.0
"""Beside the seconds of a round; only one that hangs takes so long."""

COOKED_COLUMNS: Final = ["key as _key", "cast(value as string) as event", "crc32(value) as sum"]
COOKED_SCHEMA: Final = "event string, sum long, _key string, _segment long, _offset long, _index int"
RESULT_COLUMNS: Final = ["_key", "event", "sum", "_segment as segment", "_offset as offset", "_index as place"]

LOCAL: Final = "local[2,4]"
CLUSTER: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}


@dataclass
class Chain:
    """One life of the two queries, on streams of their own.

    Attributes:
        server: one that dies when it is told to (`tests.crash.deadly_server`).
        seconds: so long it lives at least; each query is met by each kind of attack once in any case.
        is_cluster: the queries run in executors of a cluster, which are killed, too.
        counted: what happened, and how often.
    """

    server: TestServer
    folder: Path
    dice: random.Random
    seconds: float
    is_cluster: bool
    counted: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Live, then let all be read, and account for it."""
        patience_s = PATIENCE_S + self.seconds
        with self._spark() as master:
            async with asyncio.timeout(patience_s), millrace.connect(self.server.address, options=PATIENT) as client:
                for stream in STREAMS:
                    scaling = millrace.ScalingPolicy.fixed(self.dice.randint(1, 3))
                    await client.create_stream(stream, millrace.StreamConfig(scaling=scaling))
                queries, producer = self._queries(master), self._producer()
                try:
                    await self._live(queries, producer)
                    for query in queries:
                        query.start_last_driver()
                    await producer.finish()
                    ids = [await query.finish() for query in queries]
                finally:
                    for query in queries:
                        query.close()
                self.counted["events"] = producer.counts.total()
                await self._account(client, producer.counts)
                for query_id in ids:
                    known = await client.producer_info(query_id)
                    assert known.holder == query_id
                    self.counted["batches"] += (known.last_sequence or 0) + 1

    async def _live(self, queries: list[QueryPart], producer: ProducerPart) -> None:
        is_over = asyncio.Event()
        server = ServerPart(self.server, self._dice_of("server"), self.counted)
        async with asyncio.TaskGroup() as others:
            others.create_task(producer.run(is_over), name="producers")
            others.create_task(server.run(is_over), name="server")
            async with asyncio.TaskGroup() as running:
                for query in queries:
                    running.create_task(query.keep_running(), name=query.name)
                async with asyncio.TaskGroup() as attacks:
                    for query in queries:
                        attacks.create_task(query.attack(seconds=self.seconds), name=f"attacks on {query.name}")
                # The second one is met only while the first one gives it something to do.
                for query in reversed(queries):
                    await query.end()
            is_over.set()

    @contextmanager
    def _spark(self) -> Iterator[str]:
        """Have what drivers run on, and return its name."""
        if not self.is_cluster:
            yield LOCAL
            return
        folder = self.folder / "cluster"
        folder.mkdir(parents=True)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with standalone_cluster(folder, workers=2, cores=2, environment={"PYTHONPATH": path}) as master:
            yield master

    def _queries(self, master: str) -> list[QueryPart]:
        address = self.server.address
        sink = {"address": address, "transactionLease": LEASE}
        source = {"address": address, "maxEventsPerTrigger": str(self.dice.choice([200, 500, 1000]))}
        first = {
            "source": {**source, "stream": RAW},
            "columns": COOKED_COLUMNS,
            "sink": {**sink, "stream": COOKED, "valueFormat": "json"},
        }
        second = {
            "source": {**source, "stream": COOKED, "valueFormat": "json"},
            "schema": COOKED_SCHEMA,
            "columns": RESULT_COLUMNS,
            "sink": {**sink, "stream": RESULTS, "valueFormat": "json"},
        }
        return [self._query("first", first, master), self._query("second", second, master)]

    def _query(self, name: str, query: dict[str, Any], master: str) -> QueryPart:
        folder = self.folder / name
        partitions = self.dice.choice((0, 2, 3))
        return QueryPart(
            name=name,
            folder=folder,
            query={**query, "checkpoint": str(folder / "checkpoint"), "partitions": partitions},
            master=master,
            conf=CLUSTER if self.is_cluster else {},
            attacks=("worker", "process", *(["executor"] if self.is_cluster else [])),
            dice=self._dice_of(name),
            counted=self.counted,
        )

    def _producer(self) -> ProducerPart:
        histories = self.folder / "histories"
        return ProducerPart(self.server.address, RAW, KEYS, histories, self._dice_of("producer"), self.counted)

    def _dice_of(self, part: str) -> random.Random:
        """Return dice of one part, which fall as they do however the others are at work."""
        return random.Random(f"{self.dice.random()} {part}")

    async def _account(self, client: Client, counts: Counter[str]) -> None:
        """Assert that each event is in each stream once, in the order of its key.

        Raises:
            AssertionError: says what is lost, doubled, or in another order, in which stream.
        """
        produced = [
            Fact(key_of(name, number, keys=KEYS[name]), event_of(name, number))
            for name, count in counts.items()
            for number in range(count)
        ]
        raw = await _read(client, RAW)
        cooked = await _read(client, COOKED)
        results = await _read(client, RESULTS)
        found = [
            *findings("raw", _facts(raw, bytes.decode), wanted=produced),
            *findings("cooked", _facts(cooked, _json), wanted=_facts(raw, _cooked)),
            *findings("results", _facts(results, _json), wanted=[_result(event) for event in cooked]),
        ]
        assert not found, "; ".join(found)


async def _read(client: Client, stream: str) -> list[Event]:
    async with client.reader(stream, end=millrace.TAIL) as reader:
        return [event async for event in reader]


def _facts(events: list[Event], content: Callable[[bytes], object]) -> list[Fact]:
    return [Fact(event.key, content(event.value)) for event in events]


def _json(value: bytes) -> tuple[tuple[str, object], ...]:
    return tuple(json.loads(value).items())


def _cooked(value: bytes) -> tuple[tuple[str, object], ...]:
    """Return what the first query makes of an event."""
    return (("event", value.decode()), ("sum", crc32(value)))


def _result(event: Event) -> Fact:
    """Return what the second query makes of one."""
    places = (("segment", event.segment), ("offset", event.offset), ("place", event.index))
    return Fact(event.key, (*_json(event.value), *places))
