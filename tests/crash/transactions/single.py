"""Some seconds of transactions on one server that clients reach over a relay, while all of these fail."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from millrace.client.client import Client
from millrace.client.testing import TestServer
from tests.crash.transactions import life
from tests.crash.transactions.faults import Faults, schedule
from tests.support.cut_connections import Relay, relay_to

NEEDED: Final = ("committed", "decisions told", "produced")
"""What clients must have done, however busy the machine is: a round without it shows nothing."""


@dataclass
class Life(life.Life):
    """A life on one server, whose clients reach it over a relay."""

    server: TestServer

    def __post_init__(self) -> None:
        super().__post_init__()
        self._schedule = schedule(random.Random(self.dice.random()))
        self._relay: Relay | None = None

    @asynccontextmanager
    async def entrance(self) -> AsyncIterator[str]:
        """Yield the address of the relay."""
        async with relay_to(self.server.address) as self._relay:
            yield self._relay.address

    async def fail(self, client: Client) -> None:
        """Cause faults until the server has lived long enough, without the time of its starts, and was used by all."""
        assert self._relay is not None
        dice = random.Random(self.dice.random())
        faults = Faults(self.server, self._relay, self.clients, client, dice, self.counted)
        lived_s = 0.0
        while not self.is_over:
            living_s = dice.uniform(0.1, 1.5)
            await asyncio.sleep(living_s)
            lived_s += living_s if self.has_begun else 0.0
            fault = next(self._schedule)
            self.story.append(fault.name)
            await faults.carry_out(fault)
            if lived_s >= self.seconds and all(self.counted[each] for each in NEEDED):
                self.end()
