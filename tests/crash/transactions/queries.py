"""Queries that commit batches as one producer: by several processes, of which the one that began last is the query."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import millrace
from millrace.client.client import Client
from tests.crash.transactions.lanes import LEASES_S, STREAMS
from tests.crash.transactions.recorded import REFUSALS, RecordedTransaction, Tag, recorded_outcome
from tests.support.history import Recorder

FIRST_HOLDER: Final = "first"
SIZES: Final = (1, 1, 3, 10, 40)
KEYS: Final = 3
PREFIX: Final = "batch"
WAIT_S_MIN: Final = 0.1
WAIT_S_MAX: Final = 5.0
"""Before a new run, at most; for longer and longer while runs commit nothing."""


class Row(NamedTuple):
    """One event of a batch, wherever and however often it was written; `content` names it."""

    stream: str
    key: str
    content: str


class Content(NamedTuple):
    """What an event of a batch says it is: the how manieth of which batch."""

    writer: str
    holder: str
    sequence: int
    event_index: int

    def __str__(self) -> str:
        return ":".join((PREFIX, *map(str, self)))

    @classmethod
    def parse(cls, content: str) -> "Content | None":
        """Return what an event says it is; None if it is of no batch."""
        prefix, *parts = content.split(":")
        if prefix != PREFIX:
            return None
        writer, holder, sequence, event_index = parts
        return cls(writer, holder, int(sequence), int(event_index))


def batch_of(writer: str, holder: str, sequence: int) -> list[Row]:
    """Return the events of a batch: whoever writes it, they are the same."""
    fate = random.Random(f"{writer}/{holder}/{sequence}")
    streams = fate.sample(STREAMS, fate.choice([1, 2, 3]))
    return [
        Row(fate.choice(streams), f"{writer}-{fate.randrange(KEYS)}", str(Content(writer, holder, sequence, index)))
        for index in range(fate.choice(SIZES))
    ]


@dataclass
class Query:
    """One life of a query, with one run after the other; others are the same query at the same time.

    A run that was replaced does not know it: it tries on for a while, as does one of a holder who lost the producer.

    Attributes:
        writer: the writer id of the producer.
        say: tells the parent process a line.
        is_last: it ends only after a batch is known to be committed, when the others have given way.
        number: of the last transaction.
    """

    client: Client
    recorder: Recorder
    name: str
    life: int
    writer: str
    dice: random.Random
    say: Callable[..., None]
    is_last: bool = False
    number: int = 0
    _has_committed: bool = False
    _runs: int = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Go on until it is over."""

        def is_done() -> bool:
            return is_over() and (self._has_committed or not self.is_last)

        wait_s = WAIT_S_MIN
        while not is_done():
            has_committed = await self._run_once(await self._begin_run(), is_done)
            # On a busy machine a batch takes long: those who take over must not do so each time before it is committed.
            wait_s = WAIT_S_MIN if has_committed else min(2 * wait_s, WAIT_S_MAX)
            await asyncio.sleep(self.dice.random() * wait_s)

    async def _begin_run(self) -> millrace.Producer:
        """Return as whom a new run begins: where the last one was or some batches before, now and then as another."""
        self._runs += 1
        run = f"{self.name}.{self.life}.{self._runs}"
        info = await recorded_producer(self.recorder, self.client, self.name, self.writer)
        if info is None:
            return millrace.Producer(self.writer, FIRST_HOLDER, run, 0)
        if self.dice.random() < 0.1:
            return millrace.Producer(self.writer, run, run, 0)
        assert info.holder is not None, f"nobody gave {self.writer} away"
        following = 0 if info.last_sequence is None else info.last_sequence + 1
        return millrace.Producer(self.writer, info.holder, run, max(0, following - self.dice.choice([0, 0, 1, 3])))

    async def _run_once(self, claim: millrace.Producer, is_done: Callable[[], bool]) -> bool:
        """Commit batches from the sequence of the claim on, until the run is given up; return whether any was new."""
        takes_away = claim.holder == claim.run
        has_committed = False
        while not is_done():
            outcome = await self._attempt(claim)
            self.say(outcome)
            match outcome:
                case "produced" | "repeated":
                    has_committed |= outcome == "produced"
                    self._has_committed |= has_committed
                    claim = claim._replace(sequence=claim.sequence + 1)
                    if self.dice.random() < 0.1:
                        break
                case "held" if takes_away:
                    takes_away = False  # once: a holder who lost the producer does not come back
                    await self._reset(claim.holder)
                case "fenced" | "held":
                    await asyncio.sleep(self.dice.random() * 0.2)
                    if self.dice.random() < 0.3:
                        break
        return has_committed

    async def _attempt(self, claim: millrace.Producer) -> str:
        """Write the batch of a claim, and commit it; return what came of that."""
        rows = batch_of(claim.writer_id, claim.holder, claim.sequence)
        self.number += 1
        tag = Tag(self.name, self.life, self.number, len(rows))
        name = f"{claim.writer_id}/{claim.holder}/{claim.sequence}" if self.dice.random() < 0.5 else None
        try:
            transaction = await RecordedTransaction.begin(
                self.recorder, self.client, sorted({row.stream for row in rows}), tag,
                name=name, lease_s=self.dice.choice(LEASES_S), producer=claim,
            )  # fmt: skip
        except tuple(REFUSALS) as error:
            return REFUSALS[type(error)]
        except millrace.TransactionCommittedError:  # as its name says
            assert name is not None
            await recorded_outcome(self.recorder, self.client, self.name, name)
            return "repeated"
        try:
            await self._write(transaction, tag, rows)
            return await self._commit(transaction)
        except tuple(REFUSALS) as error:
            return REFUSALS[type(error)]
        except millrace.TransactionCommittedError:  # by a commit whose outcome was lost
            return "repeated"
        except millrace.TransactionAbortedError:  # its lease had run out
            return "expired"
        finally:
            transaction.leave()

    async def _write(self, transaction: RecordedTransaction, tag: Tag, rows: list[Row]) -> None:
        for index, row in enumerate(rows):
            transaction.write(row.stream, [(row.key, tag.event(index, row.content))])
            if self.dice.random() < 0.05:
                await transaction.flush()
        if self.dice.random() < 0.3:
            await asyncio.sleep(self.dice.random() * 0.3)  # so that others take over meanwhile
        await transaction.flush()

    async def _commit(self, transaction: RecordedTransaction) -> str:
        """Commit, or ask for it and lose the outcome."""
        committing = asyncio.create_task(transaction.commit())
        if self.dice.random() < 0.15:
            await asyncio.wait([committing], timeout=self.dice.random() * 0.01)
            committing.cancel()
        await asyncio.wait([committing])
        if committing.cancelled():
            return "left"
        committing.result()
        return "produced"

    async def _reset(self, holder: str) -> None:
        call = self.recorder.call(self.name, "reset", writer=self.writer, holder=holder)
        try:
            is_changed = await self.client.reset_producer(self.writer, holder=holder)
        except millrace.ProducerInUseError:
            return  # by another one meanwhile, perhaps after it had been this one's
        self.recorder.answer(call, "done" if is_changed else "same")
        self.say("reset")


async def recorded_producer(recorder: Recorder, client: Client, who: str, writer: str) -> millrace.ProducerInfo | None:
    """Ask for what is known of a producer; None if there is none."""
    call = recorder.call(who, "producer", writer=writer)
    try:
        info = await client.producer_info(writer)
    except millrace.ProducerUnknownError:
        recorder.answer(call, "unknown")
        return None
    recorder.answer(call, "known", holder=info.holder, run=info.run, last=info.last_sequence)
    return info


def check_batches(
    streams: Mapping[str, Iterable[tuple[str, str]]], producers: Iterable[millrace.ProducerInfo]
) -> Counter[str]:
    """Add up the batches, apart from the checker of histories: each one whole and once, and none left out.

    Args:
        streams: of each stream all events with their keys, in an order in which those of each key are.
        producers: what the server knows of them at the end.

    Raises:
        AssertionError: naming what is not so.
    """
    counts: Counter[Row] = Counter()
    lengths: Counter[tuple[str, str]] = Counter()
    for stream, events in streams.items():
        latest: dict[tuple[str, str, str], tuple[int, int]] = {}
        for key, event in events:
            tagged = Tag.parse(event)
            content = None if tagged is None else Content.parse(tagged[2])
            if content is None:
                continue
            counts[Row(stream, key, str(content))] += 1
            of_key = (content.writer, content.holder, key)
            before = latest.get(of_key, (-1, -1))
            assert before < (content.sequence, content.event_index), f"{stream}: {event} of key {key} is after {before}"
            latest[of_key] = content.sequence, content.event_index
            of_holder = content.writer, content.holder
            lengths[of_holder] = max(lengths[of_holder], content.sequence + 1)
    wanted = Counter(
        row
        for (writer, holder), length in lengths.items()
        for sequence in range(length)
        for row in batch_of(writer, holder, sequence)
    )
    assert counts == wanted, f"too much: {counts - wanted}, and missing: {wanted - counts}"
    for known in producers:
        last = -1 if known.last_sequence is None else known.last_sequence
        length = lengths[known.writer_id, known.holder or ""]
        assert last == length - 1, f"{known} has committed {length} batches"
    return Counter({"batches": sum(lengths.values()), "holders of producers": len(lengths)})
