"""Read, process, write: what a stream holds goes to another one, with the position in the commit."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import millrace
from millrace.client.client import Client
from tests.crash.transactions.recorded import RecordedTransaction, Tag
from tests.support.history import Recorder

RAW: Final = "torture/raw"
COOKED: Final = "torture/cooked"
CURSOR: Final = "cook"


@dataclass
class Chain:
    """One of several that do the same: each event is taken by one of them."""

    client: Client
    recorder: Recorder
    name: str
    life: int
    dice: random.Random
    say: Callable[..., None]
    number: int = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Go on until it is over, and nothing is left to do."""
        while True:
            was_over = is_over()
            if not await self._do_some():
                if was_over:
                    return
                await asyncio.sleep(self.dice.random() * 0.1)

    async def _do_some(self) -> bool:
        """Move some events on, or let another do it; return False if there are none."""
        look = self.recorder.call(self.name, "look", register=f"{RAW} {CURSOR}")
        start = await self.client.cursors(RAW).get(CURSOR)
        self.recorder.answer(look, "value", value=None if start is None else str(start))
        count = self.dice.choice([1, 10, 100, 1000])
        events: list[millrace.Event] = []
        async with self.client.reader(RAW, start=start or millrace.HEAD, end=millrace.TAIL) as reader:
            async for event in reader:
                events.append(event)
                if len(events) == count:
                    break
            end = reader.position()
        if not events:
            return False
        self.number += 1
        tag = Tag(self.name, self.life, self.number, len(events))
        transaction = await RecordedTransaction.begin(self.recorder, self.client, [COOKED], tag)
        try:
            for index, event in enumerate(events):
                assert event.key is not None
                transaction.write(COOKED, [(event.key, tag.event(index, event.value.decode()))])
            transaction.advance(RAW, CURSOR, end, expected=start)
            await transaction.commit()
            self.say("cooked", len(events))
        except millrace.CursorMovedError:
            await transaction.abort()
            self.say("overtaken")
        finally:
            transaction.leave()
        return True
