"""Some seconds of transactions on two servers that take over from one another, with the clients of a single one."""

import asyncio
import random
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import millrace
from millrace.client.client import Client
from tests.crash.failover.faults import Faults
from tests.crash.failover.member import Member
from tests.crash.failover.pair import Pair
from tests.crash.failover.probe import Probe
from tests.crash.patience import PATIENT
from tests.crash.transactions import life
from tests.crash.transactions.lanes import STREAMS
from tests.support.cut_connections import Relay, relay_to

FAILOVER_S_AIM: Final = 5.0
"""Until the first ack, on a machine that is not overloaded. It is reported, not asserted: tests run beside a lot."""


@dataclass
class Life(life.Life):
    """A life on a pair, in which not only servers are killed.

    Attributes:
        failovers_s: from the end of each owner to the first ack of the other server, by how the owner ended.
    """

    server: Pair
    failovers_s: dict[str, list[float]] = field(default_factory=dict)
    _relays: dict[Member, Relay] = field(default_factory=dict)

    async def run(self) -> None:
        """Live it, and say how long failovers took."""
        await super().run()
        self.server.check()
        self.counted += self.server.counted
        for end, took_s in self.failovers_s.items():
            late_count = sum(each > FAILOVER_S_AIM for each in took_s)
            print(
                f"{len(took_s)} failovers after {end} until the first ack: median {statistics.median(took_s):.2f} s,"
                f" at most {max(took_s):.2f} s, {late_count} above {FAILOVER_S_AIM:g} s",
                flush=True,
            )

    @asynccontextmanager
    async def entrance(self) -> AsyncIterator[str]:
        """Yield the addresses of the ways to both servers."""
        async with AsyncExitStack() as stack:
            for member in self.server.members:
                self._relays[member] = await stack.enter_async_context(relay_to(member.address))
            yield ",".join(relay.address for relay in self._relays.values())

    async def fail(self, client: Client) -> None:
        """Let one thing fail after the other until clients have had acks for as long as the life is to be."""
        # The probe has a client of its own, so that it does not wait for requests of others.
        dice = random.Random(self.dice.random())
        async with (
            millrace.connect(self._address, options=PATIENT) as own,
            asyncio.TaskGroup() as tasks,
        ):
            probe = Probe(own, self._recorder, STREAMS[0])
            tasks.create_task(probe.run(), name="probe")
            faults = Faults(self.server, self._relays, probe, dice, self.counted, self.failovers_s)
            lived_s = 0.0
            while not self.is_over:
                living_s = dice.uniform(0.3, 4.0)
                await asyncio.sleep(living_s)
                lived_s += living_s if self.has_begun else 0.0
                fault = faults.draw()
                print(f"fault: {fault.value}", flush=True)
                self.story.append(fault.name)
                await faults.carry_out(fault)
                if lived_s >= self.seconds:
                    self.end()
            probe.end()
