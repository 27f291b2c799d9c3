"""Transactions one after the other, each over some streams, of any size, and ended in any way."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import millrace
from millrace.client.client import Client
from tests.crash.transactions.recorded import RecordedTransaction, Tag, recorded_outcome
from tests.support.history import Recorder

STREAMS: Final = ("torture/a", "torture/b", "torture/c")
KEYS: Final = 5
SIZES: Final = (1, 2, 5, 20, 100)
LEASES_S: Final = (1.0, 2.0, 30.0, 30.0)

ENDS: Final = {"commit": 10, "prepare and commit": 3, "hand over": 5, "abort": 3, "leave": 1}
"""What becomes of transactions, and how often: to be left, its lease runs out; what is handed over is prepared."""


@dataclass
class Lane:
    """The transactions of one life of a lane: all of its own are over, or handed over, before the next one.

    Attributes:
        say: tells the parent process a line.
        number: of the next transaction; the first one may have been begun by the life before.
    """

    client: Client
    recorder: Recorder
    name: str
    life: int
    number: int
    dice: random.Random
    say: Callable[..., None]
    written: Counter[str] = field(default_factory=Counter)

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Go on until it is over, but end what the life before may have left prepared in any case."""
        while True:
            self.say("at", self.name, self.number)
            await self._do_one()
            self.number += 1
            if is_over():
                return
            if self.dice.random() < 0.2:
                await asyncio.sleep(self.dice.random() * 0.2)

    async def _do_one(self) -> None:
        dice = self.dice
        # Each life draws the same of one number: who resumes it begins it over the same streams.
        fate = random.Random(f"{self.name}/{self.number}")
        streams = fate.sample(STREAMS, fate.choice([1, 2, 2, 3]))
        (end,) = fate.choices(list(ENDS), list(ENDS.values()))
        is_named = end in {"hand over", "prepare and commit"} or fate.random() < 0.5
        name = f"{self.name}/{self.number}" if is_named else None
        tag = Tag(self.name, self.life, self.number, dice.choice(SIZES))
        try:
            transaction = await RecordedTransaction.begin(
                self.recorder, self.client, streams, tag,
                name=name, lease_s=1.0 if end == "leave" else dice.choice(LEASES_S),
            )  # fmt: skip
        except millrace.TransactionCommittedError:  # by the life before
            assert name is not None
            await recorded_outcome(self.recorder, self.client, self.name, name)
            return
        try:
            if not transaction.is_prepared:
                # What is handed over is committed at any time: it has keys of its own, all others have an order.
                keys = f"{self.name}-{self.number}" if end == "hand over" else self.name
                await self._write(transaction, tag, streams, keys=keys)
            await self._end(transaction, end, name)
        except millrace.TransactionAbortedError:
            self.say("lost", self.name, self.number)  # its lease had run out
        except millrace.TransactionCommittedError:
            pass  # by what the life before had sent, or by those to whom it was handed over
        finally:
            transaction.leave()

    async def _write(self, transaction: RecordedTransaction, tag: Tag, streams: list[str], *, keys: str) -> None:
        dice, index = self.dice, 0
        while index < tag.event_count:
            several = min(tag.event_count - index, dice.choice([1, 1, 1, 7, 40]))
            events = [(f"{keys}-{dice.randrange(KEYS)}", tag.event(number)) for number in range(index, index + several)]
            transaction.write(dice.choice(streams), events)
            index += several
            if dice.random() < 0.1:
                await transaction.flush()
            if dice.random() < 0.1:
                await asyncio.sleep(dice.random() * 0.3)  # so that scales overtake it
        await transaction.flush()

    async def _end(self, transaction: RecordedTransaction, end: str, name: str | None) -> None:
        if end == "abort":
            await transaction.abort()
        elif end == "leave" and not transaction.is_prepared:
            transaction.leave()
        elif end == "hand over":
            await transaction.prepare()
            self.say("decide", name, transaction.number, transaction.branch)
        else:
            if end == "prepare and commit":
                await transaction.prepare()
            await transaction.commit()
            self.say("committed", self.name, self.number)
